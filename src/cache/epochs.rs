//! Invalidation by epochs: fixed tables of atomic counters, from which the epoch of each entry is summed. An answer may
//! be used only while the epoch under which the origin was asked is current. A write advances the epoch before the
//! origin is asked and again after it, whatever came back. No answer about a member is stored
//! for which the origin was asked while a write of unknown outcome might still take effect. Nothing here waits, locks or allocates after the start.

use std::fmt;
use std::time::Duration;

use super::entry::{EntryKey, Realm};
use crate::clock::Tick;
use crate::model::MemberId;
use crate::sync::{AtomicU64, Ordering};
use crate::wire::Operation;

/// Counters for all realms, members and reads, by hash: 512 KiB. A collision costs one needless miss, never a stale
/// answer.
const EPOCH_SLOTS: usize = 1 << 16;

/// The most operations there may be. Those about a member have consecutive numbers, by whose hashes their counters are
/// found; the counter of a write is nobody's.
const MAX_OPERATIONS: u64 = 8;
const _: () = assert!(Operation::COUNT as u64 <= MAX_OPERATIONS);

/// Counters for whole realms, by hash: 8 KiB. A collision costs the other realm its answers, when somebody purges one.
const REALM_SLOTS: usize = 1 << 10;

/// Unsettled writes of members, by hash: 2 MiB. A collision costs a miss as well, for as long as a write is of unknown
/// outcome: one guild's writes, to which an origin gives no usable answer, are not to cost the others theirs.
const UNSETTLED_SLOTS: usize = 1 << 16;

/// The epochs of all entries. A reader takes an [`Epoch`] before it asks the origin; the answer is current while the
/// epoch is. A write advances the epoch of its member's answers, in its [`Realms`].
pub struct Epochs {
    slots: Box<[AtomicU64]>,
    /// Of all members and reads of a realm.
    realms: Box<[AtomicU64]>,
    /// Part of every epoch, so that advancing it invalidates everything.
    all: AtomicU64,
    unsettled: Box<[UnsettledWrites]>,
}

/// Writes whose effect is not known.
#[derive(Debug)]
pub(super) struct UnsettledWrites {
    /// Writes that the origin has not answered yet.
    in_flight: AtomicU64,
    /// Those of them that another process sends, whose callers do not read from this process's cache; in all realms.
    remote_in_flight: AtomicU64,
    /// The tick until which a write of unknown outcome may still take effect; in all realms.
    no_store_until: AtomicU64,
    /// The newest such tick that had come before it was set later; in all realms.
    settled_at: AtomicU64,
}

impl UnsettledWrites {
    /// Stores nothing until then, or until a later tick that was set before.
    pub(super) fn unsettled_until(&self, until: u64, now: Tick) {
        let before = self.no_store_until.load(Ordering::SeqCst);
        if before <= now.0 {
            self.settled_at.fetch_max(before, Ordering::SeqCst); // first, so that a reader of the later tick sees it
        }
        self.no_store_until.fetch_max(until, Ordering::SeqCst);
    }
}

/// The realms in which a change invalidates answers about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Realms {
    /// A guild has one realm. The same member's answers in other guilds stay.
    One(Realm),
    /// Every realm: learned keys may belong to one guild, but each has its own realm and its own flights.
    All,
}

/// The state of an entry's counters. Equal epochs of one entry mean that nothing changed in between: the four counters
/// (the realm's member, the member, the realm, everything) only grow, so their sum is equal only if each of them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

/// The epoch under which a flight asks. Where a write is of unknown outcome, what is asked for before the moment at which it
/// can take effect no more may be older than what is asked for after it, so callers of the two sides share no flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightEpoch {
    pub of_answer: Epoch,
    settled_at: u64,
}

impl Default for Epochs {
    fn default() -> Self {
        Epochs::with_slots(EPOCH_SLOTS, REALM_SLOTS, UNSETTLED_SLOTS)
    }
}

impl Epochs {
    pub(super) fn with_slots(epochs: usize, realms: usize, unsettled: usize) -> Self {
        let counter = || AtomicU64::new(0);
        let writes = || UnsettledWrites {
            in_flight: counter(),
            remote_in_flight: counter(),
            no_store_until: counter(),
            settled_at: counter(),
        };
        Epochs {
            slots: (0..epochs).map(|_| counter()).collect(),
            realms: (0..realms).map(|_| counter()).collect(),
            all: counter(),
            unsettled: (0..unsettled).map(|_| writes()).collect(),
        }
    }

