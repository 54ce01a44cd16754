//! `guildgate guild`: guilds in the store.

use std::io::Write;

use clap::Subcommand;

use super::error::CommandError;
use super::output::{JsonArg, print_rows};
use crate::model::{GuildId, NOTE_KINDS, counted};
use crate::records::Records;
use crate::records::guild::{self, GuildChange, GuildInput};

/// `guildgate guild …`
#[derive(Clone, Debug, Subcommand)]
pub enum GuildCommand {
    /// Adds a guild to the store
    Add(GuildInput),
    /// Lists all guilds, including those that the bot has left
    List(JsonArg),
    /// Renames a guild
    Rename {
        /// The guild's id
        id: GuildId,
        /// The guild's new name
        #[arg(long)]
        name: String,
    },
    /// Removes a guild with its members, warns, reviews and keys
    ///
    /// If a guild is added again under the same id, it begins empty. A running server follows within a second.
    Remove {
        /// The guild's id
        id: GuildId,
        /// Says that you mean it: nothing brings back what is removed
        #[arg(long)]
        yes: bool,
    },
    /// Records that the bot has left a guild: its keys are answered with 03 until it returns
    Leave {
        /// The guild's id
        id: GuildId,
    },
    /// Records that the bot has returned to a guild
    Return {
        /// The guild's id
        id: GuildId,
    },
}

impl GuildCommand {
    pub(super) async fn run(self, records: &Records, out: &mut dyn Write) -> Result<(), CommandError> {
        let (id, change) = match self {
            GuildCommand::Add(input) => return Ok(guild::add(records, input).await.map(drop)?),
            GuildCommand::List(json) => {
                let guilds = guild::list(records, None, usize::MAX).await?;
                return print_rows(out, json, &guilds, &["id", "left", "name"]);
            }
            GuildCommand::Remove { id, yes } => return remove(records, &id, yes, out).await,
            GuildCommand::Rename { id, name } => (id, GuildChange { name: Some(name), left: None }),
            GuildCommand::Leave { id } => (id, GuildChange { name: None, left: Some(true) }),
            GuildCommand::Return { id } => (id, GuildChange { name: None, left: Some(false) }),
        };
        Ok(guild::change(records, &id, change).await.map(drop)?)
    }
}

async fn remove(records: &Records, id: &GuildId, yes: bool, out: &mut dyn Write) -> Result<(), CommandError> {
    if !yes {
        let name = guild::show(records, id).await?.name;
        return Err(CommandError::new(format!(
            "guild {id} ({name}) was not removed: its members, warns, reviews and keys would be removed with it; --yes says \
             that you mean it"
        )));
    }
    let removed = guild::remove(records, id).await?;
    let notes = NOTE_KINDS.iter().map(|kind| counted(removed.notes[kind.plural], kind.name));
    let with: Vec<String> = std::iter::once(counted(removed.members, "member")).chain(notes).collect();
    let keys = counted(removed.keys, "key");
    Ok(writeln!(out, "guild {id} was removed, with {} and {keys}", with.join(", "))?)
}
