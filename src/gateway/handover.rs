//! The hand-over of one process to another (`server.handover`), as far as the rules depend on it. To callers both are
//! one node, and guarantee 2 holds for both together: the predecessor answers nothing from memory any more, and
//! announces each of its writes, so that the successor's cache treats it as its own. The messages between the
//! two are exchanged in `process/handover`, which hands in and takes out `WriteNotice`s.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::state::{Core, State};
use crate::cache::{EntryKey, Realms, WriteGuard};
use crate::clock::Tick;
use crate::config::OriginKind;
use crate::model::MemberId;
use crate::wire::{Operation, Request};

/// How long a write waits for the other process to acknowledge its notice, which usually takes some ten microseconds.
/// If it takes longer, the write does not begin.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(1);

/// How long a write waits for the predecessor to commit, after which it is refused.
const ALLOWED_WITHIN: Duration = Duration::from_secs(1);

/// The longest time that a write of the built-in backend takes: two seconds for its turn, two for its commit, and one
/// to spare.
const STORE_WRITES_WITHIN: Duration = Duration::from_secs(5);

/// Members of which a successor is told that a write ended with an unknown outcome; while it is told, no write begins. More
/// come within one `points.ttl` only where the origin fails them all; of the others the successor may keep what a late
/// write changes.
const MAX_UNSETTLED: usize = 4096;

/// Notices that wait to be sent, one or two for each write in flight; beyond that, writes wait.
pub const MAX_WRITE_NOTICES: usize = 1024;

/// What a notice says of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEvent {
    /// The origin is about to be asked.
    Begun,
    /// The write has ended; `settled`: its outcome is known.
    Ended { settled: bool },
}

/// A notice for the successor.
#[derive(Debug)]
pub struct WriteNotice {
    /// The same number for a write's begin and its end.
    pub write: u64,
    pub member: MemberId,
    pub event: WriteEvent,
    /// To be used once the other process has acknowledged the notice.
    pub acknowledged: oneshot::Sender<()>,
}

/// This process's part in a hand-over; outside of one, it changes nothing.
#[derive(Debug)]
pub struct Handover {
    core: Arc<Core>,
    /// While there is one, nothing is answered from memory and no write begins that it has not acknowledged, so that
    /// its cache is never older than what callers of this process were told (guarantee 2).
    successor: ArcSwapOption<Successor>,
    /// The tick until which the predecessor, or a write that it reported, may tell its callers something newer than
    /// this process knows: until then nothing is stored or shared about a member during a write (guarantee 2).
    predecessor_until: AtomicU64,
    /// The tick until which a write that no predecessor reported may take effect: until then each caller asks the
    /// origin itself, whatever the member (guarantee 2).
    unreported_writes_until: AtomicU64,
    /// Whether writes may begin here. Not before the predecessor has committed: it may still cancel the hand-over, and
    /// would not know of them (guarantee 2).
    may_write: watch::Sender<bool>,
    /// The writes that a successor is told of first, so that it misses none (guarantee 2).
    writes: Mutex<Writes>,
}

#[derive(Debug)]
struct Successor {
    notices: mpsc::Sender<WriteNotice>,
}

#[derive(Debug, Default)]
struct Writes {
    last: u64,
    /// By number.
    in_flight: HashMap<u64, MemberId>,
    /// Until when nothing is kept about a member, because a write of unknown outcome has ended.
    unsettled: HashMap<MemberId, Tick>,
}

impl Writes {
    fn begin(&mut self, member: MemberId) -> u64 {
        self.last += 1;
        self.in_flight.insert(self.last, member);
        self.last
    }

    /// `unsettled_until`: where the outcome is unknown.
    fn end(&mut self, write: u64, unsettled_until: Option<Tick>, now: Tick) {
        let Some((member, until)) = self.in_flight.remove(&write).zip(unsettled_until) else { return };
        if let Some(latest) = self.unsettled.get_mut(&member) {
            *latest = until.max(*latest);
            return;
        }
        if self.unsettled.len() >= MAX_UNSETTLED {
            self.unsettled.retain(|_, until| *until > now);
        }
        if self.unsettled.len() < MAX_UNSETTLED {
            self.unsettled.insert(member, until);
        }
    }

