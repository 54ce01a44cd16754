//! The messages of a store that refuses a change.

use std::fmt::Display;

use super::StoreError;
use crate::model::{GuildId, MAX_MEMBER_NAME, MemberId, NoteKind};

/// There is no store at `location`.
pub(super) fn no_store(location: impl Display) -> StoreError {
    StoreError::Refused(format!(
        "there is no store at {location}; `guildgate guild add`, `guildgate import` and `guildgate serve` make one, and \
         --config names the gateway.toml of another"
    ))
}

/// A store of this schema, where `newest` is the newest one that is known.
pub(super) fn newer(location: impl Display, schema: i64, newest: i64) -> StoreError {
    StoreError::Failed(format!(
        "{location} was written by a newer Guildgate (its schema is {schema}, this one knows {newest}); run that one"
    ))
}

/// A store that would be migrated beside others, which would not know what they find.
pub(super) fn older_and_open(location: impl Display) -> StoreError {
    StoreError::Failed(format!(
        "{location} was written by an older Guildgate, and another process or node has it open; stop that and try again"
    ))
}

pub(crate) fn unknown_guild(guild: &GuildId) -> StoreError {
    StoreError::NotFound(format!(
        "guild {guild} is not in the store; `guildgate guild list` shows those there are, and `guildgate guild add {guild} \
         --name NAME` adds it"
    ))
}

pub(crate) fn unknown_key(id: &str) -> StoreError {
    StoreError::NotFound(format!("there is no key {id}; `guildgate key list` shows those there are"))
}

/// Refuses a member's name that is too long.
pub(super) fn member_name(name: &str) -> Result<(), String> {
    match name.len() {
        0..=MAX_MEMBER_NAME => Ok(()),
        length => Err(format!("a member's name is at most {MAX_MEMBER_NAME} bytes long, and this one has {length}")),
    }
}

pub(crate) fn unknown_member(guild: &GuildId, member: MemberId) -> StoreError {
    let list = format!("`guildgate member list --guild {guild}`");
    StoreError::NotFound(format!("guild {guild} has no member {member}; {list} shows those there are"))
}

/// `what` is the kind of note.
pub(crate) fn unknown_note(guild: &GuildId, what: &str, id: i64) -> StoreError {
    let list = format!("`guildgate {what} list --guild {guild}`");
    StoreError::NotFound(format!("guild {guild} has no {what} {id}; {list} shows those there are"))
}

/// Members whose answers would be longer than they may be.
pub(super) fn answer_too_long(kind: &NoteKind, of: &[(GuildId, MemberId)]) -> StoreError {
    let who: Vec<_> = of.iter().map(|(guild, member)| format!("member {member} in guild {guild}")).collect();
    let (name, plural, who) = (kind.name, kind.plural, who.join(", "));
    StoreError::Refused(format!(
        "the answer of {plural} would be longer than 1 MiB for {who}; nothing was written. Leave some out, or take some away \
         with `guildgate {name} remove`"
    ))
}
