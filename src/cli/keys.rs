//! `guildgate key`: keys in the store, and the digest of a key for a key file. A key is printed once, when it is made or
//! rotated, and is stored as a digest only; afterwards it is named by its id. A running server learns of a change from
//! the store's change feed.

use std::io::{Read, Write};

use clap::Subcommand;

use super::error::CommandError;
use super::output::{JsonArg, print_row, print_rows, print_secret};
use crate::clock::Clock;
use crate::config::{Config, secret};
use crate::keys::is_mistyped;
use crate::model::{Digest, GuildId};
use crate::records::Records;
use crate::records::key::{self, KeyChange, KeyInput, Rotation};
use crate::store::Store;

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Creates a key and prints it, alone and once; the store keeps only its digest
    Create {
        #[command(flatten)]
        input: KeyInput,
        /// Prints one JSON object: the key, and what `key show` prints
        #[arg(long)]
        json: bool,
    },
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
    /// Reads a key from stdin and prints its id, guild, tier, scope and what is wrong with it, never the key
    Find(JsonArg),
    /// Gives a key another secret and prints it, alone and once; id, tier, scope and budget stay
    Rotate {
        /// The key's id, as `key list` prints it
        id: String,
        #[command(flatten)]
        rotation: Rotation,
    },
    /// Changes a key while it works; a running server follows within a second
    Set {
        /// The key's id, as `key list` prints it
        id: String,
        #[command(flatten)]
        change: KeyChange,
    },
    /// Removes a key with all its secrets; a running server refuses it within a second
    Revoke {
        /// The key's id, as `key list` prints it
        id: String,
    },
    /// Reads a key from stdin and prints the digest to put into a key file
    Hash,
}

impl KeyCommand {
    pub(super) async fn run(self, records: &Records, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            KeyCommand::Create { input, json } => {
                let issued = key::create(records, input).await?;
                let id = &issued.row.id;
                let secret = if json { serde_json::to_string(&issued)? } else { issued.key.clone() };
                let next_step = format!("`guildgate key revoke {id}` removes it; then create another");
                print_secret(out, &secret, &format!("key {id} was created"), &next_step)
            }
            KeyCommand::List { guild, json } => {
                let keys = key::list(records, guild.as_ref(), None, usize::MAX).await?;
                print_rows(out, json, &keys, &["id", "guild", "tier", "scope", "expires", "last_used", "name"])
            }
            KeyCommand::Show { id, json } => {
                let fields =
                    ["id", "name", "guild", "tier", "scope", "created", "expires", "last_used", "previous_until"];
                print_row(out, json, &key::show(records, &id).await?, &fields)
            }
            KeyCommand::Rotate { id, rotation } => {
                let issued = key::rotate(records, &id, rotation).await?;
                let next_step =
                    format!("`guildgate key rotate {id}` makes another, and ends the one that callers have at once");
                print_secret(out, &issued.key, &format!("key {id} was rotated"), &next_step)
            }
            KeyCommand::Set { id, change } => Ok(key::change(records, &id, change).await.map(drop)?),
            KeyCommand::Revoke { id } => Ok(records.store.revoke_key(&id).await?),
            KeyCommand::Find(_) | KeyCommand::Hash => Ok(()), // see `Command::run`: they may need no store
        }
    }
}

/// Reads a key and prints what is known of it; fails if nobody has it. `store`: that of the keys or of their guilds.
pub(super) async fn find(
    config: &Config,
    store: Option<&Store>,
    input: &mut dyn Read,
    json: JsonArg,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let digest = read_key(input)?;
    let found = key::find(config, store, digest, Clock::system().unix()).await?;
    print_row(out, json, &found, &["id", "guild", "tier", "scope", "expires", "wrong"])
}

/// Reads a key and prints its digest, as a key file expects it.
pub(super) fn hash(input: &mut dyn Read, out: &mut dyn Write) -> Result<(), CommandError> {
    Ok(writeln!(out, "{}", read_key(input)?)?)
}

/// The digest of a key that is typed.
fn read_key(input: &mut dyn Read) -> Result<Digest, CommandError> {
    let key = secret::read("stdin", input).map_err(CommandError::new)?;
    let key = key.as_bytes();
    if is_mistyped(key) {
        return Err(CommandError::new(
            "the key on stdin begins with gg_ and its checksum is wrong, so every request with it would be refused: \
             it was mistyped or changed on the way; copy it again",
        ));
    }
    Ok(Digest::of(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::TestStore;
    use crate::keys::ApiKey;

    fn hashed(input: &str) -> Result<String, String> {
        let mut out = Vec::new();
        hash(&mut input.as_bytes(), &mut out).map_err(|e| e.to_string())?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_key_is_hashed_without_its_line_end_unless_it_is_mistyped_or_not_one() {
        let digest = "sha256:6e3b0e6bd28267dc94feba47229b4cb749cbd6685ee8286fb8cd82d4dea99790\n";
        assert_eq!(hashed("some key\r\n").unwrap(), digest);
        assert_eq!(hashed("some key").unwrap(), digest);
        for input in ["", "\n", "one\ntwo\n"] {
            assert!(hashed(input).is_err());
        }
        let key = ApiKey::generate().unwrap().reveal().to_owned();
        hashed(&key).unwrap();
        let mistyped = format!("{}{}", &key[..51], if key.ends_with('a') { 'b' } else { 'a' });
        let message = hashed(&mistyped).unwrap_err();
        assert!(message.contains("checksum") && !message.contains(&mistyped[3..]), "{message}");
        // What only looks like one.
        for other_service in [&key[..51], &format!("{key}a"), &format!("gg_{}", "-".repeat(49))] {
            hashed(other_service).unwrap();
        }
    }

    /// An output to which nothing can be written, like a full disk.
    struct FullOutput;

    impl Write for FullOutput {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_key_that_cannot_be_printed_is_named_by_its_id() {
        let store = TestStore::new().await;
        store.run("guild add 81 --name Night~Watch").await.unwrap();
        let message = store.run_into("key create --guild 81", &mut FullOutput).await.unwrap_err().to_string();
        let id = store.records.store.keys().await.unwrap().remove(0).id;
        let outcome = format!("key {id} was created, but the secret could not be printed");
        assert!(message.starts_with(&outcome), "{message}");
        assert!(message.contains(&format!("`guildgate key revoke {id}`")) && !message.contains("gg_"), "{message}");
        let message = store.run_into(&format!("key rotate {id}"), &mut FullOutput).await.unwrap_err().to_string();
        for part in [&format!("key {id} was rotated, "), &format!("`guildgate key rotate {id}` makes another")] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}
