//! What each node tells of itself once a second, in one hash in Redis, and what is wrong by what all of them tell. Ages
//! are by Redis's clock, so that the clocks of nodes do not matter. What is read is checked: another program may have
//! written it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::Script;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::redis::{RedisConnection, RedisFault, ServerInfo};
use super::turns::{COMMAND_TIMEOUT, evicts_text};
use crate::config::{Cluster, ConfigHash};
use crate::json::from_object;
use crate::model::rough;

/// For how long a node counts after it was heard.
pub(super) const COUNTS_FOR: Duration = Duration::from_secs(10);

/// For how long the record of a node is kept that ended without saying so.
const KEEP: Duration = Duration::from_secs(300);

/// How long two processes of one name may both say that they serve: a hand-over takes less.
const BOTH_SERVE: u64 = 2000;

/// Longest name of a node, version and hash in a record.
const MAX_WORD: usize = 64;

/// Names in one message.
const MAX_NAMES: usize = 10;

/// What is the same at all nodes that serve: its name, what to give them, and its hash.
pub(super) const COMPARED: [Compared; 2] = [
    ("configurations", "settings", |node| Some(&node.config_hash)),
    ("key files", "keys", |node| node.keys_hash.as_deref()),
];

/// See [`COMPARED`].
pub(super) type Compared = (&'static str, &'static str, fn(&Node) -> Option<&str>);

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It does not accept connections yet.
    Starting,
    Serving,
    /// It finishes what is under way, and ends.
    Draining,
}

/// What a node tells of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
    /// For how long it had been in that state when it was heard.
    pub state_ms: u64,
    /// The same, since its start.
    pub uptime_ms: u64,
    /// Tokens of all keys that Redis has set aside for it and that it has not spent.
    pub held_tokens: u64,
    /// Age of what it knew of other nodes' writes then; null: it follows none.
    pub writes_age_ms: Option<u64>,
    /// That is too old, so it answers nothing from memory.
    pub cut_off: bool,
}

/// What only the gateway knows of its node.
#[derive(Clone, Copy, Debug)]
pub struct NodeReport {
    /// Of the configuration in force.
    pub config_hash: ConfigHash,
    /// Of the keys of the key file in force.
    pub keys_hash: Option<ConfigHash>,
    /// Age of what is known of other nodes' writes.
    pub writes_age: Option<Duration>,
}

/// All nodes, as `cluster status`, the API and the dashboard show them.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ClusterStatus {
    /// Where Redis is, without user and password.
    pub redis: String,
    /// The nodes that were heard in the last five minutes and did not say that they stop, in order of name.
    pub nodes: Vec<Node>,
    /// What is wrong, with what to do.
    pub warnings: Vec<String>,
}

/// What was read of all nodes at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes {
    list: Vec<Node>,
    /// What is no record of a node, by its name in Redis.
    pub(super) ignored: BTreeSet<String>,
}

/// The script by which nodes tell of themselves.
#[derive(Clone, Debug)]
pub(super) struct NodesScript(Script);

/// Asks Redis for the nodes, and tells nothing.
///
/// # Errors
/// Why Redis cannot be used.
pub async fn status(config: &Cluster) -> Result<(ServerInfo, ClusterStatus), RedisFault> {
    let connection = RedisConnection::open(&config.redis, COMMAND_TIMEOUT).await?;
    let info = connection.info().await?;
    let nodes = NodesScript::new().run(&connection, &key(config), "", "").await?;
    let mut warnings = nodes.warnings();
    warnings.extend(info.evicts.then(|| evicts_text(config)));
    Ok((info, ClusterStatus { redis: config.redis.to_string(), nodes: nodes.list, warnings }))
}

/// The hash of all nodes.
pub(super) fn key(config: &Cluster) -> String {
    format!("{}:nodes", config.prefix)
}

impl NodesScript {
    pub(super) fn new() -> Self {
        NodesScript(Script::new(include_str!("nodes.lua")))
    }

