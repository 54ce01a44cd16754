//! `guildgate key`: lists, shows and revokes keys in the store, and hashes a key for a key file. `key_changes` makes and
//! changes keys. A key is printed once, when it is made, and is stored as a digest only; afterwards it is named by its
//! id. A running server learns of the change from the store's change feed.

use std::io::{Read, Write};

use clap::Subcommand;
use serde::Serialize;

use super::error::CommandError;
use super::key_changes::{CreateArgs, RotateArgs, SetArgs};
use super::output::{JsonArg, print_record};
use crate::clock::Clock;
use crate::config::{Limits, secret};
use crate::keys::is_mistyped;
use crate::model::{Digest, GuildId, Scope, date_of};
use crate::store::{KeyRecord, Store};

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Creates a key and prints it, alone and once; the store keeps only its digest
    Create(CreateArgs),
    /// Lists the keys
    List {
        /// Lists only the keys of this guild
        #[arg(long)]
        guild: Option<GuildId>,
        #[command(flatten)]
        json: JsonArg,
    },
    /// Shows one key
    Show {
        /// The key's id, as `key list` prints it
        id: String,
        #[command(flatten)]
        json: JsonArg,
    },
    /// Gives a key another secret and prints it, alone and once; id, tier, scope and budget stay
    Rotate(RotateArgs),
    /// Changes a key while it works; a running server follows within a second
    Set(SetArgs),
    /// Removes a key with all its secrets; a running server refuses it within a second
    Revoke {
        /// The key's id, as `key list` prints it
        id: String,
    },
    /// Reads a key from stdin and prints the digest to put into a key file
    Hash,
}

/// A key as it is printed.
#[derive(Serialize)]
pub(super) struct KeyRow<'k> {
    id: &'k str,
    name: &'k str,
    guild: &'k GuildId,
    tier: &'k str,
    scope: Scope,
    created: i64,
    expires: Option<i64>,
    last_used: Option<i64>,
    /// When the previous secret ends. Only `key show` prints it, while that secret still works.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_until: Option<i64>,
    /// The secret. Only `key create` prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<&'k str>,
}

impl KeyCommand {
    pub(super) async fn run(self, store: &Store, limits: &Limits, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            KeyCommand::Create(args) => args.run(store, limits, out).await,
            KeyCommand::List { guild, json: JsonArg { json } } => {
                let mut keys = store.keys().await?;
                if let Some(guild) = guild {
                    keys.retain(|key| key.guild == guild);
                    if keys.is_empty() && !store.guilds().await?.iter().any(|known| known.id == guild) {
                        return Err(CommandError::new(format!(
                            "guild {guild} is not in the store; `guildgate guild list` shows those there are"
                        )));
                    }
                }
                let rows: Vec<KeyRow<'_>> = keys.iter().map(|key| KeyRow::new(key, limits)).collect();
                if json {
                    Ok(writeln!(out, "{}", serde_json::to_string(&rows)?)?)
                } else {
                    Ok(rows.iter().try_for_each(|row| writeln!(out, "{}", row.line()))?)
                }
            }
            KeyCommand::Show { id, json } => {
                let key = store.key(&id).await?.ok_or_else(|| {
                    CommandError::new(format!("there is no key '{id}'; `guildgate key list` prints the ids"))
                })?;
                let now = Clock::system().unix();
                let previous_until = key.previous_ends().filter(|end| *end > now);
                let row = KeyRow { previous_until, ..KeyRow::new(&key, limits) };
                print_record(out, json, &row, &row.page())
            }
            KeyCommand::Rotate(args) => args.run(store, out).await,
            KeyCommand::Set(args) => args.run(store, limits).await,
            KeyCommand::Revoke { id } => Ok(store.revoke_key(&id).await?),
            KeyCommand::Hash => hash(&mut std::io::stdin().lock(), out),
        }
    }
}

/// Reads a key and prints its digest, as a key file expects it.
pub(super) fn hash(input: &mut dyn Read, out: &mut dyn Write) -> Result<(), CommandError> {
    let key = secret::read("stdin", input).map_err(CommandError::new)?;
    let key = key.as_bytes();
    if is_mistyped(key) {
        return Err(CommandError::new(
            "the key on stdin begins with gg_ and its checksum is wrong, so every request with it would be refused: \
             it was mistyped or changed on the way; copy it again",
        ));
    }
    Ok(writeln!(out, "{}", Digest::of(key))?)
}

impl<'k> KeyRow<'k> {
    pub(super) fn new(key: &'k KeyRecord, limits: &'k Limits) -> Self {
        KeyRow {
            id: &key.id,
            name: &key.name,
            guild: &key.guild,
            tier: key.tier.as_deref().unwrap_or(&limits.default_tier.name),
            scope: key.scope,
            created: key.created,
            expires: key.expires,
            last_used: key.last_used,
            previous_until: None,
            key: None,
        }
    }

    fn line(&self) -> String {
        let KeyRow { id, name, guild, tier, scope, .. } = self;
        let (expires, used) = (date_or_never(self.expires), date_or_never(self.last_used));
        let line = format!("{id}  guild={guild} tier={tier} scope={scope} expires={expires} last_used={used} {name}");
        line.trim_end().to_owned()
    }

    fn page(&self) -> String {
        let KeyRow { id, name, guild, tier, scope, .. } = self;
        let (created, expires) = (date_of(self.created), date_or_never(self.expires));
        let mut page = format!(
            "id         {id}\nname       {name}\nguild      {guild}\ntier       {tier}\nscope      {scope}\n\
             created    {created}\nexpires    {expires}\nlast used  {}",
            date_or_never(self.last_used)
        );
        if let Some(end) = self.previous_until {
            page += &format!("\nrotated    the previous secret works until {}", date_of(end));
        }
        page
    }
}

fn date_or_never(unix: Option<i64>) -> String {
    unix.map_or_else(|| "never".to_owned(), date_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_hashed_without_its_line_end() {
        let mut out = Vec::new();
        hash(&mut &b"some key\r\n"[..], &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), format!("{}\n", Digest::of(b"some key")));
    }

    #[test]
    fn an_input_that_is_not_one_key_is_not_hashed() {
        for input in [&b""[..], b"\n", b"one\ntwo\n"] {
            assert!(hash(&mut &*input, &mut Vec::new()).is_err());
        }
    }
}
