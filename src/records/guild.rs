//! Guilds.

use std::collections::BTreeMap;

use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Records;
use crate::model::{GuildId, NOTE_KINDS};
use crate::store::{GuildRecord, RemovedGuild, StoreError, refusals};

/// A guild's name. A blank one most likely comes from a shell variable that was not set.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct GuildName(String);

/// A guild to add.
#[derive(Clone, Debug, Args, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GuildInput {
    /// The guild's id, such as 81384788765712384
    pub id: GuildId,
    /// The guild's name
    #[arg(long)]
    pub name: GuildName,
}

/// What changes; a field that is not given stays.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GuildChange {
    pub name: Option<GuildName>,
    pub left: Option<bool>,
}

/// A guild.
#[derive(Debug, Serialize, ToSchema)]
pub struct GuildRow {
    pub id: GuildId,
    pub name: String,
    /// The bot has left it: its keys are answered with 03.
    pub left: bool,
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

impl std::str::FromStr for GuildName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.chars().all(|c| c.is_whitespace() || c.is_control()) {
            true => Err("a guild's name is not empty"),
            false => Ok(GuildName(text.to_owned())),
        }
    }
}

impl TryFrom<String> for GuildName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        text.parse()
    }
}

impl From<GuildRecord> for GuildRow {
    fn from(GuildRecord { id, name, departed: left }: GuildRecord) -> Self {
        GuildRow { id, name, left }
    }
}

/// So many guilds after the id `after`, by id.
pub async fn list(records: &Records, after: Option<&str>, limit: usize) -> Result<Vec<GuildRow>, StoreError> {
    Ok(records.store.guilds_page(after, limit).await?.into_iter().map(GuildRow::from).collect())
}

pub async fn show(records: &Records, id: &GuildId) -> Result<GuildRow, StoreError> {
    let guild = records.store.guild(id).await?;
    Ok(guild.ok_or_else(|| refusals::unknown_guild(id))?.into())
}

pub async fn add(records: &Records, GuildInput { id, name }: GuildInput) -> Result<GuildRow, StoreError> {
    Ok(records.store.add_guild(&id, &name.0).await?.into())
}

pub async fn change(records: &Records, id: &GuildId, change: GuildChange) -> Result<GuildRow, StoreError> {
    let GuildChange { name, left } = change;
    Ok(records.store.set_guild(id, name.as_ref().map(|name| &*name.0), left).await?.into())
}

/// Removes a guild with its members, notes and keys.
pub async fn remove(records: &Records, id: &GuildId) -> Result<RemovedRow, StoreError> {
    let RemovedGuild { members, notes, keys } = records.store.remove_guild(id).await?;
    let notes = NOTE_KINDS.iter().map(|kind| kind.plural).zip(notes).collect();
    Ok(RemovedRow { members, keys, notes })
}
