//! `guildgate key`: creates, lists, shows and revokes keys in the store, and hashes a key for a key file (`rotate` and
//! `set` are in `key_life`). A key is printed once, when it is made, and is stored as a digest only; afterwards it is
//! named by its id. A running server learns of the change from the store's change feed.

use std::collections::HashSet;
use std::io::{Read, Write};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::error::CommandError;
use super::expires::Expires;
use super::key_life::{ENDED, RotateArgs, Rotated, SetArgs, known_tier};
use super::told::hand_out;
use crate::clock::Clock;
use crate::config::Limits;
use crate::files::read_at_most;
use crate::keys::{ApiKey, is_mistyped};
use crate::model::{Digest, GuildId, Scope, date_of};
use crate::store::{AnyStore, Directory, KeyRecord};

/// The longest key that `key hash` takes; a header has no room for more.
const MAX_KEY: u64 = 16 * 1024;

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Makes a key and prints it, alone and once; the store keeps its digest only
    Create(CreateArgs),
    /// Lists the keys
    List {
        /// Only this guild's
        #[arg(long)]
        guild: Option<GuildId>,
        /// Prints one JSON array, times as Unix seconds
        #[arg(long)]
        json: bool,
    },
    /// Shows one key
    Show {
        /// The key's id, as `key list` prints it
        id: String,
        /// Prints one JSON object, times as Unix seconds
        #[arg(long)]
        json: bool,
    },
    /// Gives a key another secret and prints it, alone and once; id, tier, scope and budget stay
    Rotate(RotateArgs),
    /// Changes a key while it works; a running server follows within a second
    Set(SetArgs),
    /// Takes a key away, both secrets of a rotated one; a running server refuses it within a second
    Revoke {
        /// The key's id, as `key list` prints it
        id: String,
    },
    /// Reads a key from stdin and prints the digest to put into a key file
    Hash,
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The guild that the key speaks for
    #[arg(long)]
    guild: GuildId,
    /// What people call it
    #[arg(long, default_value = "")]
    name: String,
    /// A tier of [limits.tiers]; without it the default one, whichever that is at the time
    #[arg(long)]
    tier: Option<String>,
    /// read or write
    #[arg(long, default_value_t)]
    scope: Scope,
    /// When it ends: 90d from now, 2026-12-24, 2026-12-24T18:00:00Z, or Unix seconds
    #[arg(long)]
    expires: Option<Expires>,
    /// Prints one JSON object: the key, and what `key show` tells of it
    #[arg(long)]
    json: bool,
}

/// A key as it is handed out, once.
#[derive(Serialize)]
struct Created<'k> {
    #[serde(flatten)]
    line: Line<'k>,
    key: &'k str,
}

/// A key as it is listed, by id and never by key.
#[derive(Serialize)]
struct Line<'k> {
    id: &'k str,
    name: &'k str,
    guild: &'k GuildId,
    tier: &'k str,
    scope: Scope,
    created: i64,
    expires: Option<i64>,
    last_used: Option<i64>,
    /// Only where one key is shown whose secret before the last one still works.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_until: Option<i64>,
}

