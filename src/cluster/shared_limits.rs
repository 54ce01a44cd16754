//! The limits that all nodes keep together, as requests see them: the escrow of each key, the wait for a turn, and whether
//! Redis is away. Turns are taken by `turns`.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout, timeout_at};

use super::escrow::{Bucket, Escrow, LocalCounts, NoCounts, TurnState, UsedUp};
use super::freshness::MAX_AGE;
use super::nodes::{self, COMPARED, COUNTS_FOR, ClusterStatus, Node, NodeReport, NodeState, Nodes};
use super::redis_clock::RedisClock;
use super::turn_queue::{KeyEscrow, TurnQueue};
use super::turns::{COMMAND_TIMEOUT, evicts_text};
use crate::clock::{Clock, Tick};
use crate::config::{Cluster, Tier, WhenAway};
use crate::model::KeyId;

/// Failures in a row after which Redis is away, and no request waits for it.
const FAILURES: u32 = 3;

/// How long a request waits for a turn at most, with those of other keys before it.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// How long an answer waits at a node that is about to end until its place is given back. What was checked before is no
/// older than that.
const PLACE_BACK_WITHIN: Duration = Duration::from_millis(100);

/// For how long a hand-over waits until this node has given back what it holds, and how often it looks.
const GIVE_BACK_WITHIN: Duration = Duration::from_millis(100);
const GIVEN_BACK_CHECK: Duration = Duration::from_millis(2);

/// The limits of all keys, shared with other nodes.
pub struct SharedLimits {
    pub(super) config: Cluster,
    pub(super) clock: Clock,
    pub redis_clock: Arc<RedisClock>,
    /// Names this process among all that ever had this node's name: 16 hexadecimal digits.
    pub(super) incarnation: String,
    pub(super) queue: TurnQueue,
    /// For the keys.
    this: Weak<SharedLimits>,
    /// Keys that have something to say to Redis once it answers again. One that is forgotten meanwhile, as one is that the
    /// origin refuses, has not: strangers may try any number of keys.
    pub(super) stalled: Mutex<Vec<Weak<KeyEscrow>>>,
    pub counters: Counters,
    /// All keys that a request came for, by their names in Redis.
    keys: Mutex<HashMap<Arc<str>, Weak<KeyEscrow>>>,
    /// In a row.
    failures: AtomicU32,
    /// Answers come later than requests wait for them.
    is_late: AtomicBool,
    /// Since when Redis has failed or was late; 0: it is well.
    failing_since: AtomicU64,
    /// Since when it is well again; 0: since the start.
    well_since: AtomicU64,
    nodes_seen: AtomicU32,
    /// Redis may remove keys, as it last said.
    evicts: AtomicBool,
    /// What all nodes told, and when it was read.
    nodes: Mutex<(Tick, Nodes)>,
    started: Tick,
    /// Whether this node gives back what no request needs, since it is about to end.
    is_leaving: AtomicBool,
    /// What this node does, and since when; `None`: it has ended.
    state: Mutex<(Option<NodeState>, Tick)>,
    pub(super) state_changed: Notify,
}

/// What `/metrics` shows.
#[derive(Debug, Default)]
pub struct Counters {
    /// Turns that were answered, and those that were not.
    pub turns: [AtomicU64; 2],
    /// Requests that waited for a turn.
    pub waited: AtomicU64,
    /// Requests that were decided without Redis, by `when_away`.
    pub decided_away: AtomicU64,
    /// Turns of which Redis knew less than this node: it has lost data.
    pub lost: AtomicU64,
    /// Keys in which something stood that is not ours, which was replaced; the bus counts here, too.
    pub garbage: Arc<AtomicU64>,
}

/// How long a request waits for turns.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    until: Instant,
    /// Whatever the turns of other keys take before its own.
    latest: Instant,
}

impl Wait {
    /// Whether the request may wait on.
    pub fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }
}

/// The buckets of which a request has no token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs(u8);

impl Needs {
    pub fn add(&mut self, bucket: Bucket) {
        self.0 |= 1 << bucket as u8;
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn buckets(self) -> impl Iterator<Item = Bucket> {
        Bucket::ALL.into_iter().filter(move |bucket| self.0 & (1 << *bucket as u8) != 0)
    }
}

impl fmt::Debug for SharedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimits").field("config", &self.config).finish_non_exhaustive()
    }
}

