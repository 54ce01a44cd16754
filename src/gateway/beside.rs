//! Two processes at one address, while one takes the other's place (`server.handover`). To callers
//! they are one node, and guarantee 2 holds for both together: the one that leaves answers nothing
//! from memory any more, and tells the other of each write that still comes to it, so that the
//! other's memory treats it as its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::Gateway;
use crate::cache::{EntryKey, Realm, Realms, Write};
use crate::config::OriginKind;
use crate::model::MemberId;

/// How long a write waits for the other process to have heard of it. That takes some ten
/// microseconds; one that stalls for so long is told of no write, and none begins.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// The longest that a write of the built-in backend may take: its turn and its commit have two seconds each.
const STORE_WRITES_WITHIN: Duration = Duration::from_secs(5);

/// Tellings that wait to be sent: as many writes as come at once, and then writes wait.
pub const TELLINGS: usize = 1024;

/// What is said of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteNews {
    /// The origin is about to be asked.
    Begun,
    /// The origin has answered; not `settled`: nobody knows what became of it.
    Over { settled: bool },
}

/// Something to be said to the other process.
#[derive(Debug)]
pub struct Telling {
    /// The same for a write's beginning and its end.
    pub write: u64,
    pub member: MemberId,
    pub news: WriteNews,
    /// To be used when the other process has heard it.
    pub heard: oneshot::Sender<()>,
}

/// Where what is to be said goes.
#[derive(Debug)]
pub(super) struct Beside {
    tellings: mpsc::Sender<Telling>,
}

/// The writes that are under way, by their numbers: another process that comes is told of them too.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    next: u64,
    members: HashMap<u64, MemberId>,
}

impl Gateway {
    /// From here on nothing is answered from memory, and each write is told of: another process is
    /// about to serve beside this one. Answers the writes that are under way, of which it is to be told
    /// first.
    pub fn step_aside(&self, tellings: mpsc::Sender<Telling>) -> Vec<(u64, MemberId)> {
        self.beside.store(Some(Arc::new(Beside { tellings })));
        self.memory.fence().changed_all();
        // A write that begins meanwhile may be told of twice.
        self.writes.lock().members.iter().map(|(write, member)| (*write, *member)).collect()
    }

    /// The other process is gone: this one serves alone, and trusts nothing it knew before.
    pub fn step_back(&self) {
        if self.is_aside() {
            self.memory.fence().changed_all();
            self.beside.store(None);
        }
    }

    /// Another process serves, of which this one hears nothing and which hears nothing of it: nothing is
    /// answered from memory any more, and no write begins.
    pub fn fall_silent(&self) {
        let (tellings, _) = mpsc::channel(1);
        self.step_aside(tellings);
        // They are told that nobody hears of them.
        self.may_write.send_replace(true);
    }

    /// From here on another process, which this one follows, answers callers too: from the origin alone, so
    /// that they are told what is newer than anything that is in memory, or in the air, amid a write. No write
    /// begins here before [`Gateway::has_the_place`]: the other one may take everything back until then, and
    /// would know of none.
    pub fn serve_after_another(&self) {
        self.may_write.send_replace(false);
        self.after_another.store(true, Ordering::SeqCst);
    }

    /// The process before this one takes nothing back any more.
    pub fn has_the_place(&self) {
        self.may_write.send_replace(true);
    }

    /// The process before this one has ended.
    pub fn serve_alone(&self) {
        self.after_another.store(false, Ordering::SeqCst);
        self.has_the_place();
    }

    /// Waits until a write may begin here, as long as a write waits for the other process; whether it may.
    pub(super) async fn may_write(&self) -> bool {
        if *self.may_write.borrow() {
            return true;
        }
        let mut may = self.may_write.subscribe();
        timeout(HEARD_WITHIN, may.wait_for(|may| *may)).await.is_ok_and(|may| may.is_ok())
    }

