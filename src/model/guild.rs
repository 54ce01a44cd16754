//! The id of a guild: its form, and the only ways to make one. A value of this type always has 1 to 64 visible ASCII
//! characters, so that no other code checks it again. It is opaque: nothing may assume that it is a number. Pure.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::KeyId;

/// The longest guild id. A snowflake has 19 digits; operators may use names of their own.
pub const MAX_GUILD_ID: usize = 64;

/// A guild's id: 1 to 64 visible ASCII characters, usually a snowflake. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GuildId(Arc<str>);

impl GuildId {
    /// A stand-in for the guild of a learned key, which only the origin knows.
    pub fn of_key(key: &KeyId) -> Self {
        GuildId(key.clone())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GuildId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let fits = (1..=MAX_GUILD_ID).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        let bad = "a guild id is 1 to 64 visible ASCII characters, such as 81384788765712384";
        if fits { Ok(GuildId(text.into())) } else { Err(bad) }
    }
}

impl TryFrom<String> for GuildId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        text.parse()
    }
}

impl From<GuildId> for String {
    fn from(id: GuildId) -> String {
        id.0.to_string()
    }
}

impl fmt::Display for GuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