    /// The epoch of an answer for which the origin is asked from now on.
    pub fn epoch(&self, entry_key: &EntryKey) -> Epoch {
        let EntryKey { realm, member, read } = *entry_key;
        let counter = |realms| self.slot(member, read, realms).load(Ordering::SeqCst);
        let whole_realm = self.realm(realm).load(Ordering::SeqCst);
        let all = self.all.load(Ordering::SeqCst);
        let of_member = counter(Realms::One(realm)).wrapping_add(counter(Realms::All));
        Epoch(of_member.wrapping_add(whole_realm).wrapping_add(all))
    }

    pub fn is_current(&self, epoch: Epoch, entry_key: &EntryKey) -> bool {
        self.epoch(entry_key) == epoch
    }

    /// Begins a write that invalidates these reads of a member: advances their epochs now, and again when the guard is
    /// dropped. If its outcome is unknown then, no answer about the member is stored for `no_store_for`.
    pub fn begin_write(
        &self,
        member: MemberId,
        reads: &'static [Operation],
        realms: Realms,
        no_store_for: Duration,
        now: Tick,
    ) -> WriteGuard<'_> {
        self.unsettled(member, realms).in_flight.fetch_add(1, Ordering::SeqCst);
        self.advance_each(member, reads, realms);
        WriteGuard { epochs: self, member, reads, realms, no_store_for, unsettled_at: Some(now), is_remote: false }
    }

    /// As [`Epochs::begin_write`], for a write that another process sends. Until it ends, no answer about the
    /// member is stored, since callers of that process may be told a newer one.
    pub fn begin_remote_write(&self, member: MemberId, no_store_for: Duration, now: Tick) -> WriteGuard<'_> {
        self.unsettled(member, Realms::All).remote_in_flight.fetch_add(1, Ordering::SeqCst);
        let mut write = self.begin_write(member, &Operation::ALL, Realms::All, no_store_for, now);
        write.is_remote = true;
        write
    }

    /// Invalidates the stored answers to one read.
    pub fn invalidate_entry(&self, entry_key: &EntryKey, realms: Realms) {
        self.advance(entry_key.member, entry_key.read, realms);
    }

    /// Invalidates every answer about a member, in every guild: another process changed something about it.
    pub fn invalidate_member(&self, member: MemberId) {
        self.advance_each(member, &Operation::ALL, Realms::All);
    }

    /// Invalidates every answer about a member in one realm.
    pub fn invalidate_member_in(&self, realm: Realm, member: MemberId) {
        self.advance_each(member, &Operation::ALL, Realms::One(realm));
    }

    /// Invalidates every answer of a realm.
    pub fn invalidate_realm(&self, realm: Realm) {
        self.realm(realm).fetch_add(1, Ordering::SeqCst);
    }

    /// Invalidates everything.
    pub fn invalidate_all(&self) {
        self.all.fetch_add(1, Ordering::SeqCst);
    }

    /// From `now` on, answers are kept for `ttl`, which is longer by so much: those about members with a write of unknown
    /// outcome are stored later by as much.
    pub fn store_later(&self, by: Duration, ttl: Duration, now: Tick) {
        for writes in &self.unsettled {
            let until = writes.no_store_until.load(Ordering::SeqCst);
            if until > 0 {
                writes.unsettled_until(Tick(until).plus(by).min(now.plus(ttl)).0.max(until), now);
            }
        }
    }

    /// The epoch of a flight that begins or is joined at `now`.
    pub fn flight_epoch(&self, entry_key: &EntryKey, now: Tick) -> FlightEpoch {
        let writes = self.unsettled(entry_key.member, Realms::All);
        let until = writes.no_store_until.load(Ordering::SeqCst);
        let settled_at = if until <= now.0 { until } else { writes.settled_at.load(Ordering::SeqCst) };
        FlightEpoch { of_answer: self.epoch(entry_key), settled_at }
    }

    /// Whether a write of unknown outcome could take effect no more at a moment since a flight of this epoch began.
    pub fn has_settled_since(&self, epoch: FlightEpoch, entry_key: &EntryKey, now: Tick) -> bool {
        self.flight_epoch(entry_key, now).settled_at != epoch.settled_at
    }

    /// Whether answers about this member may be stored for which the origin was asked at `asked`: not if a write of unknown
    /// outcome may have taken effect since, and not during a write of another process.
    pub fn may_store(&self, entry_key: &EntryKey, asked: Tick) -> bool {
        let writes = self.unsettled(entry_key.member, Realms::All);
        writes.no_store_until.load(Ordering::SeqCst) <= asked.0 && writes.remote_in_flight.load(Ordering::SeqCst) == 0
    }

    /// Whether a write to this member may still take effect, or has taken effect without an answer.
    pub fn is_unsettled(&self, entry_key: &EntryKey, now: Tick) -> bool {
        let realms = [Realms::One(entry_key.realm), Realms::All];
        let is_in_flight = |realms| self.unsettled(entry_key.member, realms).in_flight.load(Ordering::SeqCst) > 0;
        realms.into_iter().any(is_in_flight) || !self.may_store(entry_key, now)
    }

    pub(super) fn advance(&self, member: MemberId, read: Operation, realms: Realms) {
        self.slot(member, read, realms).fetch_add(1, Ordering::SeqCst);
    }

    fn advance_each(&self, member: MemberId, reads: &[Operation], realms: Realms) {
        reads.iter().for_each(|read| self.advance(member, *read, realms));
    }

    pub(super) fn slot(&self, member: MemberId, read: Operation, realms: Realms) -> &AtomicU64 {
        let hash = realms.hash(number(member, read));
        &self.slots[hash as usize % self.slots.len()]
    }

    fn realm(&self, realm: Realm) -> &AtomicU64 {
        &self.realms[hash(realm.0) as usize % self.realms.len()]
    }

    pub(super) fn unsettled(&self, member: MemberId, realms: Realms) -> &UnsettledWrites {
        &self.unsettled[realms.hash(member.get()) as usize % self.unsettled.len()]
    }
}

