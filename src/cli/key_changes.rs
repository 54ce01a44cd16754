//! `key create`, `key rotate` and `key set`: the commands that write keys to the store.

use std::collections::HashSet;
use std::io::Write;
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::error::CommandError;
use super::expires::{Expires, ExpiresOrNever};
use super::keys::KeyRow;
use super::output::print_secret;
use crate::clock::Clock;
use crate::config::Limits;
use crate::config::leaf::HumanDuration;
use crate::keys::ApiKey;
use crate::model::{GuildId, Scope, date_of};
use crate::store::{AnyStore, Directory, KeyChange, KeyRecord};

/// Why `--expires` has to be in the future.
const EXPIRED: &str = "such a key would be refused at once";

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The guild that the key belongs to
    #[arg(long)]
    guild: GuildId,
    /// The key's name, for people
    #[arg(long, default_value = "")]
    name: String,
    /// A tier of [limits.tiers]; without it the default tier, whichever that is at the time
    #[arg(long)]
    tier: Option<String>,
    /// read or write
    #[arg(long, default_value_t)]
    scope: Scope,
    /// When it expires: 90d from now, 2026-12-24, 2026-12-24T18:00:00Z, or Unix seconds
    #[arg(long)]
    expires: Option<Expires>,
    /// Prints one JSON object: the key, and what `key show` prints
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct RotateArgs {
    /// The key's id, as `key list` prints it
    id: String,
    /// How long the old secret works beside the new one: 90s, 24h, 30d; 0s ends it at once
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    overlap: HumanDuration,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("change").required(true).multiple(true))]
pub struct SetArgs {
    /// The key's id, as `key list` prints it
    id: String,
    /// A tier of [limits.tiers]
    #[arg(long, group = "change")]
    tier: Option<String>,
    /// The default tier, whichever that is at the time
    #[arg(long, group = "change", conflicts_with = "tier")]
    default_tier: bool,
    /// read or write
    #[arg(long, group = "change")]
    scope: Option<Scope>,
    /// The key's name, for people
    #[arg(long, group = "change")]
    name: Option<String>,
    /// When it expires: 90d from now, 2026-12-24, 2026-12-24T18:00:00Z, Unix seconds, or never
    #[arg(long, group = "change")]
    expires: Option<ExpiresOrNever>,
}

