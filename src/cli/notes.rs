//! `warn` and `review`: what is noted about members.

use std::io::Write;

use clap::{Args, Subcommand};

use super::error::CommandError;
use super::expires::Expires;
use super::records::{ListArgs, MemberArgs, print};
use crate::clock::Clock;
use crate::model::{GuildId, MemberId, RATINGS};
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
        /// When it ends: Unix seconds, or a while from now such as 30d
        #[arg(long)]
        expires: Expires,
    },
    /// Lists a guild's warns, expired ones too
    List(NoteListArgs),
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
    #[arg(value_parser = clap::value_parser!(i64).range(0..))]
    pub id: i64,
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
                let expires = expires.unix(Clock::system().unix());
                let id = store.add_warn(&of.guild, of.member, &author, &reason, expires).await?;
                Ok(writeln!(out, "{id}")?)
            }
            WarnCommand::Remove(NoteArgs { guild, id }) => Ok(store.remove_warn(&guild, id).await?),
            WarnCommand::List(NoteListArgs { guild, member, list }) => {
                let warns = store.list_warns(&guild, member).await?;
                let rows = warns.into_iter().map(|(member, w)| Record::Warn {
                    guild: guild.clone(),
                    member,
                    warn: w.id,
                    author: w.author,
                    reason: w.reason,
                    expires: w.expires,
                });
                print(out, list, rows)
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
                let rows = reviews.into_iter().map(|(member, r)| Record::Review {
                    guild: guild.clone(),
                    member,
                    review: r.id,
                    author: r.author,
                    rating: r.rating,
                    text: r.text,
                });
                print(out, list, rows)
            }
        }
    }
}
