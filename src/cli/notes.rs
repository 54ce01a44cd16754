//! `guildgate warn` and `guildgate review`: warns and reviews of members.

use std::io::Write;

use clap::{Args, Subcommand};

use super::error::CommandError;
use super::member::{MemberArgs, line, show};
use super::output::{JsonArg, print_list};
use crate::clock::Clock;
use crate::config::expires::Expires;
use crate::model::{GuildId, MemberId, Note, NoteKind, Number, REVIEW, WARN};
use crate::store::{Record, Store};

/// `guildgate warn …`
#[derive(Clone, Debug, Subcommand)]
pub enum WarnCommand {
    /// Adds a warn to a member, and prints the warn's id
    Add {
        #[command(flatten)]
        of: MemberArgs,
        /// Who issues the warn
        #[arg(long)]
        author: String,
        /// The reason for the warn
        #[arg(long)]
        reason: String,
        /// When it expires: 90d from now, 2026-12-24, 2026-12-24T18:00:00Z, or Unix seconds
        #[arg(long)]
        expires: Expires,
    },
    /// Lists a guild's warns, including expired ones
    List(ListArgs),
    /// Shows one warn
    Show(ShowArgs),
    /// Removes a warn
    Remove(IdArgs),
}

/// `guildgate review …`
#[derive(Clone, Debug, Subcommand)]
pub enum ReviewCommand {
    /// Adds a review to a member, and prints the review's id
    Add {
        #[command(flatten)]
        of: MemberArgs,
        /// Who writes the review
        #[arg(long)]
        author: String,
        /// Stars, 1 to 5
        #[arg(long, value_parser = rating)]
        rating: i64,
        /// The text of the review
        #[arg(long)]
        text: String,
    },
    /// Lists a guild's reviews
    List(ListArgs),
    /// Shows one review
    Show(ShowArgs),
    /// Removes a review
    Remove(IdArgs),
}

/// Which warns or reviews to list.
#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    /// The guild's id
    #[arg(long)]
    guild: GuildId,
    /// Lists only those of this member
    #[arg(long)]
    member: Option<MemberId>,
    #[command(flatten)]
    json: JsonArg,
}

/// The id of a warn or review.
#[derive(Clone, Debug, Args)]
pub struct IdArgs {
    /// The guild's id
    #[arg(long)]
    guild: GuildId,
    /// Its id, as printed by `add` and `list`
    #[arg(value_parser = id)]
    id: i64,
}

/// Which warn or review to show.
#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    of: IdArgs,
    #[command(flatten)]
    json: JsonArg,
}

fn id(text: &str) -> Result<i64, String> {
    let id = text.parse().ok().filter(|id: &i64| *id >= 0);
    id.ok_or_else(|| format!("an id is a whole number, 0 to {}", i64::MAX))
}

fn rating(text: &str) -> Result<i64, String> {
    let rating = text.parse().unwrap_or(0);
    Number::Rating.check(rating).map(|()| rating)
}

impl WarnCommand {
    pub(super) async fn run(self, store: &Store, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            WarnCommand::Add { of, author, reason, expires } => {
                let expires = expires.in_future(Clock::system().unix());
                let expires = expires.map_err(|why| CommandError::expires(&why, "such a warn would never be shown"))?;
                add(store, &WARN, of, Note { id: 0, author, text: reason, number: expires }, out).await
            }
            WarnCommand::List(args) => args.run(store, &WARN, out).await,
            WarnCommand::Show(args) => args.run(store, &WARN, out).await,
            WarnCommand::Remove(IdArgs { guild, id }) => Ok(store.remove_note(&WARN, &guild, id).await?),
        }
    }
}

impl ReviewCommand {
    pub(super) async fn run(self, store: &Store, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            ReviewCommand::Add { of, author, rating, text } => {
                add(store, &REVIEW, of, Note { id: 0, author, text, number: rating }, out).await
            }
            ReviewCommand::List(args) => args.run(store, &REVIEW, out).await,
            ReviewCommand::Show(args) => args.run(store, &REVIEW, out).await,
            ReviewCommand::Remove(IdArgs { guild, id }) => Ok(store.remove_note(&REVIEW, &guild, id).await?),
        }
    }
}

async fn add(
    store: &Store,
    kind: &'static NoteKind,
    of: MemberArgs,
    note: Note,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let id = store.add_note(kind, &of.guild, of.member, note).await?;
    Ok(writeln!(out, "{id}")?)
}

impl ListArgs {
    /// Lists the notes by member and then by id.
    async fn run(self, store: &Store, kind: &'static NoteKind, out: &mut dyn Write) -> Result<(), CommandError> {
        let ListArgs { guild, member, json } = self;
        let mut notes = store.notes(kind, &guild, member, None, usize::MAX).await?;
        notes.sort_by_key(|(member, _)| *member);
        print_list(out, json, notes.into_iter().map(|note| record(kind, &guild, note)), line)
    }
}

impl ShowArgs {
    async fn run(self, store: &Store, kind: &'static NoteKind, out: &mut dyn Write) -> Result<(), CommandError> {
        let ShowArgs { of: IdArgs { guild, id }, json } = self;
        let note = store.note(kind, &guild, id).await?;
        show(out, json, note.map(|note| record(kind, &guild, note)), (&guild, kind.name, id))
    }
}

/// A note as the record of an export.
fn record(kind: &'static NoteKind, guild: &GuildId, (member, note): (MemberId, Note)) -> Record {
    Record::Note { guild: guild.clone(), member, kind, note }
}