    /// What a successor is told of them.
    fn list(&mut self) -> Vec<(u64, MemberId, WriteEvent)> {
        let mut list: Vec<_> =
            self.in_flight.iter().map(|(write, member)| (*write, *member, WriteEvent::Begun)).collect();
        // Also where this process would keep answers again: the successor may keep them for longer.
        for member in self.unsettled.keys() {
            self.last += 1;
            list.push((self.last, *member, WriteEvent::Ended { settled: false }));
        }
        list
    }
}

/// The successor did not acknowledge a notice in time.
#[derive(Debug)]
pub(super) struct NotAcknowledged;

impl Handover {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Handover {
            core,
            successor: ArcSwapOption::empty(),
            predecessor_until: AtomicU64::new(0),
            unreported_writes_until: AtomicU64::new(0),
            may_write: watch::Sender::new(true),
            writes: Mutex::default(),
        }
    }

    /// Answers are kept for longer from now on: after a write of unknown outcome none is stored for as much longer.
    pub(super) fn store_later(&self, by: Duration, ttl: Duration) {
        let now = self.core.now();
        self.core.cache.epochs().store_later(by, ttl, now);
        for until in [&self.predecessor_until, &self.unreported_writes_until] {
            let later = |until| (now.0 < until && until < u64::MAX).then(|| Tick(until).plus(by).0);
            let _ = until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later); // nothing is waited for
        }
    }

    /// A successor is about to serve: from now on nothing is answered from memory, and each write is announced. Returns
    /// the writes of which the successor is to be told first: those in flight, and those that ended with an unknown
    /// outcome.
    pub fn begin(&self, notices: mpsc::Sender<WriteNotice>) -> Vec<(u64, MemberId, WriteEvent)> {
        self.successor.store(Some(Arc::new(Successor { notices })));
        self.core.cache.epochs().invalidate_all();
        // A write that begins meanwhile may be announced twice.
        self.writes.lock().list()
    }

    /// The successor is gone: this process serves alone, and nothing that it knew before is usable.
    pub fn cancel(&self) {
        if self.has_successor() {
            self.core.cache.epochs().invalidate_all();
            self.successor.store(None);
        }
    }

    /// Another process serves with which this one cannot talk: from now on nothing is answered from memory, and no
    /// write begins.
    pub fn stop_caching_and_writing(&self) {
        let (notices, _) = mpsc::channel(1);
        self.begin(notices);
        // Writes that wait for the hand-over find that nobody receives their notices.
        self.may_write.send_replace(true);
    }

    /// This process is the successor and answers callers while its predecessor does too. During a write about a member,
    /// each caller asks the origin itself, since callers of the predecessor may be told what is newer than this
    /// process's cache or flights. No write begins here before [`Handover::allow_writes`]: until then the predecessor
    /// may cancel the hand-over, and it would not know of such a write.
    pub fn follow_predecessor(&self) {
        self.may_write.send_replace(false);
        self.predecessor_until.store(u64::MAX, Ordering::SeqCst);
    }

    /// The predecessor ended before it reported its writes, or those of its own predecessor, which may still drain: for
    /// as long as such a write may take effect, each caller asks the origin itself, and nothing is kept.
    pub fn expect_unreported_writes(&self) {
        let until = self.core.now().plus(self.remote_no_store_time());
        self.unreported_writes_until.store(until.0, Ordering::SeqCst);
    }

    /// The predecessor has committed: it cannot cancel the hand-over any more, and writes may begin here.
    pub fn allow_writes(&self) {
        self.may_write.send_replace(true);
    }

    /// The predecessor has ended. A write that it reported without its end may be one of a process before it, which
    /// still drains and answers its caller.
    pub fn predecessor_ended(&self) {
        let until = self.core.now().plus(self.remote_no_store_time());
        self.predecessor_until.store(until.0, Ordering::SeqCst);
        self.allow_writes();
    }

    fn has_predecessor(&self, now: Tick) -> bool {
        now.0 < self.predecessor_until.load(Ordering::SeqCst)
    }

    /// Waits until a write may begin here, and returns whether it may.
    pub(super) async fn wait_to_write(&self) -> bool {
        if *self.may_write.borrow() {
            return true;
        }
        let mut may_write = self.may_write.subscribe();
        timeout(ALLOWED_WITHIN, may_write.wait_for(|may| *may)).await.is_ok_and(|may| may.is_ok())
    }

    /// Whether there is a successor, which knows of this process's writes while this one does not know of its writes.
    pub(super) fn has_successor(&self) -> bool {
        self.successor.load().is_some()
    }

    /// Whether each caller has to ask the origin for an entry itself: a caller of the other process may have been told
    /// a newer answer than a flight here will bring.
    pub(super) fn must_fetch_alone(&self, entry_key: &EntryKey) -> bool {
        let now = self.core.now();
        self.has_successor()
            // Until the predecessor has committed, it may not have listed its writes.
            || !*self.may_write.borrow()
            || now.0 < self.unreported_writes_until.load(Ordering::SeqCst)
            || self.has_predecessor(now) && !self.core.cache.epochs().may_store(entry_key, now)
    }

    /// Begins a write of this process, and announces it to the successor. The write must not begin if the successor
    /// does not know of it: its cache would be older than what callers here are told.
    pub(super) async fn begin_write(
        &self,
        realms: Realms,
        request: &Request,
        no_store_for: Duration,
    ) -> Result<AnnouncedWrite<'_>, NotAcknowledged> {
        let (cache, now, member) = (&self.core.cache, self.core.now(), request.member);
        let guard = match self.has_predecessor(now) {
            false => cache.begin_write(member, request.operation.invalidates(), realms, no_store_for, now),
            // Callers of the predecessor may see this write's effect before this process has its answer.
            true => cache.begin_remote_write(member, no_store_for, now),
        };
        match self.announce(member).await {
            Ok(announcement) => Ok(AnnouncedWrite { guard, announcement }),
            Err(error) => {
                guard.end_settled(); // it did not begin
                Err(error)
            }
        }
    }

    async fn announce(&self, member: MemberId) -> Result<Announcement<'_>, NotAcknowledged> {
        // Entered before the successor is looked for: a hand-over that begins in between finds the write here.
        let write = self.writes.lock().begin(member);
        let announcement = Announcement { handover: self, write, member, settled: None };
        match self.successor.load_full() {
            Some(successor) => successor.send(write, member, WriteEvent::Begun).await.map(|()| announcement),
            None => Ok(announcement),
        }
    }

    /// How long nothing about a member is stored if nothing is heard any more during a write of another process: as
    /// after any write of unknown outcome, and at least until that process will have answered its caller.
    pub(super) fn remote_no_store_time(&self) -> Duration {
        let state = self.core.state();
        state.config.cache.of(Operation::GetPoints).ttl.max(write_time(&state))
    }

    /// Tracks a write of the predecessor as one of this process until `end` yields whether its outcome is known.
    /// `is_tracked` turns true once the cache has registered the write. `end` yields a sender as well: `()` is sent to
    /// it when the cache has registered the end.
    pub async fn track_remote_write(
        &self,
        member: MemberId,
        is_tracked: watch::Sender<bool>,
        end: impl Future<Output = Option<(bool, oneshot::Sender<()>)>>,
    ) {
        let guard = self.core.cache.begin_remote_write(member, self.remote_no_store_time(), self.core.now());
        // This process may have a successor as well. If that one does not acknowledge the write, this one does not
        // either, and the write does not begin.
        let Ok(announcement) = self.announce(member).await else { return };
        let write = AnnouncedWrite { guard, announcement };
        is_tracked.send_replace(true);
        let end = end.await;
        write.end(end.as_ref().is_some_and(|(settled, _)| *settled)).await;
        if let Some((_, ended)) = end {
            let _ = ended.send(()); // the predecessor may be gone
        }
    }
}