    /// Begins a write of this process's own.
    pub(super) fn begin_write(&self, realm: (Realm, Realms), member: MemberId, hold: Duration) -> Write<'_> {
        match self.after_another.load(Ordering::SeqCst) {
            false => self.memory.begin_write(realm, member, hold, self.now()),
            // The process before may show what this write does before its answer is here.
            true => self.memory.begin_write_elsewhere(member, hold, self.now()),
        }
    }

    /// Whether `at` is to be asked for by each caller for itself: somebody at the process beside this one
    /// may have been told already what is newer than a flight that is in the air.
    pub(super) fn asks_apart(&self, at: &EntryKey) -> bool {
        self.is_aside() || self.after_another.load(Ordering::SeqCst) && !self.memory.fence().may_keep(at, self.now())
    }

    /// Whether another process serves beside this one, which hears of writes here, but not this
    /// one of writes there.
    pub(super) fn is_aside(&self) -> bool {
        self.beside.load().is_some()
    }

    /// Tells the other process, if there is one, that a write begins. One of which that process cannot
    /// hear is not to begin: its memory would be older than what callers here are told.
    pub(super) async fn tell_begun(&self, member: MemberId) -> Result<WriteTold<'_>, Unheard> {
        // Noted before the look: whoever steps aside after it finds the write here.
        let write = {
            let mut writes = self.writes.lock();
            writes.next += 1;
            let write = writes.next;
            writes.members.insert(write, member);
            write
        };
        let told = WriteTold { gateway: self, write, member, is_over: false };
        match self.beside.load_full() {
            Some(beside) => beside.tell(write, member, WriteNews::Begun).await.map(|()| told),
            None => Ok(told),
        }
    }

    /// How long nothing is kept of a member where word of a write elsewhere breaks off: as after any whose outcome
    /// is unknown, and at least until whoever began it will have answered its caller, if not by way of us.
    fn hold_elsewhere(&self) -> Duration {
        let state = self.state();
        let takes = match &state.config.origin.kind {
            OriginKind::Http(upstreams) => upstreams.timeout,
            OriginKind::Builtin => STORE_WRITES_WITHIN,
        };
        state.config.cache.points.ttl.max(takes)
    }

    /// Holds a write that goes on in the process before this one as if it were this one's own.
    /// `held` turns true once the memory holds it, `ended` once it knows how `over` came out.
    pub async fn write_elsewhere(
        &self,
        member: MemberId,
        held: watch::Sender<bool>,
        over: impl Future<Output = Option<(bool, oneshot::Sender<()>)>>,
    ) {
        let write = self.memory.begin_write_elsewhere(member, self.hold_elsewhere(), self.now());
        // This one may be about to be replaced as well. Where the next one does not hear of it, the write
        // is not said to be heard of, and does not begin.
        let Ok(told) = self.tell_begun(member).await else { return };
        held.send_replace(true);
        let over = over.await;
        let settled = over.as_ref().is_some_and(|(settled, _)| *settled);
        if settled {
            write.settled();
        } else {
            write.unknown(self.now());
        }
        told.over(settled).await;
        if let Some((_, ended)) = over {
            let _ = ended.send(());
        }
    }
}

/// The other process did not hear of it.
#[derive(Debug)]
pub(super) struct Unheard;

impl Beside {
    async fn tell(&self, write: u64, member: MemberId, news: WriteNews) -> Result<(), Unheard> {
        let (heard, hears) = oneshot::channel();
        let telling = Telling { write, member, news, heard };
        let tell = async { self.tellings.send(telling).await.is_ok() && hears.await.is_ok() };
        if timeout(HEARD_WITHIN, tell).await != Ok(true) {
            let end = matches!(news, WriteNews::Over { .. });
            let what = if end { "end" } else { "beginning" };
            tracing::error!(%member, "the process that took over did not hear of a write's {what}");
            return Err(Unheard);
        }
        Ok(())
    }
}

/// A write of which another process may have been told. Dropped unsaid, its outcome is unknown.
#[derive(Debug)]
pub(super) struct WriteTold<'g> {
    gateway: &'g Gateway,
    write: u64,
    member: MemberId,
    is_over: bool,
}

impl WriteTold<'_> {
    /// Tells how it came out, before its caller is.
    pub(super) async fn over(mut self, settled: bool) {
        if let Some(beside) = self.gateway.beside.load_full() {
            // What was done is done: who did not hear of its end holds it to be under way.
            let _ = beside.tell(self.write, self.member, WriteNews::Over { settled }).await;
        }
        self.is_over = true;
    }
}

impl Drop for WriteTold<'_> {
    fn drop(&mut self) {
        self.gateway.writes.lock().members.remove(&self.write);
        if let (false, Some(beside)) = (self.is_over, self.gateway.beside.load_full()) {
            let (heard, _) = oneshot::channel();
            let news = WriteNews::Over { settled: false };
            // Where there is no room, the other process holds the write until this one ends.
            let _ = beside.tellings.try_send(Telling { write: self.write, member: self.member, news, heard });
        }
    }
}
