//! Tells each node of the writes, purges and departed guilds of the others, over a stream that all of them append to and
//! read (guarantee 2). A node is told of a write when it has ended, and before its caller is answered.
//!
//! 1. A node that reads back what it appended at a moment has read all that others had told before. If that was 950 ms ago
//!    ([`Freshness`]), nothing is answered from memory and no write begins. Before it counts again, and after each
//!    connect, everything is dropped.
//! 2. A notice that the stream did not confirm is appended again on the next connection: dropping twice is safe.
//! 3. A node that falls silent without a word may leave a write that takes effect later: everything is dropped, and nothing
//!    is kept for as long as a write takes.

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use super::bus_redis::RedisStream;
use super::{Freshness, RedisFault};
use crate::clock::{Clock, Tick};
use crate::model::{GuildId, MemberId};

/// Interval at which a node appends something. Most of its notices may come half a second late before it stops answering
/// from memory.
const BEAT_INTERVAL: Duration = Duration::from_millis(100);

/// A node of which nothing was read for so long has ended without a word, or is cut off.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Pause before the stream is opened again.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The most notices that wait for a connection. With one more, [`EVERYTHING`] is told instead of all.
const MAX_WAITING: usize = 1024;

/// How long a process that ends waits until the others know.
const LEAVE_WITHIN: Duration = Duration::from_millis(500);

/// A notice as the stream has it: who tells it, and when by its own clock.
#[derive(Debug, Serialize, Deserialize)]
struct Entry(u64, u64, Notice);

/// What a node tells the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Notice {
    /// Nothing but that it runs.
    Beat,
    /// A write to the member has ended; `settled`: its outcome is known.
    Changed { member: MemberId, settled: bool },
    /// Answers to the keys of a guild, about a member, or both are invalid; all where neither is given.
    Purge { guild: Option<GuildId>, member: Option<MemberId> },
    /// The node stops. It has no write under way.
    Bye,
}

/// All answers are invalid.
const EVERYTHING: Notice = Notice::Purge { guild: None, member: None };

/// What another node told; the error: notices may be missing, so everything is to be dropped.
pub type Heard = Result<Notice, Loss>;

/// Why notices may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// This node did not hear the others for a while.
    Unheard,
    /// A node has ended without a word. Its last write may take effect later.
    SilentNode,
    /// Something else than a notice stands in the stream.
    BadEntry,
}

/// The stream did not confirm a notice in time: other nodes may know of it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other nodes could not be told in time")]
pub struct NotConfirmed;

/// This process's end of the bus.
#[derive(Debug)]
pub struct Bus {
    clock: Clock,
    /// A random number, so that a node that was started again is not taken for the one before.
    incarnation: u64,
    freshness: Freshness,
    outbox: Mutex<Outbox>,
    /// There is something to tell.
    wake: Notify,
    /// When nothing was heard last, which the log says once.
    unheard_at: Mutex<Option<Tick>>,
}

/// What is still to be told, in any order, and who waits until the stream has it.
#[derive(Debug, Default)]
struct Outbox {
    waiting: Vec<(Notice, oneshot::Sender<()>)>,
    /// Appended, and not yet confirmed.
    sent: Vec<(Notice, oneshot::Sender<()>)>,
    is_leaving: bool,
}

impl Bus {
    pub fn new(clock: Clock) -> Self {
        Bus {
            incarnation: fastrand::u64(..),
            freshness: Freshness::followed_since(clock.now()),
            outbox: Mutex::default(),
            wake: Notify::new(),
            unheard_at: Mutex::new(None),
            clock,
        }
    }

    /// How old what is known of the others is.
    pub fn freshness(&self) -> &Freshness {
        &self.freshness
    }

