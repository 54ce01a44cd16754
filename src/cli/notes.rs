//! `guildgate warn` and `guildgate review`: notes about members.

use std::io::Write;

use clap::{Args, Subcommand};

use super::error::CommandError;
use super::member::MemberArgs;
use super::output::{JsonArg, print_row, print_rows};
use crate::model::{GuildId, MemberId};
use crate::records::Records;
use crate::records::note::{self, NoteId, NoteInput};

/// `guildgate warn …` or `guildgate review …`
#[derive(Clone, Debug, Subcommand)]
pub enum NoteCommand<I: Args> {
    /// Adds one to a member, and prints its id
    Add {
        #[command(flatten)]
        of: MemberArgs,
        #[command(flatten)]
        input: I,
    },
    /// Lists those of a guild, including expired ones
    List {
        /// The guild's id
        #[arg(long)]
        guild: GuildId,
        /// Lists only those of this member
        #[arg(long)]
        member: Option<MemberId>,
        #[command(flatten)]
        json: JsonArg,
    },
    /// Shows one
    Show {
        #[command(flatten)]
        of: IdArgs,
        #[command(flatten)]
        json: JsonArg,
    },
    /// Removes one
    Remove(IdArgs),
}

/// Which one.
#[derive(Clone, Debug, Args)]
pub struct IdArgs {
    /// The guild's id
    #[arg(long)]
    guild: GuildId,
    /// Its id, as printed by `add` and `list`
    id: NoteId,
}

impl<I: NoteInput> NoteCommand<I> {
    pub(super) async fn run(self, records: &Records, out: &mut dyn Write) -> Result<(), CommandError> {
        let kind = I::KIND;
        let fields = ["member", "id", "author", kind.number.name(), kind.text];
        match self {
            NoteCommand::Add { of, input } => {
                let added = note::add(records, &of.guild, of.member, input).await?;
                Ok(writeln!(out, "{}", added.id)?)
            }
            NoteCommand::List { guild, member, json } => {
                let notes = note::list(records, kind, &guild, member, None, usize::MAX).await?;
                print_rows(out, json, &notes, &fields)
            }
            NoteCommand::Show { of: IdArgs { guild, id }, json } => {
                print_row(out, json, &note::show(records, kind, &guild, id).await?, &fields)
            }
            NoteCommand::Remove(IdArgs { guild, id }) => Ok(records.store.remove_note(kind, &guild, id.0).await?),
        }
    }
}
