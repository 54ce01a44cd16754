//! `guildgate member`: members of a guild and their points.

use std::io::Write;

use clap::{Args, Subcommand};

use super::error::CommandError;
use super::output::{JsonArg, print_row, print_rows};
use crate::model::{GuildId, MemberId};
use crate::records::Records;
use crate::records::member::{self, MemberInput};

const FIELDS: [&str; 3] = ["member", "points", "name"];

/// `guildgate member …`
#[derive(Clone, Debug, Subcommand)]
pub enum MemberCommand {
    /// Sets a member's name or points, and makes the member if there is none
    Set {
        #[command(flatten)]
        of: MemberArgs,
        #[command(flatten)]
        input: MemberInput,
    },
    /// Lists a guild's members
    List {
        /// The guild's id
        #[arg(long)]
        guild: GuildId,
        #[command(flatten)]
        json: JsonArg,
    },
    /// Shows one member
    Show {
        #[command(flatten)]
        of: MemberArgs,
        #[command(flatten)]
        json: JsonArg,
    },
    /// Removes a member with its warns and reviews
    Remove {
        #[command(flatten)]
        of: MemberArgs,
    },
}

/// A member of a guild.
#[derive(Clone, Debug, Args)]
pub struct MemberArgs {
    /// The guild's id
    #[arg(long)]
    pub guild: GuildId,
    /// The member's id
    #[arg(long)]
    pub member: MemberId,
}

impl MemberCommand {
    pub(super) async fn run(self, records: &Records, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            MemberCommand::Set { of, input } => {
                Ok(member::set(records, &of.guild, of.member, input).await.map(drop)?)
            }
            MemberCommand::Remove { of } => Ok(records.store.remove_member(&of.guild, of.member).await?),
            MemberCommand::List { guild, json } => {
                print_rows(out, json, &member::list(records, &guild, None, usize::MAX).await?, &FIELDS)
            }
            MemberCommand::Show { of, json } => {
                print_row(out, json, &member::show(records, &of.guild, of.member).await?, &FIELDS)
            }
        }
    }
}