    /// Tells the others, also where nobody waits for the future, which resolves once the stream has the notice.
    ///
    /// # Errors
    /// It has not within this time. The notice is told until it has.
    pub fn tell(&self, notice: Notice, within: Duration) -> impl Future<Output = Result<(), NotConfirmed>> + use<> {
        let confirmed = self.outbox.lock().push(notice);
        self.wake.notify_one();
        async move {
            match timeout(within, confirmed).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) | Err(_) => Err(NotConfirmed),
            }
        }
    }

    /// Makes the answers to the keys of a guild, about a member, or both invalid at the other nodes; all where neither is
    /// given. They are told later if they cannot be told now.
    pub fn purge(&self, guild: Option<GuildId>, member: Option<MemberId>) {
        drop(self.tell(Notice::Purge { guild, member }, Duration::ZERO));
    }

    /// Tells the others that this process stops, after its last write.
    pub async fn leave(&self) {
        self.outbox.lock().is_leaving = true;
        // Who does not hear it takes this node for silent.
        let _ = self.tell(Notice::Bye, LEAVE_WITHIN).await;
    }

    /// Follows the stream, and opens it again whenever that fails, until it is dropped.
    pub async fn run(&self, stream: &RedisStream, apply: impl FnMut(Heard) + Send) {
        let mut follower = Follower::new(self, apply);
        loop {
            let fault = match self.open(stream, &mut follower).await {
                Ok((writer, reader)) => tokio::select! {
                    fault = self.append_all(stream, writer) => fault,
                    fault = follower.read_all(stream, reader) => fault,
                },
                Err(fault) => fault,
            };
            let now = self.clock.now();
            self.report(self.freshness.is_stale(now), now, &format_args!("{fault} (key {})", stream.key));
            sleep(RETRY_AFTER).await;
        }
    }

    /// A connection that appends, and one that reads.
    async fn open(
        &self,
        stream: &RedisStream,
        follower: &mut Follower<'_, impl FnMut(Heard) + Send>,
    ) -> Result<(MultiplexedConnection, MultiplexedConnection), RedisFault> {
        let (mut writer, reader) = stream.connect().await?;
        let sent = self.clock.now();
        let first = self.entry(sent, &self.outbox.lock().idle());
        let begun = self.entry(sent, &EVERYTHING);
        let id = match stream.append(&mut writer, &[first], false).await? {
            Some(id) => id,
            None => stream.append(&mut writer, &[begun], true).await?.unwrap_or_default(), // it makes the stream
        };
        follower.opened(id, sent);
        Ok((writer, reader))
    }

    async fn append_all(&self, stream: &RedisStream, mut writer: MultiplexedConnection) -> RedisFault {
        loop {
            let entries = self.outbox.lock().send(|notice| self.entry(self.clock.now(), notice));
            match stream.append(&mut writer, &entries, false).await {
                Ok(Some(_)) => {}
                Ok(None) => return RedisFault::new("somebody has removed the stream"),
                Err(fault) => return fault,
            }
            for (_, confirmed) in mem::take(&mut self.outbox.lock().sent) {
                let _ = confirmed.send(()); // who told it may have waited too long
            }
            let _ = timeout(BEAT_INTERVAL, self.wake.notified()).await;
        }
    }

    fn entry(&self, sent: Tick, notice: &Notice) -> String {
        serde_json::to_string(&Entry(self.incarnation, sent.0, notice.clone())).unwrap_or_default() // it has no map
    }

    /// Says once that the others are not heard, and once that they are again: after they were for a while.
    fn report(&self, is_unheard: bool, now: Tick, why: &dyn fmt::Display) {
        let mut unheard_at = self.unheard_at.lock();
        if is_unheard {
            if unheard_at.replace(now).is_none() {
                tracing::error!(error = %why, "the bus is away: setPoints is answered with 21, and nothing from memory");
            }
        } else if unheard_at.take_if(|at| now.since(*at) >= SILENT_AFTER).is_some() {
            tracing::info!("the bus works again");
        }
    }
}