impl Successor {
    async fn send(&self, write: u64, member: MemberId, event: WriteEvent) -> Result<(), NotAcknowledged> {
        let (acknowledged, is_acknowledged) = oneshot::channel();
        let notice = WriteNotice { write, member, event, acknowledged };
        let send = async { self.notices.send(notice).await.is_ok() && is_acknowledged.await.is_ok() };
        if timeout(ACKNOWLEDGED_WITHIN, send).await == Ok(true) {
            return Ok(());
        }
        let event = if event == WriteEvent::Begun { "beginning" } else { "end" };
        tracing::error!(%member, "the process that took over did not acknowledge the {event} of a write");
        Err(NotAcknowledged)
    }
}

/// A write in flight of which the caches of both processes know. If it is dropped without an end, its outcome is
/// unknown.
#[derive(Debug)]
pub(super) struct AnnouncedWrite<'h> {
    guard: WriteGuard<'h>,
    announcement: Announcement<'h>,
}

impl AnnouncedWrite<'_> {
    /// Ends the write here and at the successor, before its caller is answered.
    pub(super) async fn end(self, settled: bool) {
        let AnnouncedWrite { guard, announcement } = self;
        match settled {
            true => guard.end_settled(),
            false => {
                let core = &announcement.handover.core;
                guard.end_unsettled(core.now(), no_store_time(&core.state()));
            }
        }
        announcement.end(settled).await;
    }
}

