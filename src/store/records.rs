//! The records that stores take and give, and their errors.

use serde::Serialize;
use utoipa::ToSchema;

use super::*;
use crate::model::NOTE_KINDS;

/// A guild.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = GuildRow)]
pub struct GuildRecord {
    pub id: GuildId,
    pub name: String,
    /// The bot has left it: its keys are answered with 03 until it returns.
    #[serde(rename = "left")]
    pub departed: bool,
}

/// What was removed with a guild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedGuild {
    pub members: u64,
    /// By kind, in the order of `NOTE_KINDS`.
    pub notes: [u64; NOTE_KINDS.len()],
    pub keys: u64,
}

/// A key in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    pub id: KeyId,
    pub name: String,
    pub guild: GuildId,
    pub digest: Digest,
    /// `None`: the default tier, whatever it is at the time.
    pub tier: Option<String>,
    pub scope: Scope,
    /// Unix seconds.
    pub created: i64,
    /// Unix seconds; the key is refused from this second on.
    pub expires: Option<i64>,
    /// Unix seconds.
    pub last_used: Option<i64>,
    /// The secret before the last rotation. It stays listed after its end, until the next rotation.
    pub previous: Option<Previous>,
}

/// Which keys are looked for, and in which order.
#[derive(Clone, Debug, Default)]
pub struct KeySearch {
    /// In the id or the name of the key or of its guild; empty: any.
    pub text: String,
    pub scope: Option<Scope>,
    /// Unix seconds.
    pub ends_before: Option<i64>,
    /// No use is stored.
    pub is_unused: bool,
    /// Whether only the keys of `ids` are looked for, or all others.
    pub among: bool,
    pub ids: Vec<KeyId>,
    /// By `name`, by `last-use`, the latest first, by `end`, the next first, or else by id.
    pub sort: String,
}

/// The secret that a key had before it was rotated, by its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Previous {
    pub digest: Digest,
    /// Unix seconds; refused from this second on. The key's own expiry may be earlier: see
    /// [`KeyRecord::previous_ends`].
    pub until: i64,
}

impl KeyRecord {
    /// From which Unix second on the previous secret is refused: when its overlap ends, or when
    /// the whole key does. `None`: there is no previous secret.
    pub fn previous_ends(&self) -> Option<i64> {
        let until = self.previous?.until;
        Some(self.expires.map_or(until, |expires| until.min(expires)))
    }
}

/// The fields of a key to change; `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyChange {
    pub name: Option<String>,
    /// `Some(None)`: the default tier, whatever it is at the time.
    pub tier: Option<Option<String>>,
    pub scope: Option<Scope>,
    /// Unix seconds; `Some(None)`: never.
    pub expires: Option<Option<i64>>,
}

/// A member of a guild.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = MemberRow)]
pub struct MemberRecord {
    pub member: MemberId,
    pub name: String,
    pub points: i64,
}

/// What another process or connection changed, from the change feed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Too much to name, or the feed was lost: anything in the store may have changed.
    Everything,
    /// Keys or guilds: the key table must be read again.
    Directory,
    /// Something about one member: points, name or notes.
    Member(MemberId),
    /// The day's count of this key begins again.
    DayReset(KeyId),
}

/// Why the store could not do it. `Display` is for the operator; callers get 20, 21 or 22.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The guild is not in the store, or it has departed: the bot has left it.
    #[error("guild {0} is not in the store, or the bot has left it")]
    GuildDeparted(GuildId),
    /// Another process holds the store, or the queue is full: nothing was written, try again.
    #[error("the store is busy: {0}")]
    Busy(String),
    /// What is to be changed does not exist.
    #[error("{0}")]
    NotFound(String),
    /// What is to be made exists, or breaks a rule.
    #[error("{0}")]
    Refused(String),
    /// The disk, the file or the server failed, or the server did not answer. Nobody sees a write that ended so, and it is undone.
    #[error("{0}")]
    Failed(String),
    /// It is not known whether the write happened: its commit was sent, and no answer came.
    #[error("{0}")]
    Unknown(String),
    /// As `Unknown`: the store does not answer.
    #[error("{0}")]
    Late(String),
}
