//! Members of guilds.

use clap::Args;
use serde::Deserialize;
use utoipa::ToSchema;

use super::Records;
use crate::json::Whole;
use crate::model::{GuildId, MemberId};
pub use crate::store::MemberRecord as MemberRow;
use crate::store::{StoreError, refusals};

/// What is set; a field that is not given stays.
#[derive(Clone, Debug, Args, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberInput {
    /// The member's name; a new member is named by its id
    #[arg(long)]
    pub name: Option<String>,
    /// The member's points; a new member has 0
    #[arg(long, allow_negative_numbers = true, value_parser = points)]
    #[schema(value_type = Option<i64>, minimum = -9223372036854775808_i64, maximum = 9223372036854775807_i64)]
    pub points: Option<Whole>,
}

fn points(text: &str) -> Result<Whole, String> {
    text.parse().map(Whole).map_err(|_| format!("points are a whole number, {} to {}", i64::MIN, i64::MAX))
}

/// So many of a guild's members after the id `after`, by id.
pub async fn list(
    records: &Records,
    guild: &GuildId,
    after: Option<MemberId>,
    limit: usize,
) -> Result<Vec<MemberRow>, StoreError> {
    records.store.members(guild, after, limit).await
}

pub async fn show(records: &Records, guild: &GuildId, id: MemberId) -> Result<MemberRow, StoreError> {
    records.store.member(guild, id).await?.ok_or_else(|| refusals::unknown_member(guild, id))
}

/// Sets a member's name or points, and makes the member if there is none.
pub async fn set(
    records: &Records,
    guild: &GuildId,
    id: MemberId,
    MemberInput { name, points }: MemberInput,
) -> Result<MemberRow, StoreError> {
    records.store.set_member(guild, id, name.as_deref(), points.map(|Whole(points)| points)).await
}
