//! The gate: whether the answer to a read may be kept and shared (guarantees 2 and 3). It has two answers.
//!
//! *Keep*: nothing is under way that this node would not know of. An answer that is asked for now may be kept, and given
//! to every caller that comes, until the epoch moves. *Ask*: what the origin answers now may be older than what it
//! answers next. Nothing is answered from memory, nothing is kept, and a question is joined only until it is sent.
//!
//! A write raises the count of its member and moves the epoch in one step, before the origin is asked. So what was asked
//! for before the write is not current any more, and what is asked for during it is not kept. At its end it records an
//! unknown outcome first, and then lowers the count. Who asks reads the gate first, and the configuration afterwards; a
//! reload swaps the configuration first, and then moves the epochs.
//!
//! Tables of atomic counters: nothing here waits, locks, or allocates after the start. A collision of two members in a
//! table costs a miss, never a stale answer. `tests/model` tries the interleavings.

use super::entry::{EntryKey, Realm};
use crate::clock::Tick;
use crate::model::MemberId;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::wire::Operation;

/// Counters of one member's read in one realm, or in all, by hash: 512 KiB.
const READS: usize = 1 << 16;

/// Counters of whole realms, by hash: 8 KiB.
const REALMS: usize = 1 << 10;

/// Ends of the writes of unknown outcome, by member: 512 KiB. One guild's writes, to which an origin gives no usable
/// answer, are not to cost the others their answers in memory.
const MEMBERS: usize = 1 << 16;

/// A counter of a read holds the writes that are under way in its lower bits, more than a node ever has at once, and the
/// epoch above them.
const EPOCH: u64 = 1 << 20;
const WRITES: u64 = EPOCH - 1;

/// What a read may do with the origin's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateState {
    /// Answers of this epoch may be used, shared and kept.
    Keep(Epoch),
    /// Each question is asked after all who share it came, and its answer is kept for nobody.
    Ask,
}

impl GateState {
    /// The epoch under which an answer may be kept.
    pub fn epoch(self) -> Option<Epoch> {
        match self {
            GateState::Keep(epoch) => Some(epoch),
            GateState::Ask => None,
        }
    }
}

/// The sum of an entry's four counters (the realm's member, the member, the realm, everything). They are read one after
/// the other, and only grow: if a later sum is equal, each of them is, and none moved between the end of the first reading
/// and the begin of the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch(u64);

/// The realms in which a change invalidates answers about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Realms {
    /// A guild has one realm. The same member's answers in other guilds stay.
    One(Realm),
    /// Every realm: of learned keys only the origin knows which of them belong to one guild.
    All,
}

/// What keeps the answers in memory coherent with writes.
#[derive(Debug)]
pub struct Gate {
    reads: Box<[AtomicU64]>,
    realms: Box<[AtomicU64]>,
    /// The ticks until which a write of unknown outcome may take effect, in all realms.
    unknown_until: Box<[AtomicU64]>,
    /// The latest of these ticks, so that a hit looks for its member's only after such a write.
    any_unknown_until: AtomicU64,
    /// Part of every epoch.
    all: AtomicU64,
    /// Another process serves beside this one.
    not_alone: AtomicBool,
    /// The tick until which writes may take effect of which this node was not told.
    ask_until: AtomicU64,
}

impl Default for Gate {
    fn default() -> Self {
        Gate::with_slots(READS, REALMS, MEMBERS)
    }
}

impl Gate {
    pub(super) fn with_slots(reads: usize, realms: usize, members: usize) -> Self {
        let counters = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Gate {
            reads: counters(reads),
            realms: counters(realms),
            unknown_until: counters(members),
            any_unknown_until: AtomicU64::new(0),
            all: AtomicU64::new(0),
            not_alone: AtomicBool::new(false),
            ask_until: AtomicU64::new(0),
        }
    }

    /// What may be done with an answer that is asked for, or used, at `now`.
    pub fn state(&self, key: &EntryKey, now: Tick) -> GateState {
        let of = |realms| self.read(key.member, key.read, realms).load(Ordering::SeqCst);
        let is_before = |until: &AtomicU64| now.0 < until.load(Ordering::SeqCst);
        let (here, everywhere) = (of(Realms::One(key.realm)), of(Realms::All));
        let is_written_to = (here | everywhere) & WRITES > 0;
        let others_serve = self.not_alone.load(Ordering::SeqCst) || is_before(&self.ask_until);
        if is_written_to || others_serve || is_before(&self.any_unknown_until) && is_before(self.unknown(key.member)) {
            return GateState::Ask;
        }
        let whole = [self.realm(key.realm), &self.all].map(|counter| counter.load(Ordering::SeqCst));
        let all = [here / EPOCH, everywhere / EPOCH].into_iter().chain(whole);
        GateState::Keep(Epoch(all.fold(0, u64::wrapping_add)))
    }