    /// Tells this record of an incarnation (an empty one: it leaves), and returns what all nodes have told. An empty
    /// incarnation changes nothing.
    pub(super) async fn run(
        &self,
        connection: &RedisConnection,
        key: &str,
        incarnation: &str,
        record: &str,
    ) -> Result<Nodes, RedisFault> {
        let arguments = [incarnation.to_owned(), KEEP.as_micros().to_string(), record.to_owned()];
        let answer: Vec<Vec<u8>> = connection.run_script(&self.0, key, &arguments).await?;
        Ok(Nodes::read(&answer))
    }
}

impl Node {
    /// What stands in Redis under this incarnation.
    fn read(incarnation: &str, age_us: u64, record: &[u8]) -> Option<Node> {
        let is_word = |text: &str| {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
            (1..=MAX_WORD).contains(&text.len()) && text.chars().all(is_allowed)
        };
        let node: Node = from_object(record).ok()?;
        let words = [incarnation, &node.node, &node.version, &node.config_hash];
        let is_record = words.into_iter().chain(node.keys_hash.as_deref()).all(is_word);
        is_record.then(|| Node { incarnation: incarnation.to_owned(), age_ms: age_us / 1000, ..node })
    }

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
        u128::from(self.age_ms) <= COUNTS_FOR.as_millis()
    }

    /// Whether it was heard, and answers callers.
    fn serves(&self) -> bool {
        self.is_heard() && self.state == NodeState::Serving
    }

    /// Whether both said that they serve for longer than a hand-over takes.
    fn serves_beside(&self, other: &Node) -> bool {
        let began = |node: &Node| node.age_ms.saturating_add(node.state_ms);
        let overlap = began(self).min(began(other)).saturating_sub(self.age_ms.max(other.age_ms));
        self.node == other.node && self.incarnation != other.incarnation && overlap > BOTH_SERVE
    }

    /// Whether it took the place of a node of its name that was heard no more.
    fn replaced(&self, other: &Node) -> bool {
        let began = self.age_ms.saturating_add(self.uptime_ms);
        let is_other = self.node == other.node && self.incarnation != other.incarnation;
        is_other && began < other.age_ms.saturating_add(BOTH_SERVE)
    }
}

impl Nodes {
    fn read(answer: &[Vec<u8>]) -> Self {
        let mut nodes = Nodes::default();
        for told in answer.chunks_exact(3) {
            let incarnation = String::from_utf8_lossy(&told[0]);
            let age = std::str::from_utf8(&told[1]).ok().and_then(|age| age.parse().ok());
            match age.and_then(|age| Node::read(&incarnation, age, &told[2])) {
                Some(node) => nodes.list.push(node),
                None => drop(nodes.ignored.insert(incarnation.escape_debug().take(MAX_WORD).collect())),
            }
        }
        nodes.list.sort_by(|a, b| (&a.node, b.uptime_ms, &a.incarnation).cmp(&(&b.node, a.uptime_ms, &b.incarnation)));
        nodes
    }

    /// The same, as they are this much later.
    pub(super) fn later(mut self, by: Duration) -> Self {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.list.iter_mut().for_each(|node| node.age_ms = node.age_ms.saturating_add(by));
        self
    }

    pub(super) fn into_list(self) -> Vec<Node> {
        self.list
    }

