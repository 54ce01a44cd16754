//! `key create`, `key rotate` and `key set`: the commands that write keys to the store.

use std::io::Write;

use clap::{ArgGroup, Args};

use super::error::CommandError;
use super::keys::KeyRow;
use super::output::print_secret;
use crate::clock::Clock;
use crate::config::Limits;
use crate::config::expires::{Expires, ExpiresOrNever};
use crate::config::leaf::HumanDuration;
use crate::keys::{NewKey, check_tier, rotate};
use crate::model::{GuildId, Scope, date_of};
use crate::store::{KeyChange, Store};

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
    pub(super) async fn run(self, store: &Store, limits: &Limits, out: &mut dyn Write) -> Result<(), CommandError> {
        let now = Clock::system().unix();
        let expires = self.expires.map(|expires| in_future(expires, now)).transpose()?;
        let CreateArgs { guild, name, tier, scope, json, .. } = self;
        let (record, key) = NewKey { guild, name, tier, scope, expires }.issue(store, limits, now).await?;
        let id = &record.id;
        let mut row = KeyRow::new(&record, limits);
        row.key = Some(key.reveal());
        let secret = if json { serde_json::to_string(&row)? } else { key.reveal().to_owned() };
        let next_step = format!("`guildgate key revoke {id}` removes it; then create another");
        print_secret(out, &secret, &format!("key {id} was created"), &next_step)
    }
}

impl RotateArgs {
    /// Gives a key another secret and prints it.
    pub(super) async fn run(self, store: &Store, out: &mut dyn Write) -> Result<(), CommandError> {
        let RotateArgs { id, overlap } = self;
        let (key, until) = rotate(store, &id, overlap.0, &Clock::system()).await?;
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
    pub(super) async fn run(self, store: &Store, limits: &Limits) -> Result<(), CommandError> {
        check_tier(self.tier.as_deref(), limits)?;
        let now = Clock::system().unix();
        let expires = match self.expires {
            Some(ExpiresOrNever::At(time)) => Some(Some(in_future(time, now)?)),
            Some(ExpiresOrNever::Never) => Some(None),
            None => None,
        };
        let tier = if self.default_tier { Some(None) } else { self.tier.map(Some) };
        Ok(store.set_key(&self.id, KeyChange { name: self.name, tier, scope: self.scope, expires }).await?)
    }
}

/// Refuses an end with which the key would be refused at once.
fn in_future(expires: Expires, now: i64) -> Result<i64, CommandError> {
    expires.in_future(now).map_err(|why| CommandError::expires(&why, EXPIRED))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let at = crate::config::StoreAt::Sqlite(folder.path().join("store.db"));
        let store = Store::open(&at, crate::store::IfMissing::Make).await.unwrap();
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
