//! Takes the turns of all keys: one task that owns the connection to Redis, connects again where it broke, and says once
//! that Redis is away and once that it is back.

use std::cmp::Reverse;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Script;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::bus::RedisStream;
use super::escrow::{Answer, NextTurn, SCRIPT, Turn};
use super::nodes::{self, NodeReport, Nodes, NodesScript};
use super::redis::{RedisConnection, RedisFault, ServerInfo, note_garbage};
use super::shared_limits::SharedLimits;
use super::turn_queue::{KeyEscrow, Planned};
use crate::clock::Clock;
use crate::config::{Cluster, ConfigHash, WhenAway};

/// How long a start tries to reach Redis.
pub const START_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a turn may take: longer than a request waits for it, so that a slow Redis still renews leases.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_millis(250);

/// Turns under way at once. More would only wait at Redis, where they would be late if thousands of keys have something
/// to say, as when it is back.
const MAX_TURNS: usize = 256;

/// How often a node tells of itself, and tries whether Redis is back.
const BEAT_EVERY: Duration = Duration::from_secs(1);
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// How often a connection in use is asked what the server says of itself: an operator may change its settings.
const INFO_EVERY: Duration = Duration::from_secs(10);

/// The difference of two clocks that are read one after the other by a machine that did not sleep.
const AWAKE: Duration = Duration::from_millis(50);

/// A turn that has ended.
type Ended = (Arc<KeyEscrow>, Arc<Turn>, Result<Answer, RedisFault>);

/// A beat that was answered.
struct Beaten {
    connection: RedisConnection,
    nodes: Nodes,
    took: Duration,
}

/// The task that takes turns.
#[derive(Debug)]
pub struct Turns {
    limits: Arc<SharedLimits>,
    connection: Option<RedisConnection>,
    scripts: Scripts,
    /// Keys that had no turn while Redis was away. They have theirs after those for which requests wait now.
    backlog: Vec<Weak<KeyEscrow>>,
    /// How long beats take, smoothed. If that is longer than a request waits, Redis is away: a key would get nothing but tokens
    /// that come too late.
    beats_take: Duration,
}

#[derive(Clone, Debug)]
struct Scripts {
    turn: Script,
    nodes: NodesScript,
}

impl Scripts {
    fn new() -> Self {
        Scripts { turn: Script::new(SCRIPT), nodes: NodesScript::new() }
    }
}

/// Connects once, as a check does: whether the server can be used, what it says of itself, and how long it took to answer.
///
/// # Errors
/// Why it cannot be used.
pub async fn check(config: &Cluster) -> Result<(ServerInfo, Duration), RedisFault> {
    let connection = RedisConnection::open(&config.redis, COMMAND_TIMEOUT).await?;
    let info = connection.info().await?;
    // The rights on the keys, by the commands that turns use.
    let scripts = Scripts::new();
    let probe = format!("{}:probe", config.prefix);
    scripts.nodes.run(&connection, &probe, "check", "{}").await?; // it loads the script, too
    let begin = Instant::now();
    scripts.nodes.run(&connection, &probe, "check", "").await?;
    let took = begin.elapsed();
    let probe = format!("{}:l:probe", config.prefix);
    let mut arguments = vec!["0".to_owned(), "1".to_owned(), "1000".to_owned()];
    arguments.extend(std::iter::repeat_n("0".to_owned(), 51));
    let numbers: Vec<i64> = connection.run_script(&scripts.turn, &probe, &arguments).await?;
    Answer::read(&numbers).ok_or_else(RedisFault::no_answer)?;
    if let Some(stream) = RedisStream::of(config) {
        stream.check().await?;
    }
    Ok((info, took))
}

impl Turns {
    /// Connects, and tries for five seconds if that fails in a way that may pass.
    ///
    /// # Errors
    /// Why Redis cannot be used, as a text for people.
    pub async fn start(
        config: Cluster,
        config_hash: ConfigHash,
        clock: Clock,
    ) -> Result<(Arc<SharedLimits>, Self), String> {
        let begin = Instant::now();
        loop {
            match check(&config).await {
                Ok(_) => break,
                Err(fault) if fault.may_pass && begin.elapsed() < START_TIMEOUT => sleep(PROBE_EVERY).await,
                Err(fault) => return Err(format!("Redis at {} cannot be used: {fault}", config.redis)),
            }
        }
        let limits = SharedLimits::new(config, clock);
        let scripts = Scripts::new();
        let mut turns = Turns {
            limits: limits.clone(),
            connection: None,
            scripts,
            backlog: Vec::new(),
            beats_take: Duration::ZERO,
        };
        let record = limits.record(NodeReport { config_hash, keys_hash: None, writes_age: None });
        turns.beaten(beat(limits.clone(), None, turns.scripts.nodes.clone(), record, true).await);
        Ok((limits, turns))
    }