impl KeyCommand {
    pub(super) async fn run(self, store: &AnyStore, limits: &Limits, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            KeyCommand::Create(args) => {
                let json = args.json;
                let (record, key) = args.create(store, limits).await?;
                let id = &record.id;
                let created = Created { line: line(&record, limits), key: key.reveal() };
                let secret = if json { serde_json::to_string(&created)? } else { key.reveal().to_owned() };
                let next = format!("`guildgate key revoke {id}` takes it away; then make another");
                hand_out(out, &secret, &format!("key {id} was made"), &next)?;
            }
            KeyCommand::List { guild, json } => {
                let keys = store.keys().await?;
                let lines: Vec<Line<'_>> = keys.iter().map(|key| line(key, limits)).collect();
                let lines = of_guild(store, lines, guild).await?;
                if json {
                    writeln!(out, "{}", serde_json::to_string(&lines)?)?;
                } else {
                    lines.iter().try_for_each(|line| writeln!(out, "{}", line.row()))?;
                }
            }
            KeyCommand::Show { id, json } => {
                let keys = store.keys().await?;
                let key = keys.iter().find(|key| *key.id == *id).ok_or_else(|| {
                    CommandError::new(format!("there is no key '{id}'; `guildgate key list` prints the ids"))
                })?;
                let now = Clock::system().unix();
                let previous_until = key.previous_ends().filter(|ends| *ends > now);
                let line = Line { previous_until, ..line(key, limits) };
                if json {
                    writeln!(out, "{}", serde_json::to_string(&line)?)?;
                } else {
                    writeln!(out, "{}", line.page())?;
                }
            }
            KeyCommand::Rotate(args) => {
                let Rotated { id, key, until } = args.rotate(store).await?;
                let before = match until {
                    Some(_) => format!(
                        "the one before works until {} at the latest, and not after another rotation",
                        when(until)
                    ),
                    None => "no other works".to_owned(),
                };
                let next = format!("{before}; `guildgate key rotate {id}` makes another");
                hand_out(out, key.reveal(), &format!("key {id} was rotated"), &next)?;
            }
            KeyCommand::Set(args) => args.set(store, limits).await?,
            KeyCommand::Revoke { id } => store.revoke_key(&id).await?,
            KeyCommand::Hash => hash(&mut std::io::stdin().lock(), out)?,
        }
        Ok(())
    }
}

impl CreateArgs {
    /// Answers what is stored of the key, and the key.
    async fn create(self, store: &AnyStore, limits: &Limits) -> Result<(KeyRecord, ApiKey), CommandError> {
        self.tier.as_deref().map_or(Ok(()), |tier| known_tier(tier, limits))?;
        let now = Clock::system().unix();
        let expires = self.expires.map(|expires| expires.still_to_come(now, ENDED)).transpose()?;
        let key = ApiKey::generate().map_err(CommandError::new)?;
        let taken: HashSet<_> = store.keys().await?.into_iter().map(|key| key.id).collect();
        let id = free_id(|id| taken.contains(id));
        let record = KeyRecord {
            id: id.into(),
            name: self.name,
            guild: self.guild,
            digest: key.digest(),
            tier: self.tier,
            scope: self.scope,
            created: now,
            expires,
            last_used: None,
            previous: None,
        };
        store.create_key(record.clone()).await?;
        Ok((record, key))
    }
}

/// Those of one guild, where one is asked for; a guild that is not there is refused.
async fn of_guild<'k>(
    store: &AnyStore,
    mut lines: Vec<Line<'k>>,
    guild: Option<GuildId>,
) -> Result<Vec<Line<'k>>, CommandError> {
    let Some(guild) = guild else { return Ok(lines) };
    lines.retain(|line| *line.guild == guild);
    if lines.is_empty() && !store.guilds().await?.iter().any(|there| there.id == guild) {
        return Err(CommandError::new(format!(
            "guild {guild} is not in the store; `guildgate guild list` shows those there are"
        )));
    }
    Ok(lines)
}

/// An id that is not taken: `k_` and 8 letters or digits. It is a name and no secret.
fn free_id(taken: impl Fn(&str) -> bool) -> String {
    loop {
        let id: String = "k_".chars().chain((0..8).map(|_| fastrand::alphanumeric().to_ascii_lowercase())).collect();
        if !taken(&id) {
            return id;
        }
    }
}

