//! Makes keys and gives them other secrets, for the commands and the admin API alike: an id, a tier that the
//! configuration has, and an overlap that lasts as long as it says. The secret is returned once and kept nowhere.

use std::time::Duration;

use super::ApiKey;
use crate::clock::Clock;
use crate::config::Limits;
use crate::model::{GuildId, Scope, one_line};
use crate::store::{KeyRecord, Store, StoreError};

/// A key that is to be made.
#[derive(Clone, Debug)]
pub struct NewKey {
    pub guild: GuildId,
    pub name: String,
    /// `None`: the default tier, whichever that is at the time.
    pub tier: Option<String>,
    pub scope: Scope,
    /// Unix seconds.
    pub expires: Option<i64>,
}

/// Why a key could not be made or changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum IssueError {
    #[error("there is no tier '{tier}'; there is {there}")]
    UnknownTier { tier: String, there: String },
    #[error("{0}")]
    NoRandomness(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl NewKey {
    /// Makes the key at `now` (Unix seconds). Returns what is stored of it, and its secret.
    ///
    /// # Errors
    /// A tier or a guild that does not exist, or a store that fails.
    pub async fn issue(self, store: &Store, limits: &Limits, now: i64) -> Result<(KeyRecord, ApiKey), IssueError> {
        check_tier(self.tier.as_deref(), limits)?;
        let key = ApiKey::generate().map_err(IssueError::NoRandomness)?;
        let record = KeyRecord {
            id: random_id().into(),
            name: one_line(&self.name).into_owned(), // as the store keeps it
            guild: self.guild,
            digest: key.digest(),
            tier: self.tier,
            scope: self.scope,
            created: now,
            expires: self.expires,
            last_used: None,
            previous: None,
        };
        store.create_key(record.clone()).await?;
        Ok((record, key))
    }
}

/// `k_` and 8 letters or digits. It is a name and no secret. The store refuses one that is taken.
fn random_id() -> String {
    "k_".chars().chain((0..8).map(|_| fastrand::alphanumeric().to_ascii_lowercase())).collect()
}

/// Gives a key another secret; the one before works for `overlap`. Returns the new one, and when the one before ends in
/// Unix seconds; `None`: it has ended.
///
/// # Errors
/// A key that does not exist or has expired, or a store that fails.
pub async fn rotate(
    store: &Store,
    id: &str,
    overlap: Duration,
    clock: &Clock,
) -> Result<(ApiKey, Option<i64>), IssueError> {
    let key = ApiKey::generate().map_err(IssueError::NoRandomness)?;
    let until = (!overlap.is_zero()).then(|| end_of(overlap, clock.unix_ms()));
    store.rotate_key(id, key.digest(), until, clock.unix()).await?;
    Ok((key, until))
}

/// Refuses a tier that the configuration does not have; `None` is the default tier.
///
/// # Errors
/// Which tiers there are.
pub fn check_tier(tier: Option<&str>, limits: &Limits) -> Result<(), IssueError> {
    match tier {
        Some(tier) if limits.tiers.iter().all(|t| t.name != tier) => {
            let there: Vec<&str> = limits.tiers.iter().map(|t| t.name.as_str()).collect();
            Err(IssueError::UnknownTier { tier: tier.to_owned(), there: there.join(", ") })
        }
        Some(_) | None => Ok(()),
    }
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