/// A write of which the successor may have been told.
#[derive(Debug)]
struct Announcement<'h> {
    handover: &'h Handover,
    write: u64,
    member: MemberId,
    /// Whether its outcome is known; `None`: it has not ended.
    settled: Option<bool>,
}

impl Announcement<'_> {
    async fn end(mut self, settled: bool) {
        if let Some(successor) = self.handover.successor.load_full() {
            // The write is done: a successor that does not acknowledge its end treats it as still in flight.
            let _ = successor.send(self.write, self.member, WriteEvent::Ended { settled }).await;
        }
        self.settled = Some(settled);
    }
}

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        let core = &self.handover.core;
        let now = core.now();
        let until = (self.settled != Some(true)).then(|| now.plus(no_store_time(&core.state())));
        self.handover.writes.lock().end(self.write, until, now);
        if let (None, Some(successor)) = (self.settled, self.handover.successor.load_full()) {
            let (acknowledged, _) = oneshot::channel();
            let event = WriteEvent::Ended { settled: false };
            let notice = WriteNotice { write: self.write, member: self.member, event, acknowledged };
            // If there is no room, the successor treats the write as in flight until this process ends.
            let _ = successor.notices.try_send(notice);
        }
    }
}

/// How long nothing about a member is stored after a write of this process whose outcome is unknown. With a ttl of 0 answers
/// are shared all the same, and may stand in for failures.
pub(super) fn no_store_time(state: &State) -> Duration {
    match state.config.cache.of(Operation::GetPoints).ttl {
        Duration::ZERO => write_time(state),
        ttl => ttl,
    }
}

/// How long a write takes at most until its caller is answered.
fn write_time(state: &State) -> Duration {
    match &state.config.origin.kind {
        OriginKind::Http(upstreams) => upstreams.timeout,
        OriginKind::Builtin => STORE_WRITES_WITHIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_is_told_of_each_write_of_unknown_outcome_since_it_may_keep_answers_for_longer() {
        let (mut writes, member) = (Writes::default(), MemberId::new(7).unwrap());
        let [unknown, known] = [writes.begin(member), writes.begin(MemberId::new(8).unwrap())];
        writes.end(unknown, Some(Tick(1)), Tick(0));
        writes.end(known, None, Tick(0));
        writes.begin(MemberId::new(9).unwrap());
        let told: Vec<_> = writes.list().into_iter().map(|(_, member, event)| (member.get(), event)).collect();
        assert_eq!(told, [(9, WriteEvent::Begun), (7, WriteEvent::Ended { settled: false })]);
    }
}