impl Realms {
    /// A hash of `value` that differs between realms.
    fn hash(self, value: u64) -> u64 {
        match self {
            Realms::One(Realm(number)) => hash(value ^ hash(number)),
            Realms::All => hash(value),
        }
    }
}

/// A hash of all of an entry's key.
pub(super) fn hash_of(key: &EntryKey) -> u64 {
    Realms::One(key.realm).hash(number(key.member, key.read))
}

/// The number of one read of one member.
fn number(member: MemberId, read: Operation) -> u64 {
    member.get().wrapping_mul(MAX_OPERATIONS).wrapping_add(read.index() as u64)
}

/// Spreads Discord ids, which begin with a timestamp and whose low bits are much alike, over a table.
fn hash(value: u64) -> u64 {
    let wide = u128::from(value ^ 0x9E37_79B9_7F4A_7C15) * u128::from(0xD6E8_FEB8_6659_FD93_u64);
    (wide >> 64) as u64 ^ wide as u64
}

/// A write in flight. Dropping the guard advances the epoch the second time, **whatever came back**: a read that began
/// during the write must not fill the cache.
#[derive(Debug)]
pub struct WriteGuard<'e> {
    epochs: &'e Epochs,
    member: MemberId,
    reads: &'static [Operation],
    realms: Realms,
    no_store_for: Duration,
    is_remote: bool,
    /// When the outcome was last unknown. Set from the start, so that a request that is cancelled or panics counts as
    /// one of unknown outcome; `None` once the outcome is known.
    unsettled_at: Option<Tick>,
}

impl WriteGuard<'_> {
    /// Ends the write: its outcome is known.
    pub fn end_settled(mut self) {
        self.unsettled_at = None;
    }

    /// Ends the write: its outcome is unknown, so that no answer about the member is stored for the longer of
    /// `no_store_for` and what it was when the write began.
    pub fn end_unsettled(mut self, now: Tick, no_store_for: Duration) {
        self.unsettled_at = Some(now);
        self.no_store_for = self.no_store_for.max(no_store_for);
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        let unsettled = self.epochs.unsettled(self.member, self.realms);
        if let Some(now) = self.unsettled_at {
            // In all realms: the write takes effect in the guild to which the origin assigns the key, and the key may
            // be listed under another one by now. Set before the epoch advances: a reader that sees the new epoch sees
            // this as well.
            let until = now.plus(self.no_store_for).0;
            self.epochs.unsettled(self.member, Realms::All).unsettled_until(until, now);
            self.epochs.advance_each(self.member, &Operation::ALL, Realms::All);
        } else {
            self.epochs.advance_each(self.member, self.reads, self.realms);
        }
        if self.is_remote {
            unsettled.remote_in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        // Last: a reader that finds no write in flight finds the epoch advanced.
        unsettled.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epochs").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}
