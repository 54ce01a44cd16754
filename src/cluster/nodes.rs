//! What each node tells of itself once a second, in one hash in Redis, and what is wrong by what all of them tell. The age
//! of a record is by Redis's clock, so the clocks of nodes do not matter. While Redis is away, the same task finds out
//! whether it is back.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::Script;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use utoipa::ToSchema;

use super::bus_redis::RedisStream;
use super::limits::{LIMIT_SCRIPT, NO_QUESTION, ScriptAnswer, SharedLimits};
use super::redis::{RedisConnection, RedisFault, ServerInfo, in_time};
use crate::clock::nanos;
use crate::config::Cluster;
use crate::json::from_object;
use crate::model::rough;

/// How long a start tries to reach Redis.
pub const START_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a node tells of itself, and how often it tries whether Redis is back.
const BEAT_EVERY: Duration = Duration::from_secs(1);
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(100);

/// How long telling and a check may take: longer than a request waits for Redis.
const BEAT_WITHIN: Duration = Duration::from_secs(1);

/// How long a process that ends waits for Redis.
const LEAVE_WITHIN: Duration = Duration::from_millis(500);

/// For how long a node counts after it was heard.
const COUNTS_FOR: Duration = Duration::from_secs(10);

/// What a node does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It does not accept connections yet.
    #[default]
    Starting,
    Serving,
    /// It finishes what is under way, and ends.
    Draining,
}

/// What a node tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// One start of one process: 16 hexadecimal digits.
    #[serde(skip_deserializing)]
    pub incarnation: String,
    /// How long ago it was last heard.
    #[serde(skip_deserializing)]
    pub age_ms: u64,
    /// Its `cluster.node`.
    pub node: String,
    pub pid: u32,
    pub version: String,
    /// Of the configuration in force, as in the access log.
    pub config_hash: String,
    /// Of the keys of its key file; null: it has none, or is of an older version.
    pub keys_hash: Option<String>,
    pub state: NodeState,
    /// How long ago it had started when it was heard.
    pub uptime_ms: u64,
    /// Age of what it knew of other nodes' writes then; null: it follows none.
    pub writes_age_ms: Option<u64>,
    /// That is too old, so it answers nothing from memory.
    pub cut_off: bool,
}

/// All nodes, as `cluster status`, the API and the dashboard show them.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ClusterStatus {
    /// Where Redis is, without user and password.
    pub redis: String,
    /// The nodes that were heard in the last five minutes, but for those that were restarted, in order of name.
    pub nodes: Vec<Node>,
    /// What is wrong, with what to do.
    pub warnings: Vec<String>,
}

/// Asks Redis for the nodes, and tells nothing.
///
/// # Errors
/// Why Redis cannot be used.
pub async fn status(config: &Cluster) -> Result<(ServerInfo, ClusterStatus), RedisFault> {
    let connection = RedisConnection::open(&config.redis).await?;
    let ask = async { Ok((connection.info().await?, tell(&connection, config, "", "").await?)) };
    let (info, nodes) = in_time("a command", BEAT_WITHIN, ask).await?;
    let mut warnings = warnings(&nodes);
    warnings.extend(info.evicts.then(|| evicts_text(config)));
    Ok((info, ClusterStatus { redis: config.redis.to_string(), nodes, warnings }))
}

/// Connects once, as a check does: whether the server can be used, what it says of itself, and how long a
/// script took.
///
/// # Errors
/// Why it cannot be used.
pub async fn check(config: &Cluster) -> Result<(ServerInfo, Duration), RedisFault> {
    let probe = format!("{}:probe", config.prefix);
    let connection = RedisConnection::open(&config.redis).await?;
    let ask = async {
        let info = connection.info().await?;
        // The rights, by what a node does.
        let _: ScriptAnswer = connection.run_script(&Script::new(LIMIT_SCRIPT), &probe, &NO_QUESTION).await?;
        tell(&connection, config, "check", "{}").await?;
        let begin = Instant::now();
        tell(&connection, config, "check", "").await?;
        Ok((info, begin.elapsed()))
    };
    let checked = in_time("a command", BEAT_WITHIN, ask).await?;
    if let Some(stream) = RedisStream::of(config) {
        stream.check().await?;
    }
    Ok(checked)
}

