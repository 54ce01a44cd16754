//! Keys, by id and never by secret: a secret is in the row of a key that was made or rotated, and nowhere else.

use std::convert::Infallible;
use std::time::Duration;

use clap::{ArgGroup, Args};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::Records;
use crate::config::expires::Expires;
use crate::config::leaf::HumanDuration;
use crate::config::{Config, Keys};
use crate::keys::{ApiKey, read_key_file};
use crate::model::{Digest, GuildId, Scope, date_of, one_line};
use crate::store::{self, KeyRecord, Store, StoreError, refusals};

/// A value that may be null; clap takes an `Option<Option<T>>` for a flag whose value may be missing.
type OrNull<T> = Option<T>;

/// A key to make.
#[derive(Clone, Debug, Args, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyInput {
    /// The guild that the key belongs to
    #[arg(long)]
    pub guild: GuildId,
    /// The key's name, for people
    #[arg(long, default_value = "")]
    #[serde(default)]
    pub name: String,
    /// A tier of [limits.tiers]; without it the default tier, whichever that is at the time
    #[arg(long)]
    pub tier: Option<String>,
    /// read or write
    #[arg(long, default_value_t)]
    #[serde(default)]
    pub scope: Scope,
    /// When it expires: 90d from now, 2026-12-24, 2026-12-24T18:00:00Z, Unix seconds, or never
    #[arg(long)]
    pub expires: Option<Expires>,
}

/// What changes; a field that is not given stays.
#[derive(Clone, Debug, Default, Args, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[command(group = ArgGroup::new("change").required(true).multiple(true))]
pub struct KeyChange {
    /// The key's name, for people
    #[arg(long, group = "change")]
    pub name: Option<String>,
    /// A tier of [limits.tiers]; null: the default tier, whichever that is at the time
    #[arg(long, group = "change", value_parser = |text: &str| Ok::<_, Infallible>(Some(text.to_owned())))]
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    pub tier: Option<OrNull<String>>,
    /// The default tier, whichever that is at the time
    #[arg(long, group = "change", conflicts_with = "tier")]
    #[serde(skip)]
    pub default_tier: bool,
    /// read or write
    #[arg(long, group = "change")]
    pub scope: Option<Scope>,
    /// When it expires: 90d from now, 2026-12-24, 2026-12-24T18:00:00Z, Unix seconds, or never
    #[arg(long, group = "change", value_parser = |text: &str| text.parse::<Expires>().map(Some))]
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Expires>)]
    pub expires: Option<OrNull<Expires>>,
}

/// How a key is rotated.
#[derive(Clone, Debug, Default, Args, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rotation {
    /// How long the old secret works beside the new one: 90s, 24h (if it is not given), 30d; 0s ends it at once
    #[arg(long, value_name = "DURATION")]
    pub overlap: Option<HumanDuration>,
}

/// How long the old secret works, where a rotation does not say.
const OVERLAP: HumanDuration = HumanDuration::secs(86_400);

/// A key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub struct KeyRow {
    pub id: String,
    pub name: String,
    pub guild: GuildId,
    /// The default tier where the key names none.
    pub tier: String,
    pub scope: Scope,
    /// Unix seconds, as the times below.
    pub created: i64,
    pub expires: Option<i64>,
    pub last_used: Option<i64>,
    /// Until when the secret before the last rotation works.
    pub previous_until: Option<i64>,
}

/// A key with its secret, which nothing shows again.
#[derive(Debug, Serialize, ToSchema)]
pub struct IssuedKey {
    #[serde(flatten)]
    pub row: KeyRow,
    /// The secret.
    pub key: String,
}

/// What is known of a secret.
#[derive(Debug, Serialize)]
pub struct FoundKey {
    pub id: String,
    pub guild: GuildId,
    pub tier: String,
    pub scope: Scope,
    pub expires: Option<i64>,
    /// Why requests with it are refused; empty: they are not.
    pub wrong: Vec<String>,
}

/// A field that is null or has a value, if it is given at all.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

impl KeyRow {
    fn new(records: &Records, key: KeyRecord) -> Self {
        let now = records.clock.unix();
        KeyRow {
            previous_until: key.previous_ends().filter(|ends| *ends > now),
            id: key.id.to_string(),
            name: key.name,
            guild: key.guild,
            tier: key.tier.unwrap_or_else(|| records.config.limits.default_tier.name.clone()),
            scope: key.scope,
            created: key.created,
            expires: key.expires,
            last_used: key.last_used,
        }
    }
}