impl Outbox {
    /// Resolves once the stream has the notice.
    fn push(&mut self, notice: Notice) -> oneshot::Receiver<()> {
        let (sender, confirmed) = oneshot::channel();
        let is_full = self.waiting.len() + self.sent.len() >= MAX_WAITING;
        if is_full {
            (self.waiting, self.sent) = Default::default();
        }
        self.waiting.push((if is_full { EVERYTHING } else { notice }, sender));
        confirmed
    }

    /// What a node tells that has nothing to tell.
    fn idle(&self) -> Notice {
        if self.is_leaving { Notice::Bye } else { Notice::Beat }
    }

    /// What is to be appended now. What was not confirmed before is told again.
    fn send(&mut self, entry: impl Fn(&Notice) -> String) -> Vec<String> {
        self.sent.append(&mut self.waiting);
        if self.sent.is_empty() {
            return vec![entry(&self.idle())];
        }
        self.sent.iter().map(|(notice, _)| entry(notice)).collect()
    }
}

/// Follows what the others tell.
struct Follower<'b, A> {
    bus: &'b Bus,
    /// Where it takes effect.
    apply: A,
    /// The other nodes, and when each was last heard.
    others: HashMap<u64, Tick>,
    /// Notices may be missing that were told before this connection.
    may_miss: bool,
    /// The id of the last entry that was read; empty: none was.
    after: String,
}

impl<'b, A: FnMut(Heard) + Send> Follower<'b, A> {
    fn new(bus: &'b Bus, apply: A) -> Self {
        Follower { bus, apply, others: HashMap::new(), may_miss: false, after: String::new() }
    }

    /// The entry of this id, which was sent then, is the first one of a connection.
    fn opened(&mut self, id: String, sent: Tick) {
        // They may have lost their connections as well.
        let now = self.bus.clock.now();
        self.others.values_mut().for_each(|heard_at| *heard_at = now);
        self.may_miss = !self.after.is_empty();
        if !self.may_miss {
            (self.apply)(Ok(EVERYTHING));
            self.bus.freshness.confirm(sent);
        }
        // What was appended meanwhile may tell of writes of unknown outcome. A server whose clock is behind has it not.
        let millis = |id: &str| id.split('-').next()?.parse::<u64>().ok();
        if self.after.is_empty() || millis(&self.after) > millis(&id) {
            self.after = id;
        }
    }

    async fn read_all(&mut self, stream: &RedisStream, mut reader: MultiplexedConnection) -> RedisFault {
        loop {
            match stream.read(&mut reader, &mut self.after).await {
                Ok(entries) => entries.iter().for_each(|text| self.read(text, self.bus.clock.now())),
                Err(fault) => return fault,
            }
        }
    }

    fn read(&mut self, text: &str, now: Tick) {
        let Ok(Entry(from, sent, notice)) = serde_json::from_str(text) else {
            return (self.apply)(Err(Loss::BadEntry));
        };
        if from == self.bus.incarnation {
            return self.read_own(Tick(sent), now);
        }
        match notice {
            Notice::Bye => self.others.remove(&from),
            _ => self.others.insert(from, now),
        };
        (self.apply)(Ok(notice));
    }

