//! `[cluster]`: what several nodes share.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::section;
use super::leaf::{MAX_NAME, NAME_RULE, Timeout, is_name};
use super::origin::OriginKindFile;
use super::problem::Faults;
use super::redis::{RedisAt, RedisServers};
use super::secret::Secret;

/// Nodes: more than anybody runs.
const MAX_NODES: u32 = 1_000;

/// The longest wait of a request for Redis.
const MAX_TIMEOUT: Duration = Duration::from_secs(1);

section! {
    /// `[cluster]`
    pub struct ClusterFile {
        /// A Redis URL, "env:NAME" or "file:PATH": limits shared by all nodes, and notices of each other's writes.
        pub redis: Option<Secret> = None,
        /// This node's name among the others; the host's name if it is missing.
        pub node: Option<String> = None,
        /// The beginning of all names in Redis. All nodes of a service have the same.
        pub prefix: String = "guildgate".to_owned(),
        /// How long a request waits for Redis.
        #[serde(with = "Timeout")]
        pub timeout: Duration = Duration::from_millis(50),
        /// What limits a key while Redis is away: "share", "local" or "refuse".
        pub when_away: WhenAway = WhenAway::Share,
        /// With "share": by how many nodes a limit is divided at least.
        #[schemars(range(min = 1, max = MAX_NODES))]
        pub nodes: u32 = 1,
        /// Replicas that must have a notice before a write is answered.
        #[schemars(range(max = 10))]
        pub replicas: u32 = 0,
    }
}

/// What limits a key while Redis is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenAway {
    Share,  // each node its part of the limit
    Local,  // each node the whole limit
    Refuse, // nothing is admitted: 21
}

/// What several nodes share (`[cluster]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    pub redis: RedisAt,
    /// This node's name.
    pub node: String,
    /// The beginning of all names in Redis.
    pub prefix: String,
    /// How long a request waits for Redis.
    pub timeout: Duration,
    pub when_away: WhenAway,
    /// With [`WhenAway::Share`]: by how many nodes a limit is divided at least; at least 1.
    pub nodes: u32,
    /// With an HTTP origin, whose nodes tell each other of writes: how many replicas must have a notice before a write
    /// is answered. `None`: the nodes hear of writes by the store's change feed.
    pub replicas: Option<u32>,
}

impl ClusterFile {
    pub(super) fn check(&self, faults: &mut Faults<'_>, origin: OriginKindFile) -> Option<Cluster> {
        let Some(secret) = &self.redis else {
            if *self != ClusterFile::default() {
                faults.warn("cluster", "has no effect without `cluster.redis`");
            }
            return None;
        };
        let redis = faults.secret(secret).and_then(|url| RedisAt::parse(&url));
        let redis = redis.map_err(|why| faults.add("cluster.redis", why)).ok()?;
        if redis.is_plain_remote() {
            faults.warn("cluster.redis", "is another host, and what is sent is not encrypted; use rediss:// for TLS");
        }
        let replicas = self.replicas(faults, origin, &redis);
        if self.when_away == WhenAway::Share && !faults.places.is_given("cluster.nodes") {
            let text = "is 1 unless it is set: a node that starts while Redis is away would not know the others";
            faults.warn("cluster.nodes", text);
        }
        let node = self.node.clone().unwrap_or_else(host_name);
        for (path, name) in [("cluster.prefix", &self.prefix), ("cluster.node", &node)] {
            if !is_name(name) {
                faults.add(path, format!("must be {NAME_RULE}"));
            }
        }
        if self.timeout > MAX_TIMEOUT {
            faults.add("cluster.timeout", "must be at most 1s, since a request waits for so long");
        }
        let ClusterFile { prefix, timeout, when_away, nodes, .. } = self.clone();
        Some(Cluster { redis, node, prefix, timeout, when_away, nodes, replicas })
    }

    /// How many replicas must have a notice of a write; `None`: the nodes hear of writes by the store.
    fn replicas(&self, faults: &mut Faults<'_>, origin: OriginKindFile, redis: &RedisAt) -> Option<u32> {
        if origin == OriginKindFile::Builtin {
            return None;
        }
        match redis.servers {
            RedisServers::Cluster(_) => {
                let text = "must not be a Redis Cluster with `origin.kind` \"http\": the nodes tell each other of writes \
                            through one primary; name it by redis:// or redis-sentinel://";
                faults.add("cluster.redis", text);
            }
            RedisServers::Sentinels { .. } if self.replicas == 0 => {
                let text = "is 0 behind Sentinel: a node that reaches only the old primary after a fail-over hears of no \
                            write, and goes on answering from memory; set it to 1";
                faults.warn("cluster.replicas", text);
            }
            RedisServers::Sentinels { .. } | RedisServers::One(_) | RedisServers::Unix(_) => {}
        }
        Some(self.replicas)
    }
}

/// The host's name; what is not allowed in a node's name is left out.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name: String = name.chars().filter(|c| is_name(&c.to_string())).take(MAX_NAME).collect();
    if name.is_empty() { "node".to_owned() } else { name }
}