    /// Takes turns, and tells the other nodes of this one, until [`SharedLimits::set_state`] says that it ends. Then what
    /// it holds is given back, and what it has spent is told.
    pub async fn run(mut self, report: impl Fn() -> NodeReport + Send) {
        let limits = self.limits.clone();
        let (mut turns, mut beats) = (FuturesUnordered::new(), FuturesUnordered::new());
        let mut probe = interval(PROBE_EVERY);
        probe.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut last_beat, mut last_info) = (Instant::now(), Instant::now());
        let (mut beat_is_due, mut is_last_beat) = (false, false);
        let mut asleep = TimeAsleep::new();
        loop {
            let next = limits.queue.keys.lock().later.peek().map(|Reverse(planned)| planned.at);
            let until_next = next.map_or(BEAT_EVERY, |at| at.since(limits.clock.now()));
            tokio::select! {
                () = limits.queue.wake.notified() => {}
                () = sleep(until_next), if turns.len() < MAX_TURNS => {}
                Some(ended) = turns.next() => self.turn_ended(ended),
                () = limits.state_changed.notified() => beat_is_due = true,
                Some(beaten) = beats.next() => self.beaten(beaten),
                _ = probe.tick() => {
                    if asleep.grew() {
                        limits.end_leases();
                    }
                    let must_probe = self.connection.is_none() || limits.is_away();
                    beat_is_due |= must_probe || last_beat.elapsed() >= BEAT_EVERY;
                }
            }
            if beat_is_due && beats.is_empty() {
                (beat_is_due, last_beat) = (false, Instant::now());
                let record = limits.record(report());
                is_last_beat = record.is_empty();
                let info_is_due = self.connection.is_none() || last_info.elapsed() >= INFO_EVERY;
                if info_is_due {
                    last_info = Instant::now();
                }
                let (connection, script) = (self.connection.clone(), self.scripts.nodes.clone());
                beats.push(beat(limits.clone(), connection, script, record, info_is_due));
            }
            if is_last_beat && turns.is_empty() && self.connection.is_some() {
                limits.end();
            }
            // Nobody waits for the last ones, which may be late.
            if let Some(connection) = self.connection.clone().filter(|_| is_last_beat || !limits.is_away()) {
                for (key, turn) in self.due(MAX_TURNS - turns.len(), true) {
                    turns.push(take(limits.clone(), connection.clone(), self.scripts.turn.clone(), key, turn));
                }
            } else {
                self.due(usize::MAX, false).iter().for_each(|(key, _)| self.stall(key));
            }
            if is_last_beat && beats.is_empty() && turns.is_empty() && self.connection.is_some() {
                return;
            }
        }
    }

    /// The turns to take now, at most so many, with those of the backlog or without.
    fn due(&mut self, most: usize, with_backlog: bool) -> Vec<(Arc<KeyEscrow>, Arc<Turn>)> {
        let limits = &self.limits;
        let now = limits.clock.now();
        let mut queue = limits.queue.keys.lock();
        let waiting = queue.now.len().min(most);
        let mut due: Vec<_> = queue.now.drain(..waiting).map(|key| (None, key)).collect();
        while due.len() < most && queue.later.peek().is_some_and(|Reverse(planned)| planned.at <= now) {
            due.extend(queue.later.pop().map(|Reverse(Planned { at, key })| (Some(at), key)));
        }
        drop(queue);
        while with_backlog
            && due.len() < most
            && let Some(key) = self.backlog.pop()
        {
            due.extend(key.upgrade().filter(|key| key.escrow.unstall() == NextTurn::Now).map(|key| (None, key)));
        }
        due.into_iter().filter_map(|(at, key)| key.escrow.begin_turn(at, now).map(|turn| (key, turn))).collect()
    }

    fn turn_ended(&mut self, (key, turn, result): Ended) {
        let limits = &self.limits;
        match result {
            Ok(answer) => {
                limits.counters.turns[0].fetch_add(1, Ordering::Relaxed);
                if answer.had_garbage {
                    note_garbage(&key.name, &limits.counters.garbage);
                }
                if answer.is_lost && turn.holds_any() {
                    limits.counters.lost.fetch_add(1, Ordering::Relaxed);
                }
                let now = limits.clock.now();
                limits.redis_clock.set(answer.now_us, now);
                let next = key.escrow.finish_turn(&turn, &answer, now);
                key.ended.notify_waiters();
                key.follow(next);
                self.succeeded(self.limits.is_away());
            }
            Err(fault) => {
                limits.counters.turns[1].fetch_add(1, Ordering::Relaxed);
                self.stall(&key);
                key.ended.notify_waiters();
                self.is_failing(&fault);
            }
        }
    }

    /// The turn of a key got no answer: it is taken again once Redis answers.
    fn stall(&self, key: &Arc<KeyEscrow>) {
        key.escrow.fail_turn();
        self.limits.stall(key);
    }

    /// A beat has ended.
    fn beaten(&mut self, result: Result<Beaten, RedisFault>) {
        match result {
            Ok(Beaten { connection, nodes, took }) => {
                self.limits.set_nodes(nodes);
                self.connection = Some(connection);
                let waits = self.limits.config.timeout;
                self.beats_take = smoothed(self.beats_take, took, waits);
                // It has to be quicker than that to be back, so that one about as long as requests wait is away.
                let most = if self.limits.is_late() { waits * 3 / 4 } else { waits };
                let was_away = self.limits.is_away();
                self.limits.set_late(self.beats_take > most);
                self.succeeded(was_away);
                self.say_if_away(was_away, &late_text(&self.limits.config, took));
            }
            Err(fault) => self.is_failing(&fault),
        }
    }

    fn is_failing(&mut self, fault: &RedisFault) {
        let was_away = self.limits.is_away();
        self.limits.failed();
        // A connection over which nothing comes back is no better than none.
        if fault.needs_connection || self.limits.is_away() {
            self.connection = None;
        }
        self.say_if_away(was_away, fault);
    }

    /// Says that Redis is away, and why, if it was not before.
    fn say_if_away(&self, was_away: bool, fault: &dyn fmt::Display) {
        if was_away || !self.limits.is_away() {
            return;
        }
        let at = &self.limits.config.redis;
        let meanwhile = match self.limits.config.when_away {
            WhenAway::Share => "each node gives a key its part of the limits",
            WhenAway::Local => "each node limits on its own",
            WhenAway::Refuse => "requests are refused with 21",
        };
        tracing::error!(%fault, "Redis at {at} is away; until it answers, {meanwhile} (cluster.when_away)");
    }

    /// A command succeeded: what is untold is told.
    fn succeeded(&mut self, was_away: bool) {
        let limits = &self.limits;
        limits.succeeded();
        if was_away && !limits.is_away() {
            tracing::info!("Redis at {} is back; limits are shared by all nodes again", limits.config.redis);
        }
        self.backlog.append(&mut limits.stalled.lock());
    }
}

