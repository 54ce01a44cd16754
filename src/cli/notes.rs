//! `warn` and `review`: what is noted about members.

use std::io::Write;

use clap::{Args, Subcommand};

use super::error::CommandError;
use super::expires::Expires;
use super::records::{ListArgs, MemberArgs, ShowArgs, print, show};
use crate::clock::Clock;
use crate::model::{GuildId, MemberId, RATINGS, Review, Warn};
use crate::store::transfer::Record;
use crate::store::{AnyStore, Members};

/// `guildgate warn …`
#[derive(Clone, Debug, Subcommand)]
pub enum WarnCommand {
    /// Warns a member, and prints the warn's id
    Add {
        #[command(flatten)]
        of: MemberArgs,
        /// Who warns
        #[arg(long)]
        author: String,
        /// What for
        #[arg(long)]
        reason: String,
        /// When it ends: 90d from now, 2026-12-24, 2026-12-24T18:00:00Z, or Unix seconds
        #[arg(long)]
        expires: Expires,
    },
    /// Lists a guild's warns, expired ones too
    List(NoteListArgs),
    /// Shows one warn
    Show(NoteShowArgs),
    /// Takes a warn back
    Remove(NoteArgs),
}

/// `guildgate review …`
#[derive(Clone, Debug, Subcommand)]
pub enum ReviewCommand {
    /// Reviews a member, and prints the review's id
    Add {
        #[command(flatten)]
        of: MemberArgs,
        /// Who reviews
        #[arg(long)]
        author: String,
        /// Stars, 1 to 5
        #[arg(long, value_parser = rating)]
        rating: u8,
        /// What is said
        #[arg(long)]
        text: String,
    },
    /// Lists a guild's reviews
    List(NoteListArgs),
    /// Shows one review
    Show(NoteShowArgs),
    /// Removes a review
    Remove(NoteArgs),
}

/// Which warns or reviews are listed.
#[derive(Clone, Debug, Args)]
pub struct NoteListArgs {
    /// The guild's id
    #[arg(long)]
    pub guild: GuildId,
    /// Only this member's
    #[arg(long)]
    pub member: Option<MemberId>,
    #[command(flatten)]
    pub list: ListArgs,
}

/// A warn or review by its id.
#[derive(Clone, Debug, Args)]
pub struct NoteArgs {
    /// The guild's id
    #[arg(long)]
    pub guild: GuildId,
    /// Its id, as `add` printed it and `list` shows it
    #[arg(value_parser = id)]
    pub id: i64,
}

/// A warn or review by its id, to be shown.
#[derive(Clone, Debug, Args)]
pub struct NoteShowArgs {
    #[command(flatten)]
    pub of: NoteArgs,
    #[command(flatten)]
    pub show: ShowArgs,
}

fn id(text: &str) -> Result<i64, String> {
    let number = text.parse().ok().filter(|id: &i64| *id >= 0);
    number.ok_or_else(|| format!("an id is a whole number, 0 to {}", i64::MAX))
}

fn rating(text: &str) -> Result<u8, String> {
    let stars = text.parse().ok().filter(|stars| RATINGS.contains(stars));
    stars.ok_or_else(|| format!("a rating is {} to {}", RATINGS.start(), RATINGS.end()))
}

impl WarnCommand {
    /// Does it; what is asked for goes to `out`.
    pub async fn run(self, store: &AnyStore, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            WarnCommand::Add { of, author, reason, expires } => {
                let expires = expires.still_to_come(Clock::system().unix(), "such a warn would never be shown")?;
                let id = store.add_warn(&of.guild, of.member, &author, &reason, expires).await?;
                Ok(writeln!(out, "{id}")?)
            }
            WarnCommand::Remove(NoteArgs { guild, id }) => Ok(store.remove_warn(&guild, id).await?),
            WarnCommand::List(NoteListArgs { guild, member, list }) => {
                let warns = store.list_warns(&guild, member).await?;
                print(out, list, warns.into_iter().map(|warn| warn_record(&guild, warn)))
            }
            WarnCommand::Show(NoteShowArgs { of: NoteArgs { guild, id }, show: how }) => {
                let warns = store.list_warns(&guild, None).await?;
                let warn = warns.into_iter().find(|(_, warn)| warn.id == id);
                show(out, how, &warn_record(&guild, warn.ok_or_else(|| not_there(&guild, "warn", id))?))
            }
        }
    }
}

impl ReviewCommand {
    /// Does it; what is asked for goes to `out`.
    pub async fn run(self, store: &AnyStore, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            ReviewCommand::Add { of, author, rating, text } => {
                let id = store.add_review(&of.guild, of.member, &author, rating, &text).await?;
                Ok(writeln!(out, "{id}")?)
            }
            ReviewCommand::Remove(NoteArgs { guild, id }) => Ok(store.remove_review(&guild, id).await?),
            ReviewCommand::List(NoteListArgs { guild, member, list }) => {
                let reviews = store.list_reviews(&guild, member).await?;
                print(out, list, reviews.into_iter().map(|review| review_record(&guild, review)))
            }
            ReviewCommand::Show(NoteShowArgs { of: NoteArgs { guild, id }, show: how }) => {
                let reviews = store.list_reviews(&guild, None).await?;
                let review = reviews.into_iter().find(|(_, review)| review.id == id);
                show(out, how, &review_record(&guild, review.ok_or_else(|| not_there(&guild, "review", id))?))
            }
        }
    }
}

fn warn_record(guild: &GuildId, (member, warn): (MemberId, Warn)) -> Record {
    let Warn { id, author, reason, expires } = warn;
    Record::Warn { guild: guild.clone(), member, warn: id, author, reason, expires }
}

fn review_record(guild: &GuildId, (member, review): (MemberId, Review)) -> Record {
    let Review { id, author, rating, text } = review;
    Record::Review { guild: guild.clone(), member, review: id, author, rating, text }
}

/// `what` is a warn or a review.
fn not_there(guild: &GuildId, what: &str, id: i64) -> CommandError {
    CommandError::new(format!(
        "guild {guild} has no {what} {id}; `guildgate {what} list --guild {guild}` shows those there are"
    ))
}
