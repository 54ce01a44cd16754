//! `key rotate` and `key set`: what becomes of a key while it works.

use std::time::Duration;

use clap::{ArgGroup, Args};

use super::error::CommandError;
use super::expires::Ends;
use crate::clock::Clock;
use crate::config::Limits;
use crate::config::leaf::HumanDuration;
use crate::keys::ApiKey;
use crate::model::Scope;
use crate::store::{AnyStore, Directory, KeyChange};

/// What would come of a key whose end is not in the future.
pub(super) const ENDED: &str = "such a key would be refused at once";

#[derive(Debug, Args)]
pub struct RotateArgs {
    /// The key's id, as `key list` prints it
    pub(super) id: String,
    /// How long the old secret works beside the new one: 90s, 24h, 30d; 0s ends it at once
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    pub(super) overlap: HumanDuration,
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
    /// What people call it
    #[arg(long, group = "change")]
    name: Option<String>,
    /// When it ends: 90d from now, 2026-12-24, 2026-12-24T18:00:00Z, Unix seconds, or never
    #[arg(long, group = "change")]
    expires: Option<Ends>,
}

/// A key that has another secret now.
pub(super) struct Rotated {
    pub(super) id: String,
    pub(super) key: ApiKey,
    /// When the secret before ends, in Unix seconds; `None` where it has ended.
    pub(super) until: Option<i64>,
}

impl RotateArgs {
    pub(super) async fn rotate(self, store: &AnyStore) -> Result<Rotated, CommandError> {
        let clock = Clock::system();
        let key = ApiKey::generate().map_err(CommandError::new)?;
        let until = (!self.overlap.0.is_zero()).then(|| end_of(self.overlap.0, clock.unix_ms()));
        store.rotate_key(&self.id, key.digest(), until, clock.unix()).await?;
        Ok(Rotated { id: self.id, key, until })
    }
}

impl SetArgs {
    pub(super) async fn set(self, store: &AnyStore, limits: &Limits) -> Result<(), CommandError> {
        self.tier.as_deref().map_or(Ok(()), |tier| known_tier(tier, limits))?;
        let now = Clock::system().unix();
        let expires = match self.expires {
            Some(Ends::At(time)) => Some(Some(time.still_to_come(now, ENDED)?)),
            Some(Ends::Never) => Some(None),
            None => None,
        };
        let tier = if self.default_tier { Some(None) } else { self.tier.map(Some) };
        Ok(store.set_key(&self.id, KeyChange { name: self.name, tier, scope: self.scope, expires }).await?)
    }
}

/// Refuses a tier that the configuration does not have.
pub(super) fn known_tier(tier: &str, limits: &Limits) -> Result<(), CommandError> {
    if limits.tiers.iter().any(|t| t.name == tier) {
        return Ok(());
    }
    let there: Vec<&str> = limits.tiers.iter().map(|t| t.name.as_str()).collect();
    Err(CommandError::new(format!("there is no tier '{tier}'; there is {}", there.join(", "))))
}

/// The first whole Unix second at which so much time has passed since `now_ms`: what is to last a
/// while lasts it.
fn end_of(overlap: Duration, now_ms: i64) -> i64 {
    let ends = now_ms.saturating_add(i64::try_from(overlap.as_millis()).unwrap_or(i64::MAX));
    ends.div_euclid(1000) + i64::from(ends.rem_euclid(1000) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_is_never_shorter_than_it_says() {
        for (overlap, now_ms, end) in
            [(2000, 1_000_000, 1002), (2000, 1_000_001, 1003), (1, 1_000_999, 1001), (1, 0, 1)]
        {
            assert_eq!(end_of(Duration::from_millis(overlap), now_ms), end, "{overlap} ms from {now_ms}");
        }
    }
}
