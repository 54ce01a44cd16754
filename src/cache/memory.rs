//! The only way for the gateway to look up an answer, join or lead a single-flight question, keep an answer, or begin a
//! write. Here the three parts are used in the order that coherence needs: an answer is kept only if its epoch is still
//! current, and before it is told to anybody, and an answer that a write overtook moves the epoch if that write is
//! unsettled. `tests/model` checks the interleavings of these calls.

use std::sync::Arc;
use std::time::Duration;

use super::answers::{Answers, Entry, EntryKey, Landed, Realm};
use super::fence::{Epoch, Fence, Reach, Write};
use super::flights::{Flights, ReadySeat, Seat};
use crate::clock::Tick;
use crate::model::MemberId;

/// The answers in memory with all that keeps them coherent: every look, every question and every
/// write goes through here (guarantees 2 and 3). `tests/model.rs` tries its interleavings.
#[derive(Debug)]
pub struct Memory {
    pub(super) answers: Answers,
    pub(super) fence: Fence,
    pub(super) flights: Flights<EntryKey, Epoch, Landed>,
}

/// Whether answers of other realms may be about the same members of the same guild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Realms {
    /// A guild has one realm: its readers join each other's flights, and its writes are its own.
    Apart,
    /// Two learned keys may be of one guild, and their flights are not each other's.
    MayOverlap,
}

impl Realms {
    /// How far a change in `realm` reaches.
    fn reach(self, realm: Realm) -> Reach {
        match self {
            Realms::Apart => Reach::Realm(realm),
            Realms::MayOverlap => Reach::All,
        }
    }
}

impl Memory {
    /// Room for so many bytes of answers.
    pub fn new(max_size: u64) -> Self {
        Memory { answers: Answers::new(max_size), fence: Fence::default(), flights: Flights::default() }
    }

    /// Says what others changed.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// The entry held for `at`, if nothing was written since it was asked for.
    pub fn held(&self, at: &EntryKey) -> Option<Arc<Entry>> {
        let epoch = self.epoch(at);
        self.answers.get(at).filter(|entry| entry.epoch == epoch)
    }

    /// The epoch that an answer asked for from now on belongs to.
    pub fn epoch(&self, at: &EntryKey) -> Epoch {
        self.fence.epoch(at)
    }

    /// Whether nothing was written since this entry was asked for.
    pub fn stands(&self, at: &EntryKey, entry: &Entry) -> bool {
        self.fence.stands(entry.epoch, at)
    }

    /// A seat in the flight that asks for `at`.
    pub fn board(&self, at: EntryKey) -> Seat<'_, EntryKey, Epoch, Landed> {
        self.flights.board(at, || self.epoch(&at))
    }

    /// The same, once `ready` brings what the one who asks needs first.
    pub async fn board_ready<R, F>(
        &self,
        at: EntryKey,
        ready: impl Future<Output = Result<R, F>>,
        is_answered: impl Fn() -> bool,
    ) -> Result<ReadySeat<'_, EntryKey, Epoch, Landed, R>, F> {
        self.flights.board_ready(at, || self.epoch(&at), ready, is_answered).await
    }

    /// Whether `at` is being asked for.
    pub fn is_in_the_air(&self, at: &EntryKey) -> bool {
        self.flights.is_in_the_air(at)
    }

    /// Keeps what was asked for, if it may be kept; to be called before anybody is told it.
    pub fn keep(&self, at: EntryKey, entry: &Arc<Entry>, realms: Realms, now: Tick) -> bool {
        if realms == Realms::MayOverlap {
            // What one key is told while a write is under way must not be older for the other
            // afterwards: every answer that lands then overtakes the flights still in the air.
            self.overtake(&at, realms, now);
        }
        if !self.stands(&at, entry) {
            self.overtake(&at, realms, now);
            return false;
        }
        let keep = entry.keeps() && self.fence.may_keep(&at, now);
        if keep {
            self.answers.put(at, entry.clone());
        }
        keep
    }

    /// Before anyone is told an answer that a write overtook: the origin may have looked after that
    /// write took effect, so what may be older is put out of reach, which is what the epoch that
    /// stands holds and asks for, if it began while the write was under way.
    pub fn overtake(&self, at: &EntryKey, realms: Realms, now: Tick) {
        if self.fence.is_unsettled(at, now) {
            self.fence.overtaken(at, realms.reach(at.realm));
        }
    }

    /// How many answers are held, about: what came or went just now may not be counted yet.
    pub fn count(&self) -> u64 {
        self.answers.count()
    }

    /// Begins a setPoints to a member of `realm`.
    pub fn begin_write(
        &self,
        (realm, realms): (Realm, Realms),
        member: MemberId,
        hold: Duration,
        now: Tick,
    ) -> Write<'_> {
        self.fence.begin_write(member, realms.reach(realm), hold, now)
    }

    /// Begins to hold a setPoints that goes through another process. Realms are a process's own numbers,
    /// so here it is every guild's.
    pub fn begin_write_elsewhere(&self, member: MemberId, hold: Duration, now: Tick) -> Write<'_> {
        self.fence.begin_write_elsewhere(member, hold, now)
    }
}