impl SharedLimits {
    pub(super) fn new(config: Cluster, clock: Clock) -> Arc<Self> {
        let now = clock.now();
        let redis_clock = Arc::new(RedisClock::new(clock.unix_ms().saturating_mul(1000), now));
        Arc::new_cyclic(|this| SharedLimits {
            config,
            clock,
            redis_clock,
            incarnation: format!("{:016x}", fastrand::u64(..)),
            queue: TurnQueue::default(),
            this: this.clone(),
            stalled: Mutex::default(),
            counters: Counters::default(),
            keys: Mutex::default(),
            failures: AtomicU32::new(0),
            is_late: AtomicBool::new(false),
            failing_since: AtomicU64::new(0),
            well_since: AtomicU64::new(0),
            nodes_seen: AtomicU32::new(1),
            evicts: AtomicBool::new(false),
            nodes: Mutex::default(),
            started: now,
            is_leaving: AtomicBool::new(false),
            state: Mutex::new((Some(NodeState::Starting), now)),
            state_changed: Notify::new(),
        })
    }

    /// The name in Redis of the key with this id.
    fn name_of(&self, id: &KeyId) -> String {
        format!("{}:l:{id}", self.config.prefix)
    }

    /// Whether this is the escrow of the key with this id.
    pub fn is_of(&self, key: &KeyEscrow, id: &KeyId) -> bool {
        key.is_listed && *key.name == *self.name_of(id)
    }

    /// Whether this is the escrow of a key that is not listed any more and had this id last.
    pub fn has_left(&self, key: &KeyEscrow, id: &KeyId) -> bool {
        !key.is_listed && *key.name == *self.name_of(id)
    }

    /// The escrow of a key. A key that is made again, as one is that the origin has not proven yet, goes on with what it
    /// holds: to Redis, this process is one holder.
    pub fn key(&self, id: &KeyId, tier: &Arc<Tier>, counts: Box<dyn LocalCounts>) -> Arc<KeyEscrow> {
        let name: Arc<str> = self.name_of(id).into();
        let mut keys = self.keys.lock();
        if let Some(key) = keys.get(&name).and_then(Weak::upgrade) {
            key.escrow.add_counts(counts);
            return key;
        }
        if keys.len() == keys.capacity() {
            keys.retain(|_, key| key.strong_count() > 0); // keys that were removed
            // At least as many may come before the next time.
            let live = keys.len();
            keys.shrink_to(2 * live);
            keys.reserve(live);
        }
        let now = self.clock.now();
        let escrow = Escrow::new(tier.clone(), counts, now);
        escrow.set_leaving(self.is_leaving.load(Ordering::SeqCst), now);
        let key = KeyEscrow::new(name.clone(), true, escrow, self.this.clone());
        keys.insert(name, Arc::downgrade(&key));
        key
    }

    /// The escrow of a key from now on, which is not listed any more: Redis is asked and told nothing of it.
    pub fn unlisted(&self, key: &KeyEscrow, tier: &Arc<Tier>, used_up: &UsedUp) -> Arc<KeyEscrow> {
        let now = self.clock.now();
        let escrow = Escrow::new(tier.clone(), Box::new(NoCounts), now);
        let _ = escrow.charge_as(used_up, now); // no turn is taken
        KeyEscrow::new(key.name.clone(), false, escrow, self.this.clone())
    }

    /// Ends all leases: this machine slept, and its monotonic clock with it, so they may have ended.
    pub(super) fn end_leases(&self) {
        self.live_keys().iter().for_each(|key| key.escrow.end_leases());
    }

    /// Whether this node is about to end. If it is, it gives back at once what no request needs: a caller that comes to
    /// another node is to be refused for nothing that this one holds.
    pub fn set_leaving(&self, is_leaving: bool) {
        self.is_leaving.store(is_leaving, Ordering::SeqCst); // a key that is made meanwhile is told by `key`
        let now = self.clock.now();
        self.live_keys().iter().for_each(|key| key.follow(key.escrow.set_leaving(is_leaving, now)));
    }