    /// All that others had told by `sent` was read.
    fn read_own(&mut self, sent: Tick, now: Tick) {
        let was_unheard = self.bus.freshness.is_stale(now);
        if mem::take(&mut self.may_miss) || was_unheard {
            (self.apply)(Err(Loss::Unheard));
        }
        let known = self.others.len();
        self.others.retain(|_, heard_at| sent.since(*heard_at) < SILENT_AFTER);
        if self.others.len() < known {
            (self.apply)(Err(Loss::SilentNode));
        }
        self.bus.freshness.confirm(sent); // last, when everything has taken effect
        self.bus.report(was_unheard, now, &"its own notices come back late");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn member() -> MemberId {
        "190551803669118976".parse().unwrap()
    }

    fn beat(from: u64) -> String {
        format!("[{from},0,\"beat\"]")
    }

    /// What a node at its clock's time does for these entries.
    fn heard<A: FnMut(Heard) + Send>(follower: &mut Follower<'_, A>, entries: &[String]) {
        entries.iter().for_each(|text| follower.read(text, follower.bus.clock.now()));
    }

    #[test]
    fn each_notice_is_read_as_it_was_written_and_nothing_else_is() {
        let (bus, guild) = (Bus::new(Clock::manual(0)), "guild=member=-".parse::<GuildId>().unwrap());
        for notice in [
            Notice::Beat,
            Notice::Changed { member: member(), settled: true },
            Notice::Changed { member: member(), settled: false },
            Notice::Purge { guild: None, member: None },
            Notice::Purge { guild: Some(guild.clone()), member: None },
            Notice::Purge { guild: Some(guild), member: Some(member()) },
            Notice::Bye,
        ] {
            let Entry(from, sent, read) = serde_json::from_str(&bus.entry(Tick(7), &notice)).unwrap();
            assert_eq!((from, sent, read), (bus.incarnation, 7, notice));
        }
        for text in [
            "",
            "1 2 beat",
            r#"[1,2,"stop"]"#,
            r#"[1,2,"beat",3]"#,
            r#"[1,2,{"changed":{"member":-4,"settled":true}}]"#,
            r#"[1,2,{"changed":{"member":9223372036854775808,"settled":true}}]"#,
            r#"[1,2,{"purge":{"key":"7"}}]"#,
        ] {
            assert!(serde_json::from_str::<Entry>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_node_that_falls_silent_without_a_word_is_noticed_once_and_one_that_said_bye_is_not() {
        let (clock, mut applied) = (Clock::manual(0), Vec::new());
        let bus = Bus::new(clock.clone());
        let apply = |heard| applied.push(heard);
        let mut follower = Follower::new(&bus, apply);
        heard(&mut follower, &[beat(1), beat(2), r#"[2,0,"bye"]"#.to_owned()]);
        for _ in 0..20 {
            clock.advance(BEAT_INTERVAL);
            heard(&mut follower, &[bus.entry(clock.now(), &Notice::Beat)]);
        }
        let lost: Vec<Heard> = applied.into_iter().filter(Result::is_err).collect();
        assert_eq!(lost, [Err(Loss::SilentNode)]);
    }

    #[test]
    fn what_is_in_memory_counts_again_only_once_it_was_dropped() {
        let (clock, mut applied) = (Clock::manual(0), Vec::new());
        let bus = Bus::new(clock.clone());
        let mut follower = Follower::new(&bus, |heard| applied.push((heard, bus.freshness.is_stale(clock.now()))));
        let sent = clock.now();
        clock.advance(SECOND);
        heard(&mut follower, &[bus.entry(sent, &Notice::Beat)]);
        assert!(bus.freshness.is_stale(clock.now()), "it is as old as it was");
        heard(&mut follower, &[bus.entry(clock.now(), &Notice::Beat), "x".to_owned()]);
        let lost = |loss| Err(loss);
        let expected = [(lost(Loss::Unheard), true), (lost(Loss::Unheard), true), (lost(Loss::BadEntry), false)];
        assert_eq!(applied, expected);
    }

    #[test]
    fn what_was_not_confirmed_is_told_again_and_too_much_of_it_as_everything() {
        let mut outbox = Outbox::default();
        let send = |outbox: &mut Outbox| outbox.send(|notice| format!("{notice:?}"));
        let changed = Notice::Changed { member: member(), settled: true };
        assert_eq!(send(&mut outbox), ["Beat"]);
        let mut confirmed = outbox.push(changed.clone());
        assert_eq!(send(&mut outbox), [format!("{changed:?}")]);
        outbox.push(Notice::Bye);
        assert_eq!(send(&mut outbox), [format!("{changed:?}"), "Bye".to_owned()]);
        assert!(confirmed.try_recv().is_err());
        for _ in 0..=MAX_WAITING {
            outbox.push(changed.clone());
        }
        let told = send(&mut outbox);
        assert_eq!((&*told[0], told.len()), (&*format!("{EVERYTHING:?}"), 3));
    }
}
