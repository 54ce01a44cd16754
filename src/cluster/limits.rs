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

use super::nodes::{NodeRecords, NodeState};
use super::redis::{RedisConnection, RedisFault, note_garbage};
use crate::clock::{Clock, Tick};
use crate::config::{Cluster, Tier, WhenAway};
use crate::keys::Key;
use crate::limits::{Budget, DayCount, DecidedBy, Told};
use crate::model::{KeyId, Limit, PerRate};

/// Failures in a row after which Redis is away, and no request waits for it.
const FAILURES: u32 = 3;

/// How long a refusal is remembered at most: so much later another node's refusal may have been told of a reset or a reload.
const REMEMBERED: Duration = Duration::from_millis(100);

/// The limits of all keys, shared with other nodes.
#[derive(Debug)]
pub struct SharedLimits {
    pub(super) config: Cluster,
    pub(super) clock: Clock,
    script: Script,
    connection: tokio::sync::Mutex<Option<RedisConnection>>,
    pub counters: Counters,
    /// In a row.
    pub(super) failures: AtomicU32,
    /// Names this process among all that ever had this node's name: 16 hexadecimal digits.
    pub(super) incarnation: String,
    pub(super) started: Instant,
    /// How many nodes count, as last seen.
    pub(super) nodes_seen: AtomicU32,
    pub(super) nodes: Mutex<NodeRecords>,
    /// The other nodes are to be told something, or Redis has just gone away.
    pub(super) wake: Notify,
}

/// What `/metrics` shows.
#[derive(Debug, Default)]
pub struct Counters {
    /// Questions that were answered, and those that were not.
    pub questions: [AtomicU64; 2],
    /// Requests that were decided without Redis, by `when_away`.
    pub decided_away: AtomicU64,
}

/// What the script answers: the last line of `limit.lua`.
pub(super) type ScriptAnswer = (u64, u64, u64, u64, u64, PerRate<u64>);

/// Decides on the requests of one key.
pub(super) fn limit_script() -> Script {
    Script::new(include_str!("limit.lua"))
}