    /// Begins a write that changes these reads of a member. Until it has ended the gate of these reads says *Ask*, and
    /// after an unknown outcome until that can take effect no more; a guard that is dropped without an end has an unknown
    /// outcome, until `latest`.
    pub fn begin_write(
        &self,
        member: MemberId,
        reads: &'static [Operation],
        realms: Realms,
        latest: Tick,
    ) -> WriteGuard<'_> {
        for read in reads {
            self.read(member, *read, realms).fetch_add(EPOCH + 1, Ordering::SeqCst);
        }
        WriteGuard { gate: self, member, reads, realms, unknown_until: Some(latest) }
    }

    /// A write to this member may take effect until then: until then its gate says *Ask*.
    pub fn unknown_outcome(&self, member: MemberId, until: Tick) {
        self.unknown(member).fetch_max(until.0, Ordering::SeqCst);
        self.any_unknown_until.fetch_max(until.0, Ordering::SeqCst);
    }

    /// Until when a write may take effect of which callers were not told, to whichever member.
    pub fn unsettled_until(&self) -> Tick {
        Tick(self.any_unknown_until.load(Ordering::SeqCst).max(self.ask_until.load(Ordering::SeqCst)))
    }

    /// Another process serves beside this one, from now on: the gate of everything says *Ask*.
    pub fn not_alone(&self) {
        self.not_alone.store(true, Ordering::SeqCst);
    }

    /// No other process serves any more; its writes may take effect until then. What was kept before is not current any
    /// more.
    pub fn alone(&self, until: Tick) {
        self.ask_until(until);
        self.not_alone.store(false, Ordering::SeqCst);
    }

    /// Drops everything. Writes of which this node will not be told may take effect until then: until then the gate of
    /// everything says *Ask*.
    pub fn ask_until(&self, until: Tick) {
        self.ask_until.fetch_max(until.0, Ordering::SeqCst);
        self.invalidate_all();
    }

    /// Drops every answer about a member in these realms.
    pub fn invalidate_member(&self, member: MemberId, realms: Realms) {
        for read in Operation::ALL {
            self.read(member, read, realms).fetch_add(EPOCH, Ordering::SeqCst);
        }
    }

    /// Drops every answer of a realm.
    pub fn invalidate_realm(&self, realm: Realm) {
        self.realm(realm).fetch_add(1, Ordering::SeqCst);
    }

    /// Drops every answer.
    pub fn invalidate_all(&self) {
        self.all.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn read(&self, member: MemberId, read: Operation, realms: Realms) -> &AtomicU64 {
        let realm = match realms {
            Realms::One(Realm(number)) => number,
            Realms::All => u64::MAX,
        };
        &self.reads[hash([realm, member.get(), read.index() as u64]) as usize % self.reads.len()]
    }

    fn realm(&self, realm: Realm) -> &AtomicU64 {
        &self.realms[hash([realm.0]) as usize % self.realms.len()]
    }

    fn unknown(&self, member: MemberId) -> &AtomicU64 {
        &self.unknown_until[hash([member.get()]) as usize % self.unknown_until.len()]
    }
}

/// A write that is under way.
#[derive(Debug)]
pub struct WriteGuard<'g> {
    gate: &'g Gate,
    member: MemberId,
    reads: &'static [Operation],
    realms: Realms,
    /// `None`: the outcome is known. Set from the start, so that a request that is cancelled or panics has an unknown one.
    unknown_until: Option<Tick>,
}

impl WriteGuard<'_> {
    /// Ends the write. `unknown_until`: its outcome is unknown, and it may take effect until then.
    pub fn end(mut self, unknown_until: Option<Tick>) {
        self.unknown_until = unknown_until;
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        // First: who finds no write under way finds its unknown outcome.
        if let Some(until) = self.unknown_until {
            self.gate.unknown_outcome(self.member, until);
        }
        for read in self.reads {
            self.gate.read(self.member, *read, self.realms).fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Spreads numbers over a table. Discord ids begin with a timestamp, and their low bits are much alike.
pub(super) fn hash<const N: usize>(numbers: [u64; N]) -> u64 {
    numbers.into_iter().fold(0x9E37_79B9_7F4A_7C15, |hash, number| {
        let wide = u128::from(hash ^ number) * u128::from(0xD6E8_FEB8_6659_FD93_u64);
        (wide >> 64) as u64 ^ wide as u64
    })
}
