//! Guilds.

use std::collections::BTreeMap;

use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Records;
use crate::model::{GuildId, NOTE_KINDS};
pub use crate::store::GuildRecord as GuildRow;
use crate::store::{RemovedGuild, StoreError, refusals};

/// A guild to add.
#[derive(Clone, Debug, Args, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GuildInput {
    /// The guild's id, such as 81384788765712384
    pub id: GuildId,
    /// The guild's name
    #[arg(long)]
    pub name: String,
}

/// What changes; a field that is not given stays.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GuildChange {
    pub name: Option<String>,
    pub left: Option<bool>,
}

/// What was removed with a guild.
#[derive(Debug, Serialize, ToSchema)]
pub struct RemovedRow {
    pub members: u64,
    pub keys: u64,
    /// How many of each kind: `warns`, `reviews`.
    #[serde(flatten)]
    pub notes: BTreeMap<&'static str, u64>,
}

/// So many guilds after the id `after`, by id.
pub async fn list(records: &Records, after: Option<&str>, limit: usize) -> Result<Vec<GuildRow>, StoreError> {
    records.store.guilds_page(after, limit).await
}

pub async fn show(records: &Records, id: &GuildId) -> Result<GuildRow, StoreError> {
    records.store.guild(id).await?.ok_or_else(|| refusals::unknown_guild(id))
}

pub async fn add(records: &Records, GuildInput { id, name }: GuildInput) -> Result<GuildRow, StoreError> {
    records.store.add_guild(&id, &name).await
}

pub async fn change(records: &Records, id: &GuildId, change: GuildChange) -> Result<GuildRow, StoreError> {
    records.store.set_guild(id, change.name.as_deref(), change.left).await
}

/// Removes a guild with its members, notes and keys.
pub async fn remove(records: &Records, id: &GuildId) -> Result<RemovedRow, StoreError> {
    let RemovedGuild { members, notes, keys } = records.store.remove_guild(id).await?;
    let notes = NOTE_KINDS.iter().map(|kind| kind.plural).zip(notes).collect();
    Ok(RemovedRow { members, keys, notes })
}
