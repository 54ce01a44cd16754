//! `[cluster]` as it is typed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::HumanDuration;
use crate::config::secret::Secret;

/// Nodes: more than anybody runs.
const MAX_NODES: u32 = 1_000;

/// `[cluster]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterFile {
    /// A Redis URL, "env:NAME" or "file:PATH": limits shared by all nodes, and notices of each other's writes.
    #[schemars(with = "Secret")]
    pub redis: Option<Secret>,
    /// This node's name among the others; the host's name if it is missing.
    #[schemars(with = "String")]
    pub node: Option<String>,
    /// The beginning of all names in Redis. All nodes of a service have the same.
    pub prefix: String,
    /// How long a request waits for Redis.
    pub timeout: HumanDuration,
    /// What limits a key while Redis is away: "share", "local" or "refuse".
    pub when_away: WhenAwayFile,
    /// With "share": by how many nodes a limit is divided at least.
    #[schemars(range(min = 1, max = MAX_NODES))]
    pub nodes: u32,
    /// Replicas that must have a notice before a write is answered.
    #[schemars(range(max = 10))]
    pub replicas: u32,
}

impl Default for ClusterFile {
    fn default() -> Self {
        ClusterFile {
            redis: None,
            node: None,
            prefix: "guildgate".to_owned(),
            timeout: HumanDuration::millis(50),
            when_away: WhenAwayFile::Share,
            nodes: 1,
            replicas: 0,
        }
    }
}

/// What limits a key while Redis is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenAwayFile {
    Share,
    Local,
    Refuse,
}