/// Puts the record of a node into Redis (empty: it has ended), and reads what all nodes have told, in order of name.
async fn tell(
    connection: &RedisConnection,
    config: &Cluster,
    incarnation: &str,
    record: &str,
) -> Result<Vec<Node>, RedisFault> {
    let (script, key) = (Script::new(include_str!("nodes.lua")), format!("{}:nodes", config.prefix));
    let told: Vec<(String, u64, String)> = connection.run_script(&script, &key, &[incarnation, record]).await?;
    let node = |(incarnation, age_ms, record): (_, _, String)| {
        Some(Node { incarnation, age_ms, ..from_object(record.as_bytes()).ok()? })
    };
    let mut nodes: Vec<Node> = told.into_iter().filter_map(node).collect();
    // One that is heard no more, and whose place another one of its name has taken, was restarted.
    let heard: Vec<String> = nodes.iter().filter(|node| node.is_heard()).map(|node| node.node.clone()).collect();
    nodes.retain(|node| node.is_heard() || !heard.contains(&node.node));
    nodes.sort_by(|a, b| (&a.node, &a.incarnation).cmp(&(&b.node, &b.incarnation)));
    Ok(nodes)
}

impl SharedLimits {
    /// Tells the other nodes of this one, for as long as the process runs. `describe` adds what only the gateway knows of it.
    pub async fn run(&self, describe: impl Fn(Node) -> Node + Send) {
        loop {
            if let Err(fault) = self.beat(&self.record(&describe)).await {
                self.failed(&fault);
            }
            sleep(if self.is_away() { PROBE_EVERY } else { BEAT_EVERY }).await;
        }
    }

    /// Tells the other nodes that this one has ended.
    pub async fn leave(&self) {
        self.has_left.store(true, Ordering::Release);
        let leave = async { tell(&self.connection().await?, &self.config, &self.incarnation, "").await };
        let _ = in_time("a command", LEAVE_WITHIN, leave).await; // they hear no more of it in any case
    }

    /// Tells of this node, and reads what the others told. While Redis is away, as quickly as it has to decide on a request.
    async fn beat(&self, record: &str) -> Result<(), RedisFault> {
        let is_away = self.is_away();
        let within = if is_away { self.config.timeout } else { BEAT_WITHIN };
        let beat = async {
            let connection = in_time("a command", BEAT_WITHIN, self.connection()).await?;
            in_time("a command", within, tell(&connection, &self.config, &self.incarnation, record)).await
        };
        // One over which nothing comes back is no better than none.
        let nodes = beat.await.inspect_err(|_| self.disconnect())?;
        let count = nodes.iter().filter(|node| node.is_heard()).count();
        self.nodes_seen.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
        *self.nodes.lock() = nodes;
        if is_away {
            self.answered();
        }
        Ok(())
    }

    /// What this node tells the others; nothing once it has left, which removes what it told.
    fn record(&self, describe: impl Fn(Node) -> Node) -> String {
        if self.has_left.load(Ordering::Acquire) {
            return String::new();
        }
        let node = Node {
            node: self.config.node.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: *self.state.lock(),
            uptime_ms: nanos(self.started.elapsed()) / 1_000_000,
            ..Node::default()
        };
        serde_json::to_string(&describe(node)).unwrap_or_default() // it has no map
    }

    /// All nodes, as they were told within the last second; none while Redis is away.
    pub fn status(&self) -> ClusterStatus {
        let nodes = if self.is_away() { Vec::new() } else { self.nodes.lock().clone() };
        ClusterStatus { redis: self.config.redis.to_string(), warnings: warnings(&nodes), nodes }
    }

    /// How many configurations the nodes have that serve, and how many key files.
    pub fn configurations(&self) -> [usize; 2] {
        configurations(&self.nodes.lock())
    }
}

impl Node {
    /// What it does, and whether it is heard.
    pub fn state_in_words(&self) -> &'static str {
        match self.state {
            _ if !self.is_heard() => "not heard",
            _ if self.cut_off => "cut off",
            NodeState::Starting => "starting",
            NodeState::Serving => "serving",
            NodeState::Draining => "draining",
        }
    }

    /// When it last heard of other nodes' writes, while it is heard itself.
    pub fn writes_in_words(&self) -> String {
        let age = self.writes_age_ms.filter(|_| self.is_heard());
        age.map_or("–".to_owned(), |age| format!("{} ago", rough(Duration::from_millis(age))))
    }

    fn is_heard(&self) -> bool {
        Duration::from_millis(self.age_ms) <= COUNTS_FOR
    }
}

