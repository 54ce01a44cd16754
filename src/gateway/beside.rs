//! Two processes at one address, while one takes the other's place (`server.handover`). To callers
//! they are one node, and guarantee 2 holds for both together: the one that leaves answers nothing
//! from memory any more, and tells the other of each write that still comes to it, so that the
//! other's memory treats it as its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::Gateway;
use crate::cache::{Realm, Realms};
use crate::model::MemberId;

/// How long a write waits for the other process to have heard of it. That takes some ten
/// microseconds; one that stalls for a second answers nobody from its memory either.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

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
    /// Numbers the writes.
    next: AtomicU64,
}

impl Gateway {
    /// From here on nothing is answered from memory, and each write is told of: another process is
    /// about to serve beside this one.
    pub fn step_aside(&self, tellings: mpsc::Sender<Telling>) {
        self.beside.store(Some(Arc::new(Beside { tellings, next: AtomicU64::new(0) })));
        self.memory.fence().changed_all();
    }

    /// The other process is gone: this one serves alone, and trusts nothing it knew before.
    pub fn step_back(&self) {
        if self.is_aside() {
            self.memory.fence().changed_all();
            self.beside.store(None);
        }
    }

    /// Whether another process serves beside this one, which hears of writes here, but not this
    /// one of writes there.
    pub(super) fn is_aside(&self) -> bool {
        self.beside.load().is_some()
    }

    /// Tells the other process, if there is one, that a write begins.
    pub(super) async fn tell_begun(&self, member: MemberId) -> WriteTold<'_> {
        let beside = self.beside.load_full();
        let mut told = WriteTold { gateway: self, member, begun: None };
        if let Some(beside) = beside {
            let write = beside.next.fetch_add(1, Ordering::Relaxed);
            told.begun = Some((beside.clone(), write));
            beside.tell(write, member, WriteNews::Begun).await;
        }
        told
    }

    /// Holds a write that goes on in the process before this one as if it were this one's own.
    /// `begun` is used once the memory holds it, `ended` once it knows how `over` came out.
    pub async fn write_elsewhere(
        &self,
        member: MemberId,
        begun: oneshot::Sender<()>,
        over: impl Future<Output = Option<(bool, oneshot::Sender<()>)>>,
    ) {
        let hold = self.state().config.cache.points.ttl;
        // Realms are a process's own numbers, so in this one the write is every guild's.
        let everywhere = (Realm::default(), Realms::MayOverlap);
        let write = self.memory.begin_write(everywhere, member, hold, self.now());
        // This one may be about to be replaced as well.
        let told = self.tell_begun(member).await;
        let _ = begun.send(()); // nobody waits if the process before is gone
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

impl Beside {
    async fn tell(&self, write: u64, member: MemberId, news: WriteNews) {
        let (heard, hears) = oneshot::channel();
        let telling = Telling { write, member, news, heard };
        let tell = async {
            // A process that is gone needs to hear nothing.
            if self.tellings.send(telling).await.is_ok() {
                let _ = hears.await;
            }
        };
        if timeout(HEARD_WITHIN, tell).await.is_err() {
            tracing::error!(%member, "the process that took over did not hear of a write in time");
        }
    }
}

/// A write of which another process may have been told. Dropped unsaid, its outcome is unknown.
#[derive(Debug)]
pub(super) struct WriteTold<'g> {
    gateway: &'g Gateway,
    member: MemberId,
    begun: Option<(Arc<Beside>, u64)>,
}

impl WriteTold<'_> {
    /// Tells how it came out, before its caller is.
    pub(super) async fn over(mut self, settled: bool) {
        let begun = match self.begun.take() {
            Some(begun) => Some(begun),
            // The other process came while the origin was asked.
            None => self.gateway.beside.load_full().map(|beside| {
                let write = beside.next.fetch_add(1, Ordering::Relaxed);
                (beside, write)
            }),
        };
        if let Some((beside, write)) = begun {
            beside.tell(write, self.member, WriteNews::Over { settled }).await;
        }
    }
}

impl Drop for WriteTold<'_> {
    fn drop(&mut self) {
        if let Some((beside, write)) = self.begun.take() {
            let (heard, _) = oneshot::channel();
            let news = WriteNews::Over { settled: false };
            // Where there is no room, the other process holds the write until this one ends.
            let _ = beside.tellings.try_send(Telling { write, member: self.member, news, heard });
        }
    }
}
