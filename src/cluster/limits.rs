//! The limits that all nodes have together: one script in Redis decides on the requests of a key, and this module asks it.
//! Requests of a key that come while it is being asked about go together as the next question, those of reads and writes
//! apart. A refusal is remembered for the time that it says, at most 100 ms, so that a flood costs Redis nothing. While
//! Redis does not answer, this node decides by `cluster.when_away`.

use std::mem;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Script;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::nodes::{Node, NodeState};
use super::redis::{RedisConnection, RedisFault, in_time};
use crate::clock::{Clock, Tick};
use crate::config::{Cluster, Tier, WhenAway};
use crate::keys::Key;
use crate::limits::{DayCount, DecidedBy, Told};
use crate::model::{Limit, PerRate};

/// Failures in a row after which Redis is away, and no request waits for it.
const FAILURES: u32 = 3;

/// How long a refusal is remembered at most: so much later another node's refusal may have been told of a reset or a reload.
const REMEMBERED: Duration = Duration::from_millis(100);

/// What the script answers: the last line of `limit.lua`.
pub(super) type ScriptAnswer = (usize, i64, u64, i64, PerRate<u64>);

/// A question about no request.
pub(super) const NO_QUESTION: [u64; 5 + 3 * Limit::RATES.len()] = [0; _];

/// The limits of all keys, shared with other nodes.
#[derive(Debug)]
pub struct SharedLimits {
    pub(super) config: Cluster,
    clock: Clock,
    script: Script,
    connection: tokio::sync::Mutex<Option<RedisConnection>>,
    /// Questions that were answered, and those that were not.
    pub questions: [AtomicU64; 2],
    /// Requests that were decided without Redis, by `when_away`.
    pub decided_away: AtomicU64,
    /// In a row.
    failures: AtomicU32,
    /// Names this process among all that ever had this node's name: 16 hexadecimal digits.
    pub(super) incarnation: String,
    pub(super) started: Instant,
    /// How many nodes count, as last seen.
    pub(super) nodes_seen: AtomicU32,
    /// What this node does; `None`: it has ended.
    pub(super) state: Mutex<Option<NodeState>>,
    /// All nodes, as last seen.
    pub(super) nodes: Mutex<Vec<Node>>,
    /// The other nodes are to be told something, or Redis has just gone away.
    pub(super) wake: Notify,
}

/// Decides on the requests of one key.
pub(super) fn limit_script() -> Script {
    Script::new(include_str!("limit.lua"))
}

impl SharedLimits {
    pub(super) fn new(config: Cluster, clock: Clock) -> Arc<Self> {
        Arc::new(SharedLimits {
            config,
            clock,
            script: limit_script(),
            connection: tokio::sync::Mutex::default(),
            questions: Default::default(),
            decided_away: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            incarnation: format!("{:016x}", fastrand::u64(..)),
            started: Instant::now(),
            nodes_seen: AtomicU32::new(1),
            state: Mutex::new(Some(NodeState::Starting)),
            nodes: Mutex::default(),
            wake: Notify::new(),
        })
    }

    /// Whether nobody waits for Redis.
    pub fn is_away(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES
    }

    /// Whether no request is admitted that Redis does not decide.
    pub fn refuses_alone(&self) -> bool {
        self.config.when_away == WhenAway::Refuse
    }

    /// By how many nodes a limit is divided while Redis is away.
    pub fn nodes(&self) -> u32 {
        self.config.nodes.max(self.nodes_seen.load(Ordering::Relaxed))
    }

    /// Who decides on a request: Redis, which has told this, or this node.
    pub fn by(&self, told: Option<Told>) -> DecidedBy {
        let nodes = if self.config.when_away == WhenAway::Share { self.nodes() } else { 1 };
        DecidedBy { nodes: NonZeroU32::new(nodes).unwrap_or(NonZeroU32::MIN), told }
    }

    /// This node does something else from now on, which the others are told at once; `None`: it ends.
    pub fn set_state(&self, state: Option<NodeState>) {
        *self.state.lock() = state;
        self.wake.notify_one();
    }

    /// The refusal that is remembered of a key.
    pub fn refusal(&self, key: &Key, is_write: bool, now: Tick) -> Option<Told> {
        let question = key.budget.questions.open[usize::from(is_write)].lock();
        question.refused.filter(|(until, _)| now < *until).map(|(_, told)| told)
    }

    /// Asks Redis to charge one request, and waits for `cluster.timeout` at most; `None`: it has not answered.
    pub async fn ask(self: &Arc<Self>, key: &Arc<Key>, is_write: bool) -> Option<Told> {
        let (sender, answer) = oneshot::channel();
        let is_under_way = {
            let mut question = key.budget.questions.open[usize::from(is_write)].lock();
            question.waiting.push((key.policy.clone(), sender));
            mem::replace(&mut question.is_under_way, true)
        };
        if !is_under_way {
            let (limits, key) = (self.clone(), key.clone());
            tokio::spawn(async move { limits.ask_all(&key, is_write).await });
        }
        timeout(self.config.timeout, answer).await.ok()?.ok()
    }

