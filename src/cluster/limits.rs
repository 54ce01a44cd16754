//! The limits that all nodes have together: one script in Redis decides on the requests of a key, and this module asks it.
//! Requests of a key that come while it is being asked about go together as the next question, those of reads and writes
//! apart. A refusal is remembered for the time that it says, at most 100 ms, so that a flood costs Redis nothing. While
//! Redis does not answer, this node decides by `cluster.when_away`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::Script;
use tokio::time::{Instant, sleep, timeout_at};

use super::nodes::{Node, NodeState, PROBE_EVERY, START_TIMEOUT, check, evicts_text};
use super::redis::{RedisConnection, RedisFault, in_time};
use crate::clock::{Clock, Tick};
use crate::config::{Cluster, WhenAway};
use crate::keys::Key;
use crate::limits::{Answer, DayCount, DecidedBy, Told};
use crate::model::{Limit, PerRate};

/// Failures in a row after which Redis is away, and no request waits for it.
const FAILURES: u32 = 3;

/// How long a refusal is remembered at most: so much later another node's refusal may have been told of a reset or a reload.
const REMEMBERED: Duration = Duration::from_millis(100);

/// What the script answers: the last line of `limit.lua`.
pub(super) type ScriptAnswer = (u64, i64, u64, i64, PerRate<u64>);

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
    /// What this node does.
    pub(super) state: Mutex<NodeState>,
    /// All nodes, as last seen.
    pub(super) nodes: Mutex<Vec<Node>>,
    pub(super) has_left: AtomicBool,
}

/// Decides on the requests of one key.
pub(super) const LIMIT_SCRIPT: &str = include_str!("limit.lua");

impl SharedLimits {
    /// Connects, and tries for five seconds.
    ///
    /// # Errors
    /// Why Redis cannot be used, as a text for people.
    pub async fn start(config: Cluster, clock: Clock) -> Result<Arc<Self>, String> {
        let started = Instant::now();
        let info = loop {
            match check(&config).await {
                Ok((info, _)) => break info,
                Err(_) if started.elapsed() < START_TIMEOUT => sleep(PROBE_EVERY).await,
                Err(fault) => return Err(format!("Redis at {} cannot be used: {fault}", config.redis)),
            }
        };
        if info.evicts {
            tracing::warn!("{}", evicts_text(&config));
        }
        Ok(Arc::new(SharedLimits {
            config,
            clock,
            script: Script::new(LIMIT_SCRIPT),
            connection: tokio::sync::Mutex::default(),
            questions: Default::default(),
            decided_away: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            incarnation: format!("{:016x}", fastrand::u64(..)),
            started,
            nodes_seen: AtomicU32::new(1),
            state: Mutex::new(NodeState::Starting),
            nodes: Mutex::default(),
            has_left: AtomicBool::new(false),
        }))
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
        DecidedBy { nodes: if self.config.when_away == WhenAway::Share { self.nodes() } else { 1 }, told }
    }

    /// This node does something else from now on.
    pub fn set_state(&self, state: NodeState) {
        *self.state.lock() = state;
    }

    /// The refusal that is remembered of a key.
    pub fn refusal(&self, key: &Key, is_write: bool, now: Tick) -> Option<Told> {
        key.budget.questions[usize::from(is_write)].last.try_lock().ok()?.refusal(now)
    }

    /// Asks Redis to charge one request, and waits for `cluster.timeout` at most; `None`: it has not answered. All that came
    /// while a question was under way are in the next one.
    pub async fn ask(&self, key: &Key, is_write: bool) -> Option<Told> {
        let deadline = Instant::now() + self.config.timeout;
        let question = &key.budget.questions[usize::from(is_write)];
        let number = question.came.fetch_add(1, Ordering::Relaxed);
        let mut last = timeout_at(deadline, question.last.lock()).await.ok()?;
        if number >= last.asked.end {
            let asked = last.asked.end..question.came.load(Ordering::Relaxed);
            if last.refusal(self.clock.now()).is_some() {
                last.asked.end = asked.end; // they are beyond those that were let in
            } else {
                let requests = asked.end - asked.start;
                // Boxed, so that a request needs no room for it where nothing is shared.
                let answer = self.question(key, requests, is_write, deadline).boxed().await;
                let (let_in, told) = answer.map_or((0, None), |(let_in, told)| (let_in, Some(told)));
                let refused = told.filter(|_| let_in < requests);
                let wait = refused.map_or(Duration::ZERO, |told| told.over(key.policy.tier(), is_write).1);
                let refused_until = self.clock.now().plus(wait.min(REMEMBERED));
                *last = Answer { asked, let_in, told, refused_until };
            }
        }
        // One that waits for its turn for longer than a whole question is not in the last one.
        let place = number.checked_sub(last.asked.start)?;
        last.told.map(|told| Told { admitted: place < last.let_in, ..told })
    }

    /// Tells Redis that the day of this key was given back. If it cannot be told now, it is with the next question.
    pub fn reset_day(self: &Arc<Self>, key: &Arc<Key>) {
        key.budget.resets_day.store(true, Ordering::Release);
        let (limits, key, deadline) = (self.clone(), key.clone(), Instant::now() + self.config.timeout);
        tokio::spawn(async move { limits.question(&key, 0, false, deadline).await });
    }

    /// Asks Redis about so many requests of a key: how many of them are let in, and what is left. After a fault, such as
    /// that the connection is closed, it is asked once more on another connection.
    async fn question(&self, key: &Key, requests: u64, is_write: bool, deadline: Instant) -> Option<(u64, Told)> {
        let (tier, budget, name) = (key.policy.tier(), &key.budget, format!("{}:l:{}", self.config.prefix, key.id));
        let resets = budget.resets_day.swap(false, Ordering::AcqRel);
        let known = budget.day().known;
        let day = [tier.daily.unwrap_or(0), known.day.unsigned_abs(), known.count];
        let rates = Limit::RATES.iter().zip(tier.rates()).flat_map(|(limit, rate)| {
            let (period, burst) = rate.map_or((0, 0), |rate| (rate.period_ns, rate.burst.get()));
            [period, burst.into(), limit.counts(is_write).into()]
        });
        let asked: Vec<u64> = [requests, resets.into()].into_iter().chain(day).chain(rates).collect();
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
        let within = deadline - Instant::now();
        let answer: Result<ScriptAnswer, _> = in_time("a command", within, twice).await;
        self.questions[usize::from(answer.is_err())].fetch_add(1, Ordering::Relaxed);
        match answer {
            Ok((let_in, day, count, unix, owed)) => {
                self.answered();
                let (owed, day) = (owed.map(Duration::from_nanos), DayCount { day, count });
                Some((let_in, Told { admitted: false, at: self.clock.now(), unix, owed, day }))
            }
            Err(fault) => {
                budget.resets_day.fetch_or(resets, Ordering::AcqRel);
                // One that had to wait for its turn has had too little of the time to tell whether Redis is away.
                if Instant::now() < deadline || within >= self.config.timeout / 2 {
                    self.failed(&fault);
                }
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
            tracing::error!(%fault, "Redis at {at} is away; until it answers, cluster.when_away decides");
        }
    }
}