impl CreateArgs {
    /// Makes a key and prints it.
    pub(super) async fn run(self, store: &AnyStore, limits: &Limits, out: &mut dyn Write) -> Result<(), CommandError> {
        check_tier(self.tier.as_deref(), limits)?;
        let now = Clock::system().unix();
        let expires = self.expires.map(|expires| expires.in_future(now, EXPIRED)).transpose()?;
        let key = ApiKey::generate().map_err(CommandError::new)?;
        let taken: HashSet<_> = store.keys().await?.into_iter().map(|key| key.id).collect();
        let id = free_id(|id| taken.contains(id));
        let record = KeyRecord {
            id: id.as_str().into(),
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
        let mut row = KeyRow::new(&record, limits);
        row.key = Some(key.reveal());
        let secret = if self.json { serde_json::to_string(&row)? } else { key.reveal().to_owned() };
        let next_step = format!("`guildgate key revoke {id}` removes it; then create another");
        print_secret(out, &secret, &format!("key {id} was created"), &next_step)
    }
}

impl RotateArgs {
    /// Gives a key another secret and prints it.
    pub(super) async fn run(self, store: &AnyStore, out: &mut dyn Write) -> Result<(), CommandError> {
        let RotateArgs { id, overlap } = self;
        let clock = Clock::system();
        let key = ApiKey::generate().map_err(CommandError::new)?;
        let until = (!overlap.0.is_zero()).then(|| end_of(overlap.0, clock.unix_ms()));
        store.rotate_key(&id, key.digest(), until, clock.unix()).await?;
        let previous = match until {
            Some(end) => {
                format!(
                    "the previous secret works until {} at the latest, and not after another rotation",
                    date_of(end)
                )
            }
            None => "no other secret works".to_owned(),
        };
        let next_step = format!("{previous}; `guildgate key rotate {id}` makes another");
        print_secret(out, key.reveal(), &format!("key {id} was rotated"), &next_step)
    }
}

impl SetArgs {
    pub(super) async fn run(self, store: &AnyStore, limits: &Limits) -> Result<(), CommandError> {
        check_tier(self.tier.as_deref(), limits)?;
        let now = Clock::system().unix();
        let expires = match self.expires {
            Some(ExpiresOrNever::At(time)) => Some(Some(time.in_future(now, EXPIRED)?)),
            Some(ExpiresOrNever::Never) => Some(None),
            None => None,
        };
        let tier = if self.default_tier { Some(None) } else { self.tier.map(Some) };
        Ok(store.set_key(&self.id, KeyChange { name: self.name, tier, scope: self.scope, expires }).await?)
    }
}

/// Refuses a tier that the configuration does not have.
fn check_tier(tier: Option<&str>, limits: &Limits) -> Result<(), CommandError> {
    let names: Vec<&str> = limits.tiers.iter().map(|t| t.name.as_str()).collect();
    match tier {
        Some(tier) if !names.contains(&tier) => {
            Err(CommandError::new(format!("there is no tier '{tier}'; there is {}", names.join(", "))))
        }
        _ => Ok(()),
    }
}

/// A new id: `k_` and 8 letters or digits. It is a name and no secret.
fn free_id(is_taken: impl Fn(&str) -> bool) -> String {
    loop {
        let id: String = "k_".chars().chain((0..8).map(|_| fastrand::alphanumeric().to_ascii_lowercase())).collect();
        if !is_taken(&id) {
            return id;
        }
    }
}

/// The end of an overlap that begins at `now_ms`, in Unix seconds, rounded up so that it is never shorter than given.
fn end_of(overlap: Duration, now_ms: i64) -> i64 {
    let end_ms = now_ms.saturating_add(i64::try_from(overlap.as_millis()).unwrap_or(i64::MAX));
    end_ms.div_euclid(1000) + i64::from(end_ms.rem_euclid(1000) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_is_never_shorter_than_given() {
        for (overlap, now_ms, end) in
            [(2000, 1_000_000, 1002), (2000, 1_000_001, 1003), (1, 1_000_999, 1001), (1, 0, 1)]
        {
            assert_eq!(end_of(Duration::from_millis(overlap), now_ms), end, "{overlap} ms from {now_ms}");
        }
    }

    #[test]
    fn an_id_that_is_taken_is_not_used_again() {
        let calls = std::cell::Cell::new(0);
        let id = free_id(|_| {
            calls.set(calls.get() + 1);
            calls.get() < 3
        });
        assert_eq!((calls.get(), id.len()), (3, 10));
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
        let folder = tempfile::tempdir().unwrap();
        let store: AnyStore = crate::store::SqliteStore::open(folder.path().join("store.db")).unwrap().into();
        let guild: GuildId = "81".parse().unwrap();
        store.add_guild(&guild, "Night Watch").await.unwrap();
        let loaded = crate::config::load_str("", folder.path(), "test");
        let limits = loaded.unwrap_or_else(|faults| panic!("{faults}")).config.limits;
        let create =
            CreateArgs { guild, name: String::new(), tier: None, scope: Scope::Read, expires: None, json: false };
        let message = create.run(&store, &limits, &mut FullOutput).await.unwrap_err().message;
        let id = store.keys().await.unwrap().remove(0).id;
        let outcome = format!("key {id} was created, but the secret could not be printed");
        assert!(message.starts_with(&outcome), "{message}");
        assert!(message.contains(&format!("`guildgate key revoke {id}`")) && !message.contains("gg_"), "{message}");
        for (overlap, previous) in [("24h", "the previous secret works until 2"), ("0s", "no other secret works")] {
            let rotate = RotateArgs { id: id.to_string(), overlap: overlap.parse().unwrap() };
            let message = rotate.run(&store, &mut FullOutput).await.unwrap_err().message;
            for part in [&format!("key {id} was rotated, "), previous, &format!("`guildgate key rotate {id}` makes")] {
                assert!(message.contains(part), "{part}: {message}");
            }
        }
    }
}