/// How many configurations the nodes have that serve, and how many key files.
fn configurations(list: &[Node]) -> [usize; 2] {
    let serving = || list.iter().filter(|node| node.is_heard() && node.state == NodeState::Serving);
    let configurations: HashSet<_> = serving().map(|node| &node.config_hash).collect();
    let key_files: HashSet<_> = serving().filter_map(|node| node.keys_hash.as_ref()).collect();
    [configurations.len(), key_files.len()]
}

/// What is wrong, with what to do.
fn warnings(list: &[Node]) -> Vec<String> {
    let what = ["configurations of the nodes differ (config_hash)", "key files of the nodes differ (keys_hash)"];
    let differing = configurations(list).into_iter().zip(what).filter(|(count, _)| *count > 1);
    let mut warnings: Vec<String> = differing
        .map(|(_, what)| format!("the {what}: give all of them the same; --json shows which has which"))
        .collect();
    for node in list {
        let what = if node.is_heard() && node.cut_off {
            let heard = node.writes_in_words();
            format!(
                "is cut off: it last heard of other nodes' writes {heard}, and answers nothing from memory: see its log"
            )
        } else if !node.is_heard() && node.state == NodeState::Serving {
            let age = rough(Duration::from_millis(node.age_ms));
            format!("was last heard {age} ago: it was killed, stands still, or does not reach Redis")
        } else {
            continue;
        };
        warnings.push(format!("node {} (process {}) {what}", node.node, node.pid));
    }
    warnings
}

/// What is said of a server that evicts keys.
pub fn evicts_text(config: &Cluster) -> String {
    format!(
        "Redis at {} evicts keys when its memory is full (maxmemory-policy), and with a key its limits; set it to \
         `noeviction`",
        config.redis
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, change: impl FnOnce(&mut Node)) -> Node {
        let mut node = Node {
            age_ms: 400,
            node: name.to_owned(),
            pid: 7,
            config_hash: "0123456789ab".to_owned(),
            state: NodeState::Serving,
            writes_age_ms: Some(100),
            ..Node::default()
        };
        change(&mut node);
        node
    }

    fn of<const N: usize>(list: [Node; N]) -> Vec<String> {
        warnings(&list)
    }

    #[track_caller]
    fn says<const N: usize>(list: [Node; N], words: &[&str]) {
        let warnings = of(list);
        assert!(warnings.len() == 1 && words.iter().all(|word| warnings[0].contains(word)), "{words:?}: {warnings:?}");
    }

    #[test]
    fn nodes_that_hear_each_other_under_one_configuration_give_no_warning() {
        assert_eq!(of([node("a", |_| {}), node("b", |_| {})]), Vec::<String>::new());
    }

    #[test]
    fn configurations_that_differ_are_named_with_their_nodes_unless_a_node_is_about_to_end() {
        let other = |state| node("b", |n| (n.config_hash, n.state) = ("ba9876543210".to_owned(), state));
        says(
            [node("a", |_| {}), other(NodeState::Serving), node("c", |_| {})],
            &["configurations of the nodes differ"],
        );
        assert_eq!(of([node("a", |_| {}), other(NodeState::Draining)]), Vec::<String>::new());
    }

    #[test]
    fn key_files_that_differ_are_named_and_a_node_of_a_version_that_does_not_tell_is_left_out() {
        let with = |name, hash: &str| node(name, |n| n.keys_hash = Some(hash.to_owned()));
        says([with("a", "1111"), with("b", "2222")], &["key files of the nodes differ"]);
        assert_eq!(of([with("a", "1111"), with("b", "1111"), node("c", |_| {})]), Vec::<String>::new());
    }

    #[test]
    fn a_node_that_is_cut_off_or_is_heard_no_more_is_named() {
        says([node("a", |n| (n.cut_off, n.writes_age_ms) = (true, Some(3210)))], &["node a", "cut off", "3.2 s"]);
        says([node("a", |_| {}), node("b", |n| n.age_ms = 33_000)], &["node b", "last heard 33 s ago"]);
        let gave_up = node("b", |n| (n.age_ms, n.state) = (33_000, NodeState::Starting));
        assert_eq!(of([gave_up]), Vec::<String>::new());
    }
}
