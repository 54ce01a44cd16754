//! The messages of a store that refuses a change, the same for both kinds.

use std::fmt::Display;

use super::StoreError;
use crate::model::{GuildId, MAX_MEMBER_NAME, MemberId, RATINGS};

pub(super) fn refused(why: String) -> StoreError {
    StoreError::Refused(why)
}

/// Refuses if a statement found nothing to change.
pub(super) fn changed(rows: usize, refusal: impl FnOnce() -> StoreError) -> Result<(), StoreError> {
    if rows > 0 { Ok(()) } else { Err(refusal()) }
}

/// There is no store at `location`.
pub(super) fn no_store(location: impl Display) -> StoreError {
    refused(format!(
        "there is no store at {location}; `guildgate guild add`, `guildgate import` and `guildgate serve` make one there. \
         If it is elsewhere, run this in the folder of its gateway.toml, or name that file with --config"
    ))
}

pub(super) fn guild_exists(guild: &GuildId) -> StoreError {
    refused(format!("guild {guild} is in the store already; `guildgate guild list` shows it"))
}

pub(super) fn unknown_guild(guild: &GuildId) -> StoreError {
    StoreError::NotFound(format!(
        "guild {guild} is not in the store; `guildgate guild add {guild} --name NAME` adds it"
    ))
}

/// As [`unknown_guild`], where it is the guild itself that was to be changed or removed.
pub(super) fn absent_guild(guild: &GuildId) -> StoreError {
    StoreError::NotFound(format!("guild {guild} is not in the store; `guildgate guild list` shows those there are"))
}

pub(super) fn removed_meanwhile(guild: &str) -> String {
    format!(
        "guild {guild} was removed while the lines about it were read; nothing was imported. Add it with \
         `guildgate guild add {guild} --name NAME`, or give it a line of its own in the file, and import again"
    )
}

pub(super) fn key_exists(id: &str) -> StoreError {
    refused(format!("key {id} is in the store already"))
}

pub(super) fn unknown_key(id: &str) -> StoreError {
    StoreError::NotFound(format!("there is no key {id}; `guildgate key list` shows those there are"))
}

pub(super) fn expired_key(id: &str) -> StoreError {
    refused(format!(
        "key {id} has expired, and its new secret would be refused at once; \
         `guildgate key set {id} --expires 90d` lets it work again"
    ))
}

pub(super) fn secret_taken(id: &str) -> StoreError {
    refused(format!("the secret is that of key {id} already; make another one"))
}

/// Refuses a member's name that is too long.
pub(super) fn member_name(name: &str) -> Result<(), String> {
    let length = name.len();
    if length <= MAX_MEMBER_NAME {
        return Ok(());
    }
    Err(format!("a member's name is at most {MAX_MEMBER_NAME} bytes long, and this one has {length}"))
}

pub(super) fn unknown_member(guild: &GuildId, member: MemberId) -> StoreError {
    StoreError::NotFound(format!("guild {guild} has no member {member}"))
}

/// `what` is a warn or a review.
pub(super) fn unknown_record(guild: &GuildId, what: &str, id: i64) -> StoreError {
    StoreError::NotFound(format!("guild {guild} has no {what} {id}"))
}

/// Refuses a warn or a review (`what`) whose id another member has.
pub(super) fn must_be_of(
    member: MemberId,
    owner: Option<MemberId>,
    guild: &GuildId,
    (what, id): (&str, i64),
) -> Result<(), StoreError> {
    match owner {
        Some(owner) if owner != member => Err(refused(format!(
            "{what} {id} of guild {guild} is member {owner}'s; remove it there first, or use another id"
        ))),
        _ => Ok(()),
    }
}

pub(super) fn ids_used_up() -> StoreError {
    refused("the guild's ids are used up".to_owned())
}

pub(super) fn check_rating(rating: u8) -> Result<(), StoreError> {
    if RATINGS.contains(&rating) {
        return Ok(());
    }
    Err(refused(format!("a rating is {} to {}", RATINGS.start(), RATINGS.end())))
}