    /// How many nodes run.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.list.iter().filter(|node| node.is_heard()).count()).unwrap_or(u32::MAX)
    }

    /// The nodes that serve and have this, by its hash.
    pub(super) fn by_hash(&self, (_, _, hash): &Compared) -> BTreeMap<&str, Vec<&Node>> {
        let mut nodes = BTreeMap::<_, Vec<_>>::new();
        for node in self.list.iter().filter(|node| node.serves()) {
            if let Some(hash) = hash(node) {
                nodes.entry(hash).or_default().push(node);
            }
        }
        nodes
    }

    /// What is wrong, with what to do.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.list.is_empty() {
            let text = "no node was heard in the last 5 minutes: start one, or see whether all of them have this Redis \
                        and this cluster.prefix";
            warnings.push(text.to_owned());
        }
        for compared in &COMPARED {
            let nodes = self.by_hash(compared);
            if nodes.len() > 1 {
                let at = nodes
                    .iter()
                    .map(|(hash, nodes)| format!("{hash} at {}", some(nodes.iter().map(|n| n.node.clone()))));
                let at = at.take(MAX_NAMES).collect::<Vec<_>>().join("; ");
                let (what, same, _) = compared;
                warnings.push(format!("the {what} of the nodes differ ({at}): give all of them the same {same}"));
            }
        }
        let mut clashes = BTreeMap::<&str, Vec<String>>::new();
        let serving: Vec<&Node> = self.list.iter().filter(|node| node.serves()).collect();
        for node in serving.iter().filter(|node| serving.iter().any(|other| node.serves_beside(other))) {
            let process = format!("process {} (incarnation {})", node.pid, node.incarnation);
            clashes.entry(&node.node).or_default().push(process);
        }
        for (name, processes) in clashes {
            let processes = some(processes.into_iter());
            warnings.push(format!("{processes} all have the name {name}: give each node a cluster.node of its own"));
        }
        for node in &self.list {
            let name = format!("node {} (process {})", node.node, node.pid);
            if node.is_heard() && node.cut_off {
                warnings.push(format!(
                    "{name} is cut off: it last heard of other nodes' writes {}, and answers nothing from memory: see \
                     its process log",
                    node.writes_in_words()
                ));
            }
            let is_lost = !node.is_heard() && node.state == NodeState::Serving;
            if is_lost && !self.list.iter().any(|other| other.replaced(node)) {
                let age = rough(Duration::from_millis(node.age_ms));
                warnings.push(format!(
                    "{name} was last heard {age} ago: it was killed, stands still, or does not reach Redis"
                ));
            }
        }
        warnings.extend(self.ignored.iter().take(MAX_NAMES).map(|name| {
            format!("in Redis, `{name}` is no record of a node, and is ignored: see which program writes it there")
        }));
        warnings
    }
}