/// How long this machine has slept, by which its monotonic clock is behind.
struct TimeAsleep(Duration);

impl TimeAsleep {
    fn new() -> Self {
        TimeAsleep(Self::now())
    }

    fn now() -> Duration {
        let at = |clock| {
            let time = clock_gettime(clock);
            Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
        };
        let awake = at(ClockId::Monotonic);
        at(ClockId::Boottime).saturating_sub(awake)
    }

    /// Whether it has slept since the last call.
    fn grew(&mut self) -> bool {
        let before = std::mem::replace(&mut self.0, Self::now());
        self.0.saturating_sub(before) > AWAKE
    }
}

/// How long beats take where one took so long after others took `before`. Requests wait for `waits`; one that took longer than
/// half as long again counts as that, so that one alone never makes Redis late.
fn smoothed(before: Duration, took: Duration, waits: Duration) -> Duration {
    (before + took.min(waits * 3 / 2)) / 2
}

/// Tells the other nodes this record, over a new connection if there is none. Returns the connection, and what all nodes
/// have told.
async fn beat(
    limits: Arc<SharedLimits>,
    connection: Option<RedisConnection>,
    script: NodesScript,
    record: String,
    info_is_due: bool,
) -> Result<Beaten, RedisFault> {
    let connection = match connection {
        Some(connection) => connection,
        None => RedisConnection::open(&limits.config.redis, COMMAND_TIMEOUT).await?,
    };
    if info_is_due {
        limits.set_evicts(connection.info().await?.evicts);
    }
    let key = nodes::key(&limits.config);
    let begin = Instant::now();
    let nodes = script.run(&connection, &key, &limits.incarnation, &record).await?;
    let took = begin.elapsed();
    if nodes.ignored.contains(&key) {
        note_garbage(&key, &limits.counters.garbage);
    }
    Ok(Beaten { connection, nodes, took })
}

async fn take(
    limits: Arc<SharedLimits>,
    connection: RedisConnection,
    script: Script,
    key: Arc<KeyEscrow>,
    turn: Arc<Turn>,
) -> Ended {
    let lease_us = u64::try_from(limits.config.lease.as_micros()).unwrap_or(u64::MAX);
    let arguments = turn.arguments(&limits.incarnation, lease_us);
    let numbers: Result<Vec<i64>, RedisFault> = connection.run_script(&script, &key.name, &arguments).await;
    let answer = numbers.and_then(|numbers| Answer::read(&numbers).ok_or_else(RedisFault::no_answer));
    (key, turn, answer)
}

/// What is said of a server that answers later than a request waits for it.
pub fn late_text(config: &Cluster, took: Duration) -> String {
    let (took, waits) = (took.as_millis(), config.timeout.as_millis());
    format!("it answers after {took} ms, and a request waits {waits} ms for it (cluster.timeout)")
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

    #[test]
    fn one_beat_that_takes_very_long_does_not_make_redis_late_and_three_that_take_a_little_too_long_do() {
        let (millis, waits) = (Duration::from_millis, Duration::from_millis(50));
        let after = |beats: &[Duration]| beats.iter().fold(millis(1), |before, took| smoothed(before, *took, waits));
        assert!(after(&[millis(250)]) <= waits);
        assert!(after(&[millis(60); 3]) > waits);
        assert!(after(&[millis(40); 20]) <= waits);
    }
}
