//! Checks `[cluster]`.

use std::time::Duration;

use super::Checker;
use crate::config::file::{ClusterFile, OriginFile, OriginKindFile, WhenAwayFile};
use crate::config::redis::{RedisAt, RedisServers};
use crate::config::usable::{Cluster, WhenAway};

/// The longest wait of a request for Redis.
const MAX_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest name of a node, and longest prefix.
const MAX_NAME: usize = 64;

impl Checker<'_> {
    pub(super) fn cluster(&mut self, file: &ClusterFile, origin: &OriginFile) -> Option<Cluster> {
        let Some(secret) = &file.redis else {
            for name in ["node", "prefix", "timeout", "when_away", "nodes", "replicas"] {
                let path = format!("cluster.{name}");
                if self.places.is_given(&path) {
                    self.warning(&path, "has no effect without `cluster.redis`");
                }
            }
            return None;
        };
        let url = self.secret("cluster.redis", secret);
        let redis = url.and_then(|url| RedisAt::parse(&url)).map_err(|why| self.fault("cluster.redis", why)).ok()?;
        self.resolved.push(("cluster.redis".to_owned(), redis.to_string()));
        if redis.is_plain_remote() {
            self.warning("cluster.redis", "is another host, and what is sent is not encrypted; use rediss:// for TLS");
        }
        let replicas = self.replicas(file, origin, &redis);
        if file.when_away == WhenAwayFile::Share && !self.places.is_given("cluster.nodes") {
            let text = "is 1 unless it is set: a node that starts while Redis is away would not know the others";
            self.warning("cluster.nodes", text);
        }
        self.name("cluster.prefix", &file.prefix);
        let node = file.node.clone().unwrap_or_else(host_name);
        self.name("cluster.node", &node);
        self.resolved.push(("cluster.node".to_owned(), node.clone()));
        let timeout = self.timeout("cluster.timeout", file.timeout);
        if timeout > MAX_TIMEOUT {
            self.fault("cluster.timeout", "must be at most 1s, since a request waits for so long");
        }
        let when_away = match file.when_away {
            WhenAwayFile::Share => WhenAway::Share,
            WhenAwayFile::Local => WhenAway::Local,
            WhenAwayFile::Refuse => WhenAway::Refuse,
        };
        let prefix = file.prefix.clone();
        Some(Cluster { redis, node, prefix, timeout, when_away, nodes: file.nodes.max(1), replicas })
    }

    /// How many replicas must have a notice of a write; `None`: the nodes hear of writes by the store.
    fn replicas(&mut self, file: &ClusterFile, origin: &OriginFile, redis: &RedisAt) -> Option<u32> {
        if origin.kind == OriginKindFile::Builtin {
            if self.places.is_given("cluster.replicas") {
                self.warning("cluster.replicas", "has no effect with `origin.kind` \"builtin\"");
            }
            return None;
        }
        match redis.servers {
            RedisServers::Cluster(_) => {
                let text = "must not be a Redis Cluster with `origin.kind` \"http\": the nodes tell each other of writes \
                            through one primary; name it by redis:// or redis-sentinel://";
                self.fault("cluster.redis", text);
            }
            RedisServers::Sentinels { .. } if file.replicas == 0 => {
                let text = "is 0 behind Sentinel: a node that reaches only the old primary after a fail-over hears of no \
                            write, and goes on answering from memory; set it to 1";
                self.warning("cluster.replicas", text);
            }
            RedisServers::Sentinels { .. } | RedisServers::One(_) | RedisServers::Unix(_) => {}
        }
        Some(file.replicas)
    }

    /// A name that stands in Redis and in logs.
    fn name(&mut self, path: &str, name: &str) {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_allowed) {
            self.fault(path, format!("must be 1 to {MAX_NAME} letters, digits, `-`, `_` or `.`"));
        }
    }
}

/// The host's name; what is not allowed in a node's name is left out.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name: String =
        name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(MAX_NAME).collect();
    if name.is_empty() { "node".to_owned() } else { name }
}