    /// As [`SharedLimits::set_leaving`], and waits until all places are given back that no request needs, for a moment at
    /// most.
    pub async fn leave(&self) {
        self.set_leaving(true);
        let given_back = async {
            let mut keys = self.live_keys();
            while !self.is_away() {
                keys.retain(|key| key.escrow.holds_free_place(self.clock.now()));
                if keys.is_empty() {
                    return;
                }
                sleep(GIVEN_BACK_CHECK).await;
            }
        };
        let _ = timeout(GIVE_BACK_WITHIN, given_back).await; // what is left is held until its lease ends
    }

    /// The hand-over did not take place: this node goes on, unless it is to stop by now.
    pub fn stay(&self) {
        if self.state.lock().0 == Some(NodeState::Serving) {
            self.set_leaving(false);
        }
    }

    /// This node ends: asks for a turn of each key of which something is to be given back or told.
    pub(super) fn end(&self) {
        let now = self.clock.now();
        self.live_keys().iter().for_each(|key| key.follow(key.escrow.end(now)));
    }

    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// Waits until Redis has back the place of a request of this key that has ended, for a moment at most: its caller may ask
    /// another node in the next one.
    pub async fn place_given_back(&self, key: &Arc<KeyEscrow>) {
        let until = Instant::now() + PLACE_BACK_WITHIN;
        let mut wait = Wait { until, latest: until };
        // A turn that was under way when the request ended, and the one after it.
        for _ in 0..2 {
            if !self.is_leaving() || self.is_away() || !key.escrow.holds_free_place(self.clock.now()) {
                return;
            }
            self.wait_for_turn(key, Needs::default(), &mut wait).await;
        }
    }

