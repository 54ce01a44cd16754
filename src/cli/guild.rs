//! `guildgate guild`: guilds in the store.

use std::io::{self, IsTerminal, Write};

use clap::Subcommand;
use serde::Serialize;

use super::error::CommandError;
use super::output::{JsonArg, print_list, print_outcome};
use crate::model::{GuildId, NOTE_KINDS, counted};
use crate::store::{RemovedGuild, Store};

/// `guildgate guild …`
#[derive(Clone, Debug, Subcommand)]
pub enum GuildCommand {
    /// Adds a guild to the store
    Add {
        /// The guild's id, such as 81384788765712384
        id: GuildId,
        /// The guild's name
        #[arg(long, value_parser = guild_name)]
        name: String,
    },
    /// Lists all guilds, including those that the bot has left
    List(JsonArg),
    /// Renames a guild
    Rename {
        /// The guild's id
        id: GuildId,
        /// The guild's new name
        #[arg(long, value_parser = guild_name)]
        name: String,
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

/// Rejects a blank name, which most likely comes from a shell variable that was not set. The store replaces control
/// characters by spaces.
fn guild_name(text: &str) -> Result<String, &'static str> {
    if text.chars().all(|c| c.is_whitespace() || c.is_control()) {
        return Err("a guild's name is not empty");
    }
    Ok(text.to_owned())
}

#[derive(Serialize)]
struct GuildRow {
    id: GuildId,
    name: String,
    left: bool,
}

impl GuildCommand {
    pub(super) async fn run(self, store: &Store, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            GuildCommand::Add { id, name } => Ok(store.add_guild(&id, &name).await?),
            GuildCommand::Rename { id, name } => Ok(store.rename_guild(&id, &name).await?),
            GuildCommand::Remove { id, yes } => {
                if !yes {
                    confirm_removal(store, &id).await?;
                }
                let RemovedGuild { members, notes, keys } = store.remove_guild(&id).await?;
                let notes = NOTE_KINDS.iter().zip(notes).map(|(kind, count)| counted(count, kind.name));
                let with: Vec<String> = std::iter::once(counted(members, "member")).chain(notes).collect();
                let (with, keys) = (with.join(", "), counted(keys, "key"));
                print_outcome(out, &format!("guild {id} was removed, with {with} and {keys}"))
            }
            GuildCommand::Leave { id } => Ok(store.set_guild_departed(&id, true).await?),
            GuildCommand::Return { id } => Ok(store.set_guild_departed(&id, false).await?),
            GuildCommand::List(json) => {
                let guilds = store.guilds().await?;
                let rows = guilds.into_iter().map(|g| GuildRow { id: g.id, name: g.name, left: g.departed });
                print_list(out, json, rows, |GuildRow { id, name, left }| {
                    format!("{id}\t{name}{}", if *left { "\tleft" } else { "" })
                })
            }
        }
    }
}

/// Asks on the terminal whether to remove the guild; returns an error if the answer is not yes.
async fn confirm_removal(store: &Store, id: &GuildId) -> Result<(), CommandError> {
    let guilds = store.guilds().await?;
    let Some(guild) = guilds.iter().find(|guild| guild.id == *id) else { return Ok(()) }; // the removal reports it
    if !io::stdin().is_terminal() {
        return Err(CommandError::new(format!(
            "guild {id} ({}) was not removed: its removal takes its members, warns, reviews and keys with it, and there \
             is no terminal to ask on; --yes removes it without asking",
            guild.name
        )));
    }
    let question = format!("Remove guild {id} ({}) with its members, warns, reviews and keys? [y/N] ", guild.name);
    let mut answer = String::new();
    let asked = io::stderr().write_all(question.as_bytes()).and_then(|()| io::stdin().read_line(&mut answer));
    asked.map_err(|e| CommandError::new(format!("the answer could not be read: {e}; guild {id} was not removed")))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CommandError::new(format!("guild {id} was not removed"))),
    }
}