/// Reads a key and prints its digest, as a key file wants it.
pub(super) fn hash(input: &mut dyn Read, out: &mut dyn Write) -> Result<(), CommandError> {
    let several = || CommandError::new("stdin holds more than one key; write one key, on one line");
    let text = read_at_most(input, MAX_KEY).map_err(|e| CommandError::new(format!("stdin cannot be read: {e}")))?;
    let text = text.ok_or_else(several)?;
    let key = text.trim_ascii_end();
    if key.is_empty() {
        return Err(CommandError::new("stdin is empty; write the key to it, as in: guildgate key hash < key.txt"));
    }
    if key.iter().any(|b| b.is_ascii_control()) {
        return Err(several());
    }
    if is_mistyped(key) {
        return Err(CommandError::new(
            "the key on stdin begins with gg_ and its checksum is wrong, so every request with it would be refused: \
             it was mistyped or changed on the way; copy it again",
        ));
    }
    writeln!(out, "{}", Digest::of(key))?;
    Ok(())
}

fn line<'k>(key: &'k KeyRecord, limits: &'k Limits) -> Line<'k> {
    Line {
        id: &key.id,
        name: &key.name,
        guild: &key.guild,
        tier: key.tier.as_deref().unwrap_or(&limits.default_tier.name),
        scope: key.scope,
        created: key.created,
        expires: key.expires,
        last_used: key.last_used,
        previous_until: None,
    }
}

impl Line<'_> {
    fn row(&self) -> String {
        let Line { id, name, guild, tier, scope, .. } = self;
        let (expires, used) = (when(self.expires), when(self.last_used));
        format!("{id}  guild={guild} tier={tier} scope={scope} expires={expires} last_used={used} {name}")
            .trim_end()
            .to_owned()
    }

    fn page(&self) -> String {
        let Line { id, name, guild, tier, scope, .. } = self;
        let (created, expires, used) = (when(Some(self.created)), when(self.expires), when(self.last_used));
        let mut page = format!(
            "id         {id}\nname       {name}\nguild      {guild}\ntier       {tier}\nscope      {scope}\n\
             created    {created}\nexpires    {expires}\nlast used  {used}"
        );
        if self.previous_until.is_some() {
            page += &format!("\nrotated    the previous secret works until {}", when(self.previous_until));
        }
        page
    }
}

fn when(unix: Option<i64>) -> String {
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
    fn what_is_not_one_key_is_not_hashed() {
        for input in [&b""[..], b"\n", b"one\ntwo\n"] {
            assert!(hash(&mut &*input, &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn an_id_that_is_taken_is_not_given_again() {
        let mut asked = 0;
        let asked = std::cell::RefCell::new(&mut asked);
        let id = free_id(|_| {
            **asked.borrow_mut() += 1;
            **asked.borrow() < 3
        });
        assert_eq!((**asked.borrow(), id.len()), (3, 10));
    }

    /// Takes nothing, as a full disk.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_key_that_cannot_be_printed_is_told_of_by_its_id() {
        let folder = tempfile::tempdir().unwrap();
        let store: AnyStore = crate::store::SqliteStore::open(folder.path().join("store.db")).unwrap().into();
        let guild: GuildId = "81".parse().unwrap();
        store.add_guild(&guild, "Night Watch").await.unwrap();
        let loaded = crate::config::load_str("", folder.path(), "test");
        let limits = loaded.unwrap_or_else(|faults| panic!("{faults}")).config.limits;
        let create =
            CreateArgs { guild, name: String::new(), tier: None, scope: Scope::Read, expires: None, json: false };
        let said = KeyCommand::Create(create).run(&store, &limits, &mut Full).await.unwrap_err().message;
        let id = store.keys().await.unwrap().remove(0).id;
        assert!(said.starts_with(&format!("key {id} was made; only the secret could not be printed")), "{said}");
        assert!(said.contains(&format!("`guildgate key revoke {id}`")) && !said.contains("gg_"), "{said}");
        for (overlap, before) in [("24h", "the one before works until 2"), ("0s", "no other works")] {
            let rotate = KeyCommand::Rotate(RotateArgs { id: id.to_string(), overlap: overlap.parse().unwrap() });
            let said = rotate.run(&store, &limits, &mut Full).await.unwrap_err().message;
            for word in [&format!("key {id} was rotated; "), before, &format!("`guildgate key rotate {id}` makes")] {
                assert!(said.contains(word), "{word}: {said}");
            }
        }
    }
}