/// The keys of a guild, or all, by id: so many after the id `after`.
pub async fn list(
    records: &Records,
    guild: Option<&GuildId>,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<KeyRow>, StoreError> {
    let keys = records.store.keys_page(guild, after, limit).await?;
    if let (Some(id), true) = (guild, keys.is_empty()) {
        super::guild::show(records, id).await?; // or it is unknown
    }
    Ok(keys.into_iter().map(|key| KeyRow::new(records, key)).collect())
}

pub async fn show(records: &Records, id: &str) -> Result<KeyRow, StoreError> {
    let key = records.store.key(id).await?;
    Ok(KeyRow::new(records, key.ok_or_else(|| refusals::unknown_key(id))?))
}

pub async fn create(records: &Records, input: KeyInput) -> Result<IssuedKey, StoreError> {
    let KeyInput { guild, name, tier, scope, expires } = input;
    check_tier(records, tier.as_deref())?;
    let expires = expires.map(|expires| records.end(expires)).transpose()?.flatten();
    let key = ApiKey::generate().map_err(StoreError::Failed)?;
    let record = KeyRecord {
        id: random_id().into(),
        name: one_line(&name).into_owned(), // as the store keeps it
        guild,
        digest: key.digest(),
        tier,
        scope,
        created: records.clock.unix(),
        expires,
        last_used: None,
        previous: None,
    };
    records.store.create_key(record.clone()).await?;
    Ok(IssuedKey { row: KeyRow::new(records, record), key: key.reveal().to_owned() })
}

pub async fn change(records: &Records, id: &str, change: KeyChange) -> Result<KeyRow, StoreError> {
    let KeyChange { name, tier, default_tier, scope, expires } = change;
    let tier = if default_tier { Some(None) } else { tier };
    check_tier(records, tier.as_ref().and_then(|tier| tier.as_deref()))?;
    let end = |expires: Option<Expires>| expires.map_or(Ok(None), |expires| records.end(expires));
    let expires = expires.map(end).transpose()?;
    let changed = records.store.set_key(id, store::KeyChange { name, tier, scope, expires }).await?;
    Ok(KeyRow::new(records, changed))
}

/// Gives a key another secret; the old one works for the overlap.
pub async fn rotate(records: &Records, id: &str, rotation: Rotation) -> Result<IssuedKey, StoreError> {
    let overlap = rotation.overlap.unwrap_or(OVERLAP).0;
    let key = ApiKey::generate().map_err(StoreError::Failed)?;
    let until = (!overlap.is_zero()).then(|| end_of(overlap, records.clock.unix_ms()));
    let rotated = records.store.rotate_key(id, key.digest(), until, records.clock.unix()).await?;
    Ok(IssuedKey { row: KeyRow::new(records, rotated), key: key.reveal().to_owned() })
}

/// The key with this secret, of the store or the key file. `store`: that of the keys, or of their guilds.
pub async fn find(config: &Config, store: Option<&Store>, secret: Digest, now: i64) -> Result<FoundKey, StoreError> {
    let mut wrong = Vec::new();
    let found = match (&config.keys, store) {
        (Keys::File(path), _) => {
            let mut keys = read_key_file(path).map_err(|e| StoreError::Refused(e.to_string()))?.into_iter();
            let key = keys.find(|key| key.digest == secret);
            key.map(|key| (key.id, key.guild, key.tier.map(|tier| tier.to_string()), key.scope, key.expires))
        }
        (Keys::Store, Some(store)) => store.key_of(secret).await?.map(|key| {
            let expires = if key.digest == secret { key.expires } else { key.previous_ends() };
            (key.id, key.guild, key.tier, key.scope, expires)
        }),
        (Keys::Store, None) | (Keys::Origin { .. }, _) => {
            return Err(StoreError::Refused("only the origin knows the keys (keys.source = \"origin\")".to_owned()));
        }
    };
    let unknown = "no key has this secret: it was never made here, or was revoked, or rotated away";
    let (id, guild, tier, scope, expires) = found.ok_or_else(|| StoreError::Refused(unknown.to_owned()))?;
    if let Some(ended) = expires.filter(|ends| *ends <= now) {
        wrong.push(format!("it expired at {}, or was rotated and this secret ended then (02)", date_of(ended)));
    }
    if let Some(store) = store {
        match store.guild(&guild).await? {
            Some(guild) if guild.departed => {
                wrong.push(format!("the bot has left guild {0} (03); `guildgate guild return {0}`", guild.id));
            }
            Some(_) => {}
            None => wrong.push(format!("guild {guild} is not in the store (03)")),
        }
    }
    let tier = tier.unwrap_or_else(|| config.limits.default_tier.name.clone());
    Ok(FoundKey { id: id.to_string(), guild, tier, scope, expires, wrong })
}

/// `k_` and 8 letters or digits. It is a name and no secret. The store refuses one that is taken.
fn random_id() -> String {
    "k_".chars().chain((0..8).map(|_| fastrand::alphanumeric().to_ascii_lowercase())).collect()
}

/// Refuses a tier that the configuration does not have; `None` is the default tier.
fn check_tier(records: &Records, tier: Option<&str>) -> Result<(), StoreError> {
    let tiers = &records.config.limits.tiers;
    match tier {
        Some(tier) if tiers.iter().all(|t| t.name != tier) => {
            let there: Vec<&str> = tiers.iter().map(|t| t.name.as_str()).collect();
            Err(StoreError::Refused(format!("there is no tier '{tier}'; there is {}", there.join(", "))))
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
