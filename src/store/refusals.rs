//! The messages of a store that refuses a change.

use std::fmt::Display;

use super::StoreError;
use crate::model::{GuildId, MAX_MEMBER_NAME, MemberId, NoteKind};

/// There is no store at `location`.
pub(super) fn no_store(location: impl Display) -> StoreError {
    StoreError::Refused(format!(
        "there is no store at {location}; `guildgate guild add`, `guildgate import` and `guildgate serve` make one there. \
         If it is elsewhere, run this in the folder of its gateway.toml, or name that file with --config"
    ))
}

pub(super) fn guild_exists(guild: &GuildId) -> StoreError {
    StoreError::Refused(format!("guild {guild} is in the store already; `guildgate guild list` shows it"))
}

pub(crate) fn unknown_guild(guild: &GuildId) -> StoreError {
    StoreError::NotFound(format!(
        "guild {guild} is not in the store; `guildgate guild list` shows those there are, and `guildgate guild add {guild} \
         --name NAME` adds it"
    ))
}

/// A store of this schema, where `newest` is the newest one that is known.
pub(super) fn newer(location: impl Display, schema: i64, newest: i64) -> StoreError {
    StoreError::Failed(format!(
        "{location} was written by a newer Guildgate (its schema is {schema}, this one knows {newest}); run that version or a \
         later one"
    ))
}

pub(super) fn key_exists(id: &str) -> StoreError {
    StoreError::Refused(format!("key {id} is in the store already"))
}

pub(crate) fn unknown_key(id: &str) -> StoreError {
    StoreError::NotFound(format!("there is no key {id}; `guildgate key list` shows those there are"))
}

pub(super) fn expired_key(id: &str) -> StoreError {
    StoreError::Refused(format!(
        "key {id} has expired, and its new secret would be refused at once; \
         `guildgate key set {id} --expires 90d` lets it work again"
    ))
}

pub(super) fn secret_taken(id: &str) -> StoreError {
    StoreError::Refused(format!("the secret is that of key {id} already; make another one"))
}

/// Refuses a member's name that is too long.
pub(super) fn member_name(name: &str) -> Result<(), String> {
    let length = name.len();
    if length <= MAX_MEMBER_NAME {
        return Ok(());
    }
    Err(format!("a member's name is at most {MAX_MEMBER_NAME} bytes long, and this one has {length}"))
}

pub(crate) fn unknown_member(guild: &GuildId, member: MemberId) -> StoreError {
    StoreError::NotFound(format!(
        "guild {guild} has no member {member}; `guildgate member list --guild {guild}` shows those there are"
    ))
}

/// `what` is the kind of note.
pub(crate) fn unknown_note(guild: &GuildId, what: &str, id: i64) -> StoreError {
    StoreError::NotFound(format!(
        "guild {guild} has no {what} {id}; `guildgate {what} list --guild {guild}` shows those there are"
    ))
}

/// Refuses a note (`what` is its kind) whose id another member has.
pub(super) fn must_be_of(
    member: MemberId,
    owner: Option<MemberId>,
    guild: &GuildId,
    (what, id): (&str, i64),
) -> Result<(), StoreError> {
    match owner {
        Some(owner) if owner != member => Err(StoreError::Refused(format!(
            "{what} {id} of guild {guild} is member {owner}'s; remove it there first, or use another id"
        ))),
        _ => Ok(()),
    }
}

pub(super) fn ids_used_up(kind: &NoteKind) -> StoreError {
    let (name, highest) = (kind.name, i64::MAX);
    StoreError::Refused(format!(
        "there is no id after {highest}, which a {name} of the guild has; remove that one (`guildgate {name} remove`), and add \
         it again after this one"
    ))
}

/// A note after which the answer about its member would be too long.
pub(super) fn answer_too_long(kind: &NoteKind, guild: &GuildId, member: MemberId) -> StoreError {
    let (name, plural) = (kind.name, kind.plural);
    StoreError::Refused(format!(
        "with it the answer of {plural} of member {member} in guild {guild} would be longer than 1 MiB; `guildgate {name} list \
         --guild {guild} --member {member}` shows them, and `guildgate {name} remove` takes one away"
    ))
}

/// As [`answer_too_long`], after an import.
pub(super) fn answers_too_long(kind: &NoteKind, of: &[(GuildId, MemberId)]) -> StoreError {
    let who =
        of.iter().map(|(guild, member)| format!("member {member} of guild {guild}")).collect::<Vec<_>>().join(", ");
    let plural = kind.plural;
    StoreError::Refused(format!(
        "the answer of {plural} would be longer than 1 MiB for {who}; nothing was imported. Leave out lines of {plural} about \
         them, or remove some that the store has"
    ))
}
