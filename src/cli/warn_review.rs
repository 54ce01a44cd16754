//! `guildgate warn` and `guildgate review`: warns and reviews of members.

use std::io::Write;

use clap::{Args, Subcommand};

use super::error::CommandError;
use super::member::{MemberArgs, line, show};
use super::output::{JsonArg, print_list};
use crate::clock::Clock;
use crate::config::expires::Expires;
use crate::model::{GuildId, MemberId, RATINGS, Review, Warn};
use crate::store::transfer::Record;
use crate::store::{AnyStore, Members, Note, StoreError};

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
        rating: u8,
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

fn rating(text: &str) -> Result<u8, String> {
    let rating = text.parse().ok().filter(|rating| RATINGS.contains(rating));
    rating.ok_or_else(|| format!("a rating is {} to {}", RATINGS.start(), RATINGS.end()))
}

impl WarnCommand {
    pub(super) async fn run(self, store: &AnyStore, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            WarnCommand::Add { of, author, reason, expires } => {
                let expires = expires.in_future(Clock::system().unix());
                let expires = expires.map_err(|why| CommandError::expires(&why, "such a warn would never be shown"))?;
                let id = store.add_note(&of.guild, of.member, Warn { id: 0, author, reason, expires }).await?;
                Ok(writeln!(out, "{id}")?)
            }
            WarnCommand::Remove(IdArgs { guild, id }) => Ok(store.remove_note::<Warn>(&guild, id).await?),
            WarnCommand::List(ListArgs { guild, member, json }) => {
                let warns = notes(store, &guild, member).await?;
                print_list(out, json, warns.into_iter().map(|warn| warn_record(&guild, warn)), line)
            }
            WarnCommand::Show(ShowArgs { of: IdArgs { guild, id }, json }) => {
                let warn = notes(store, &guild, None).await?.into_iter().find(|(_, warn): &(_, Warn)| warn.id == id);
                show(out, json, warn.map(|warn| warn_record(&guild, warn)), (&guild, "warn", id))
            }
        }
    }
}

impl ReviewCommand {
    pub(super) async fn run(self, store: &AnyStore, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            ReviewCommand::Add { of, author, rating, text } => {
                let id = store.add_note(&of.guild, of.member, Review { id: 0, author, rating, text }).await?;
                Ok(writeln!(out, "{id}")?)
            }
            ReviewCommand::Remove(IdArgs { guild, id }) => Ok(store.remove_note::<Review>(&guild, id).await?),
            ReviewCommand::List(ListArgs { guild, member, json }) => {
                let reviews = notes(store, &guild, member).await?;
                print_list(out, json, reviews.into_iter().map(|review| review_record(&guild, review)), line)
            }
            ReviewCommand::Show(ShowArgs { of: IdArgs { guild, id }, json }) => {
                let review = notes(store, &guild, None).await?.into_iter().find(|(_, r): &(_, Review)| r.id == id);
                show(out, json, review.map(|review| review_record(&guild, review)), (&guild, "review", id))
            }
        }
    }
}

/// The warns or reviews of a guild, or of one member, by member and then by id.
async fn notes<N: Note>(
    store: &AnyStore,
    guild: &GuildId,
    of: Option<MemberId>,
) -> Result<Vec<(MemberId, N)>, StoreError> {
    let mut notes = store.notes(guild, of, None, usize::MAX).await?;
    notes.sort_by_key(|(member, _)| *member);
    Ok(notes)
}

/// A warn as the record of an export.
fn warn_record(guild: &GuildId, (member, warn): (MemberId, Warn)) -> Record {
    let Warn { id, author, reason, expires } = warn;
    Record::Warn { guild: guild.clone(), member, warn: id, author, reason, expires }
}

/// A review as the record of an export.
fn review_record(guild: &GuildId, (member, review): (MemberId, Review)) -> Record {
    let Review { id, author, rating, text } = review;
    Record::Review { guild: guild.clone(), member, review: id, author, rating, text }
}