impl SharedLimits {
    pub(super) fn new(config: Cluster, clock: Clock) -> Arc<Self> {
        let nodes = NodeRecords { state: Some(NodeState::Starting), list: Vec::new(), read_at: clock.now() };
        Arc::new(SharedLimits {
            config,
            clock,
            script: limit_script(),
            connection: tokio::sync::Mutex::default(),
            counters: Counters::default(),
            failures: AtomicU32::new(0),
            incarnation: format!("{:016x}", fastrand::u64(..)),
            started: Instant::now(),
            nodes_seen: AtomicU32::new(1),
            nodes: Mutex::new(nodes),
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

    pub fn count_decided_away(&self) {
        self.counters.decided_away.fetch_add(1, Ordering::Relaxed);
    }

    /// This node does something else from now on, which the others are told at once; `None`: it ends.
    pub fn set_state(&self, state: Option<NodeState>) {
        self.nodes.lock().state = state;
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
        self.add(key, is_write, Some(sender));
        timeout(self.config.timeout, answer).await.ok()?.ok()?
    }

    /// Tells Redis that the day of this key was given back. If it cannot be told now, it is with the next question.
    pub fn reset_day(self: &Arc<Self>, key: &Arc<Key>) {
        let questions = &key.budget.questions;
        questions.resets_day.store(true, Ordering::Release);
        questions.open.iter().for_each(|question| question.lock().refused = None);
        self.add(key, false, None);
    }

    /// Adds a request to the next question, and asks it unless one is under way.
    fn add(self: &Arc<Self>, key: &Arc<Key>, is_write: bool, sender: Option<oneshot::Sender<Option<Told>>>) {
        let mut question = key.budget.questions.open[usize::from(is_write)].lock();
        question.waiting.extend(sender);
        question.policy = Some(key.policy.clone());
        if !mem::replace(&mut question.is_under_way, true) {
            let (limits, key) = (self.clone(), key.clone());
            tokio::spawn(async move { limits.ask_all(&key.id, &key.budget, is_write).await });
        }
    }

    /// Asks until nobody waits.
    async fn ask_all(&self, id: &KeyId, budget: &Budget, is_write: bool) {
        let question = &budget.questions.open[usize::from(is_write)];
        let name = format!("{}:l:{id}", self.config.prefix);
        loop {
            let (waiting, policy) = {
                let mut question = question.lock();
                let waiting: Vec<_> = mem::take(&mut question.waiting).into_iter().filter(|w| !w.is_closed()).collect();
                let resets = budget.questions.resets_day.load(Ordering::Acquire);
                match question.policy.take() {
                    Some(policy) if !waiting.is_empty() || resets => (waiting, policy),
                    Some(_) | None => {
                        question.is_under_way = false;
                        return;
                    }
                }
            };
            let answer = self.question(&name, waiting.len(), is_write, policy.tier(), budget).await;
            let Some((let_in, told)) = answer else { continue }; // those that wait are told by their channel's end
            if let_in < waiting.len() {
                let wait = told.over(policy.tier(), is_write).1.min(REMEMBERED);
                question.lock().refused = Some((told.at.plus(wait), told));
            }
            for (n, request) in waiting.into_iter().enumerate() {
                let _ = request.send(Some(Told { admitted: n < let_in, ..told })); // it may have waited too long
            }
        }
    }

    /// Asks Redis about so many requests of a key: how many of them are let in, and what is left.
    async fn question(
        &self,
        name: &str,
        requests: usize,
        is_write: bool,
        tier: &Tier,
        budget: &Budget,
    ) -> Option<(usize, Told)> {
        let resets = budget.questions.resets_day.swap(false, Ordering::AcqRel);
        let known = budget.day();
        let day = [tier.daily.unwrap_or(0), known.day.unsigned_abs(), known.count];
        let rates = Limit::RATES.iter().zip(tier.rates()).flat_map(|(limit, rate)| {
            let (period, burst) = rate.map_or((0, 0), |rate| (rate.period_ns, rate.burst.get()));
            [period, burst.into(), limit.counts(is_write).into()]
        });
        let arguments: Vec<u64> = [requests as u64, resets.into()].into_iter().chain(day).chain(rates).collect();
        match self.run_script(name, &arguments).await {
            Ok((let_in, day, count, unix, garbage, owed)) => {
                if garbage != 0 {
                    note_garbage(name);
                }
                let owed = owed.map(Duration::from_nanos);
                let day = DayCount { day: day.cast_signed(), count };
                let told = Told { admitted: false, at: self.clock.now(), unix: unix.cast_signed(), owed, day };
                Some((usize::try_from(let_in).unwrap_or(0), told))
            }
            Err(fault) => {
                budget.questions.resets_day.fetch_or(resets, Ordering::AcqRel);
                self.failed(&fault);
                None
            }
        }
    }

    /// Runs the script. If the connection turns out to be closed, it is made again and the script is run again.
    pub(super) async fn run_script(&self, name: &str, arguments: &[u64]) -> Result<ScriptAnswer, RedisFault> {
        let run = async {
            let mut is_again = false;
            loop {
                let connection = self.connection().await?;
                match connection.run_script(&self.script, name, arguments).await {
                    Err(fault) if fault.needs_connection && !mem::replace(&mut is_again, true) => self.disconnect(),
                    answer => return answer,
                }
            }
        };
        let late = |_| RedisFault::late("a command", self.config.timeout);
        let answer = timeout(self.config.timeout, run).await.map_err(late).flatten();
        self.counters.questions[usize::from(answer.is_err())].fetch_add(1, Ordering::Relaxed);
        if answer.is_ok() && !self.is_away() {
            self.failures.store(0, Ordering::Relaxed);
        }
        answer
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