    /// Tells Redis that the day of this key was given back. If it cannot be told now, it is with the next question.
    pub fn reset_day(self: &Arc<Self>, key: &Arc<Key>) {
        let questions = &key.budget.questions;
        questions.resets_day.store(true, Ordering::Release);
        questions.open.iter().for_each(|question| question.lock().refused = None);
        let (limits, key) = (self.clone(), key.clone());
        tokio::spawn(async move { limits.question(&key, key.policy.tier(), 0, false).await });
    }

    /// Asks until nobody waits.
    async fn ask_all(&self, key: &Key, is_write: bool) {
        let question = &key.budget.questions.open[usize::from(is_write)];
        loop {
            let waiting = {
                let mut question = question.lock();
                question.waiting.retain(|(_, request)| !request.is_closed());
                question.is_under_way = !question.waiting.is_empty();
                mem::take(&mut question.waiting)
            };
            let Some((policy, _)) = waiting.last() else { return };
            let tier = policy.tier().clone();
            let answer = self.question(key, &tier, waiting.len(), is_write).await;
            let Some((let_in, told)) = answer else { continue }; // those that wait are told by their channel's end
            if let_in < waiting.len() {
                let wait = told.over(&tier, is_write).1.min(REMEMBERED);
                question.lock().refused = Some((told.at.plus(wait), told));
            }
            for (n, (_, request)) in waiting.into_iter().enumerate() {
                let _ = request.send(Told { admitted: n < let_in, ..told }); // it may have waited too long
            }
        }
    }

    /// Asks Redis about so many requests of a key: how many of them are let in, and what is left. After a fault, such as
    /// that the connection is closed, it is asked once more on another connection.
    async fn question(&self, key: &Key, tier: &Tier, requests: usize, is_write: bool) -> Option<(usize, Told)> {
        let (budget, name) = (&key.budget, format!("{}:l:{}", self.config.prefix, key.id));
        let resets = budget.questions.resets_day.swap(false, Ordering::AcqRel);
        let known = budget.day().last();
        let day = [tier.daily.unwrap_or(0), known.day.unsigned_abs(), known.count];
        let rates = Limit::RATES.iter().zip(tier.rates()).flat_map(|(limit, rate)| {
            let (period, burst) = rate.map_or((0, 0), |rate| (rate.period_ns, rate.burst.get()));
            [period, burst.into(), limit.counts(is_write).into()]
        });
        let asked: Vec<u64> = [requests as u64, resets.into()].into_iter().chain(day).chain(rates).collect();
        let once = async || self.connection().await?.run_script(&self.script, &name, &asked).await;
        let twice = async {
            match once().await {
                Err(_) => {
                    self.disconnect();
                    once().await
                }
                answer => answer,
            }
        };
        let answer: Result<ScriptAnswer, _> = in_time("a command", self.config.timeout, twice).await;
        self.questions[usize::from(answer.is_err())].fetch_add(1, Ordering::Relaxed);
        match answer {
            Ok((let_in, day, count, unix, owed)) => {
                self.answered();
                let (owed, day) = (owed.map(Duration::from_nanos), DayCount { day, count });
                Some((let_in, Told { admitted: false, at: self.clock.now(), unix, owed, day }))
            }
            Err(fault) => {
                budget.questions.resets_day.fetch_or(resets, Ordering::AcqRel);
                self.failed(&fault);
                None
            }
        }
    }

    /// The connection that all share; it is made if there is none.
    pub(super) async fn connection(&self) -> Result<RedisConnection, RedisFault> {
        let mut shared = self.connection.lock().await;
        if let Some(connection) = &*shared {
            return Ok(connection.clone());
        }
        Ok(shared.insert(RedisConnection::open(&self.config.redis).await?).clone())
    }

    /// Does without the connection, unless one is being made.
    pub(super) fn disconnect(&self) {
        if let Ok(mut shared) = self.connection.try_lock() {
            *shared = None;
        }
    }

    /// Redis answered in time. If it was away, it is back, which is said once.
    pub(super) fn answered(&self) {
        if self.failures.swap(0, Ordering::Relaxed) >= FAILURES {
            tracing::info!("Redis at {} is back; limits are shared by all nodes again", self.config.redis);
        }
    }

    /// Redis did not answer. The third time in a row it is away, which is said once.
    pub(super) fn failed(&self, fault: &RedisFault) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 == FAILURES {
            let at = &self.config.redis;
            let meanwhile = match self.config.when_away {
                WhenAway::Share => "each node gives a key its part of the limits",
                WhenAway::Local => "each node limits on its own",
                WhenAway::Refuse => "requests are refused with 21",
            };
            tracing::error!(%fault, "Redis at {at} is away; until it answers, {meanwhile} (cluster.when_away)");
            self.wake.notify_one();
        }
    }
}