/// The first of these names, and how many there are besides.
fn some(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    let text = names.take(MAX_NAMES).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, change: impl FnOnce(&mut Node)) -> Node {
        let mut node = Node {
            incarnation: format!("{:016x}", fastrand::u64(..)),
            age_ms: 400,
            node: name.to_owned(),
            pid: 7,
            version: "0.1.0".to_owned(),
            config_hash: "0123456789ab".to_owned(),
            keys_hash: None,
            state: NodeState::Serving,
            state_ms: 60_000,
            uptime_ms: 61_000,
            held_tokens: 5,
            writes_age_ms: Some(100),
            cut_off: false,
        };
        change(&mut node);
        node
    }

    fn warnings<const N: usize>(list: [Node; N]) -> Vec<String> {
        Nodes { list: list.to_vec(), ..Nodes::default() }.warnings()
    }

    #[track_caller]
    fn says<const N: usize>(list: [Node; N], words: &[&str]) {
        let warnings = warnings(list);
        assert!(warnings.len() == 1 && words.iter().all(|word| warnings[0].contains(word)), "{words:?}: {warnings:?}");
    }

    #[test]
    fn nodes_that_hear_each_other_under_one_configuration_give_no_warning() {
        assert_eq!(warnings([node("a", |_| {}), node("b", |_| {})]), Vec::<String>::new());
        says([], &["no node was heard"]);
    }

    #[test]
    fn configurations_that_differ_are_named_with_their_nodes_unless_a_node_is_about_to_end() {
        let other = |state| node("b", |n| (n.config_hash, n.state) = ("ba9876543210".to_owned(), state));
        says(
            [node("a", |_| {}), other(NodeState::Serving), node("c", |_| {})],
            &["0123456789ab at a, c; ba9876543210 at b"],
        );
        assert_eq!(warnings([node("a", |_| {}), other(NodeState::Draining)]), Vec::<String>::new());
    }

    #[test]
    fn key_files_that_differ_are_named_and_a_node_of_a_version_that_does_not_tell_is_left_out() {
        let with = |name, hash: &str| node(name, |n| n.keys_hash = Some(hash.to_owned()));
        says([with("a", "1111"), with("b", "2222")], &["key files of the nodes differ (1111 at a; 2222 at b)"]);
        assert_eq!(warnings([with("a", "1111"), with("b", "1111"), node("c", |_| {})]), Vec::<String>::new());
        let before = serde_json::to_string(&node("a", |_| {})).unwrap().replace("\"keys_hash\":null,", "");
        assert_eq!(Node::read("i1", 0, before.as_bytes()).unwrap().keys_hash, None);
    }

    #[test]
    fn processes_of_one_name_are_named_unless_one_hands_over_or_took_the_others_place() {
        says([node("a", |n| n.pid = 8), node("a", |_| {})], &["process 8", "process 7", "all have the name a"]);
        let successor = || node("a", |n| (n.state_ms, n.uptime_ms) = (1500, 3000));
        for before in [NodeState::Serving, NodeState::Draining] {
            assert_eq!(warnings([node("a", |n| n.state = before), successor()]), Vec::<String>::new());
        }
        let starting = node("a", |n| (n.state, n.state_ms) = (NodeState::Starting, 30_000));
        assert_eq!(warnings([node("a", |_| {}), starting]), Vec::<String>::new());
        // It was killed, and started again, and killed and started again.
        let long_ago = |age| node("a", |n| (n.age_ms, n.state_ms, n.uptime_ms) = (age, 10_000, 11_000));
        assert_eq!(warnings([long_ago(20_000), long_ago(8_500), successor()]), Vec::<String>::new());
    }

    #[test]
    fn a_node_that_is_cut_off_or_is_heard_no_more_is_named() {
        says([node("a", |n| (n.cut_off, n.writes_age_ms) = (true, Some(3210)))], &["node a", "cut off", "3.2 s"]);
        says([node("a", |_| {}), node("b", |n| n.age_ms = 33_000)], &["node b", "last heard 33 s ago"]);
        assert_eq!(Nodes { list: vec![node("b", |n| n.age_ms = 33_000)], ..Nodes::default() }.count(), 0);
        let gave_up = node("b", |n| (n.age_ms, n.state) = (33_000, NodeState::Starting));
        assert_eq!(warnings([gave_up]), Vec::<String>::new());
    }

    #[test]
    fn what_is_no_record_is_ignored_and_named_without_control_characters() {
        let good = serde_json::to_string(&node("a", |_| {})).unwrap();
        let evil = good.replace("\"a\"", "\"a\\u001b[2J\"");
        let long = good.replace("\"a\"", &format!("\"{}\"", "a".repeat(65)));
        let told = [
            ["i1", "1500", &good],
            ["i2", "-1", ""],
            ["\u{1b}[2J", "5", &good],
            ["i4", "5", &evil],
            ["i5", "5", &long],
            ["i6", "5", "{}"],
        ];
        let answer: Vec<Vec<u8>> = told.iter().flatten().map(|text| text.as_bytes().to_vec()).collect();
        let nodes = Nodes::read(&answer);
        assert_eq!(nodes.list.iter().map(|n| (&*n.incarnation, n.age_ms)).collect::<Vec<_>>(), [("i1", 1)]);
        assert_eq!(nodes.ignored.len(), 5);
        let warnings = nodes.warnings();
        assert!(warnings.iter().any(|text| text.contains("`i4`")), "{warnings:?}");
        assert!(!warnings.concat().contains(char::is_control), "{warnings:?}");
    }

    #[test]
    fn a_record_stays_below_what_redis_is_asked_to_keep() {
        let long = "a".repeat(MAX_WORD);
        let longest = node(&long, |n| {
            (n.version, n.config_hash, n.keys_hash) = (long.clone(), long.clone(), Some(long.clone()));
            (n.age_ms, n.state_ms, n.uptime_ms, n.held_tokens) = (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
            n.writes_age_ms = Some(u64::MAX);
        });
        assert!(serde_json::to_string(&longest).unwrap().len() < 1000);
    }
}