    fn live_keys(&self) -> Vec<Arc<KeyEscrow>> {
        self.keys.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// How long a request that begins to wait now may wait.
    pub fn wait(&self) -> Wait {
        // A node that is about to end has no place in store: each request waits for one turn, and for the one before that.
        let least = if self.is_leaving() { COMMAND_TIMEOUT } else { Duration::ZERO };
        let now = Instant::now();
        let until = now + self.config.timeout.max(least);
        Wait { until, latest: until.max(now + MAX_WAIT) }
    }

    pub fn when_away(&self) -> WhenAway {
        self.config.when_away
    }

    /// By how many nodes a limit is divided while Redis is away.
    pub fn nodes(&self) -> u32 {
        self.config.nodes.max(self.nodes_seen.load(Ordering::Relaxed))
    }

    /// Whether nobody waits for Redis.
    pub fn is_away(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES || self.is_late.load(Ordering::Relaxed)
    }

    /// Since when Redis has failed or was late; `now` if it is well.
    pub fn failing_since(&self, now: Tick) -> Tick {
        match self.failing_since.load(Ordering::Relaxed) {
            0 => now,
            since => Tick(since),
        }
    }

    /// Asks for a turn and does not wait for it.
    pub fn ask(&self, key: &Arc<KeyEscrow>, needs: Needs) {
        key.follow(key.escrow.need(needs.buckets()));
    }

    /// Asks for a turn, and waits until one of this key has ended. What the turns of other keys take before it does not count
    /// as a wait for Redis.
    pub async fn wait_for_turn(&self, key: &Arc<KeyEscrow>, needs: Needs, wait: &mut Wait) {
        if !key.is_listed {
            wait.until = Instant::now(); // no turn comes
            return;
        }
        let mut ended = std::pin::pin!(key.ended.notified());
        ended.as_mut().enable();
        self.ask(key, needs);
        while timeout_at(wait.until.into(), ended.as_mut()).await.is_err() {
            let now = Instant::now();
            let until = match key.escrow.turn_state() {
                _ if self.is_away() => return,
                TurnState::None => return,
                TurnState::Queued => now + self.config.timeout,
                TurnState::Begun(at) => (now + self.config.timeout) - self.clock.now().since(at),
            };
            wait.until = until.min(wait.latest);
            if wait.until <= now {
                return;
            }
        }
    }

    /// A request was admitted without a lease, which [`Escrow`] has noted: Redis is told of it once it answers.
    pub fn stall(&self, key: &Arc<KeyEscrow>) {
        if key.escrow.stall() {
            let mut stalled = self.stalled.lock();
            if stalled.len() == stalled.capacity() {
                stalled.retain(|key| key.strong_count() > 0);
                // At least as many may come before the next time.
                let live = stalled.len();
                stalled.reserve(live);
            }
            stalled.push(Arc::downgrade(key));
        }
    }

    pub fn count_decided_away(&self) {
        self.counters.decided_away.fetch_add(1, Ordering::Relaxed);
    }

    /// This node does something else from now on, which the others are told at once; `None`: it ends.
    pub fn set_state(&self, state: Option<NodeState>) {
        *self.state.lock() = (state, self.clock.now());
        self.state_changed.notify_one();
    }

    /// What this node tells the others; empty: it ends.
    pub(super) fn record(&self, NodeReport { config_hash, keys_hash, writes_age }: NodeReport) -> String {
        let now = self.clock.now();
        let (Some(state), since) = *self.state.lock() else { return String::new() };
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let keys = self.keys.lock();
        let held = keys.values().filter_map(Weak::upgrade).map(|key| key.escrow.lease(Bucket::Main).tokens(now));
        let node = Node {
            incarnation: self.incarnation.clone(),
            age_ms: 0,
            node: self.config.node.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config_hash: config_hash.to_string(),
            keys_hash: keys_hash.map(|hash| hash.to_string()),
            state,
            state_ms: millis(now.since(since)),
            uptime_ms: millis(now.since(self.started)),
            held_tokens: held.map(u64::from).sum(),
            writes_age_ms: writes_age.map(millis),
            cut_off: writes_age >= Some(MAX_AGE),
        };
        serde_json::to_string(&node).unwrap_or_default() // it has no map
    }

    /// What all nodes told was read now.
    pub(super) fn set_nodes(&self, nodes: Nodes) {
        let (count, now) = (nodes.count().max(1), self.clock.now());
        // After an outage the other nodes tell of themselves one after the other, and one that is alone is no proof of it.
        let well_for = now.since(Tick(self.well_since.load(Ordering::Relaxed)));
        if self.failing_since.load(Ordering::Relaxed) == 0 && well_for >= COUNTS_FOR {
            self.nodes_seen.store(count, Ordering::Relaxed);
        } else {
            self.nodes_seen.fetch_max(count, Ordering::Relaxed);
        }
        let key = nodes::key(&self.config); // that one is named by its own line
        let is_new = |name: &&String| **name != key && !self.nodes.lock().1.ignored.contains(*name);
        for name in nodes.ignored.iter().filter(is_new) {
            self.counters.garbage.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(name, "in Redis, something that is no record of a node stands among them, and is ignored");
        }
        *self.nodes.lock() = (now, nodes);
    }

    /// Notes whether Redis may remove keys, and warns when it begins to.
    pub(super) fn set_evicts(&self, evicts: bool) {
        if !self.evicts.swap(evicts, Ordering::Relaxed) && evicts {
            tracing::warn!("{}", evicts_text(&self.config));
        }
    }

    /// All nodes, as they were told within the last second, or before Redis was away.
    pub fn status(&self) -> ClusterStatus {
        let (read_at, nodes) = self.nodes.lock().clone();
        let nodes = nodes.later(self.clock.now().since(read_at));
        let mut warnings = if self.is_away() { Vec::new() } else { nodes.warnings() };
        warnings.extend(self.evicts.load(Ordering::Relaxed).then(|| evicts_text(&self.config)));
        ClusterStatus { redis: self.config.redis.to_string(), nodes: nodes.into_list(), warnings }
    }

    /// How many configurations the nodes have that serve, and how many key files.
    pub fn configurations(&self) -> [usize; 2] {
        let nodes = &self.nodes.lock().1;
        COMPARED.map(|compared| nodes.by_hash(&compared).len())
    }

    /// A command succeeded.
    pub(super) fn succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
        if !self.is_away() && self.failing_since.swap(0, Ordering::Relaxed) != 0 {
            self.well_since.store(self.clock.now().0, Ordering::Relaxed);
        }
    }

    /// A command failed.
    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.note_failing();
    }

    pub(super) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Relaxed)
    }

    /// Commands succeed too late for requests to wait for them, or in time again.
    pub(super) fn set_late(&self, is_late: bool) {
        self.is_late.store(is_late, Ordering::Relaxed);
        if is_late {
            self.note_failing();
        }
    }

    fn note_failing(&self) {
        let now = self.clock.now().0.max(1);
        let _ = self.failing_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed); // failing since then
    }
}

#[cfg(test)]
mod tests;
