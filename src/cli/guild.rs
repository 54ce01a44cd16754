//! `guildgate guild`: guilds in the store.

use std::io::{self, IsTerminal, Write};

use clap::Subcommand;

use super::error::CommandError;
use super::output::{JsonArg, print_rows};
use crate::model::{GuildId, NOTE_KINDS, counted};
use crate::records::Records;
use crate::records::guild::{self, GuildChange, GuildInput, GuildName};

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
        name: GuildName,
    },
    /// Removes a guild with its members, warns, reviews and keys
    ///
    /// If a guild is added again under the same id, it begins empty. A running server follows within a second.
    Remove {
        /// The guild's id
        id: GuildId,
        /// Removes it without asking for confirmation
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
        confirm_removal(id, &guild::show(records, id).await?.name)?;
    }
    let removed = guild::remove(records, id).await?;
    let notes = NOTE_KINDS.iter().map(|kind| counted(removed.notes[kind.plural], kind.name));
    let with: Vec<String> = std::iter::once(counted(removed.members, "member")).chain(notes).collect();
    let (with, keys) = (with.join(", "), counted(removed.keys, "key"));
    Ok(writeln!(out, "guild {id} was removed, with {with} and {keys}")?)
}

/// Asks on the terminal whether to remove the guild; returns an error if the answer is not yes.
fn confirm_removal(id: &GuildId, name: &str) -> Result<(), CommandError> {
    if !io::stdin().is_terminal() {
        return Err(CommandError::new(format!(
            "guild {id} ({name}) was not removed: its removal takes its members, warns, reviews and keys with it, and there \
             is no terminal to ask on; --yes removes it without asking"
        )));
    }
    let question = format!("Remove guild {id} ({name}) with its members, warns, reviews and keys? [y/N] ");
    let mut answer = String::new();
    let asked = io::stderr().write_all(question.as_bytes()).and_then(|()| io::stdin().read_line(&mut answer));
    asked.map_err(|e| CommandError::new(format!("the answer could not be read: {e}; guild {id} was not removed")))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CommandError::new(format!("guild {id} was not removed"))),
    }
}
