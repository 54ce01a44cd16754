//! Invalidation by epochs: fixed tables of atomic counters, from which each entry's epoch is summed. An answer may be
//! used only while the epoch under which the origin was asked is still the current one. A write moves the epoch before
//! the origin is asked and again after it, whatever came back, and an answer is not kept while a write with an unknown
//! outcome may still take effect. Nothing here waits, locks or allocates after the start. `tests/model` checks the
//! orderings.

use std::fmt;
use std::time::Duration;

use super::answers::{EntryKey, Realm};
use crate::clock::Tick;
use crate::model::MemberId;
use crate::sync::{AtomicU64, Ordering};
use crate::wire::Read;

/// Epochs for every realm, member and read there can be: 512 KiB, whatever is asked. A collision
/// costs one needless miss, never a stale answer.
const EPOCHS: usize = 1 << 16;

/// Members' unsettled writes, by hash: 64 KiB. A collision costs a miss as well.
const UNSETTLED: usize = 1 << 12;

/// The fence between writes and fills. Whoever asks the origin takes an [`Epoch`] first; what came
/// back stands only while that epoch does. A write moves the epoch before and after it asks the
/// origin, and so reaches the member's answers wherever they are held, as far as its [`Reach`] goes.
pub struct Fence {
    epochs: Box<[AtomicU64]>,
    /// Added to every epoch, so that moving it moves all of them.
    all: AtomicU64,
    unsettled: Box<[Unsettled]>,
}

/// Writes of which nobody can say whether they took effect.
#[derive(Debug)]
pub(super) struct Unsettled {
    /// Those the origin has not answered yet.
    under_way: AtomicU64,
    /// Those of them that go through another process, whose callers read past this one's memory.
    elsewhere: AtomicU64,
    /// The tick until which one that nobody answered may still take effect.
    until: AtomicU64,
}

/// Whose answers a change of a member reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// One realm's: the same member's answers in other guilds stay.
    Realm(Realm),
    /// Every realm's.
    All,
}

/// What an answer was asked under. Equal epochs of one entry mean that nothing changed in between:
/// all three parts (the realm's member, the member, everything) only grow, so their sum is equal only
/// if each is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

impl Default for Fence {
    fn default() -> Self {
        Fence::of(EPOCHS, UNSETTLED)
    }
}

impl Fence {
    /// A fence of tables of these sizes.
    pub(super) fn of(epochs: usize, unsettled: usize) -> Self {
        Fence {
            epochs: (0..epochs).map(|_| AtomicU64::new(0)).collect(),
            all: AtomicU64::new(0),
            unsettled: (0..unsettled)
                .map(|_| Unsettled {
                    under_way: AtomicU64::new(0),
                    elsewhere: AtomicU64::new(0),
                    until: AtomicU64::new(0),
                })
                .collect(),
        }
    }

    /// The epoch that an answer asked for from now on belongs to.
    pub fn epoch(&self, at: &EntryKey) -> Epoch {
        let read = |reach| self.slot(at.member, at.read, reach).load(Ordering::SeqCst);
        let everything = self.all.load(Ordering::SeqCst);
        Epoch(read(Reach::Realm(at.realm)).wrapping_add(read(Reach::All)).wrapping_add(everything))
    }

    /// Whether an answer asked under `epoch` still stands.
    pub fn stands(&self, epoch: Epoch, at: &EntryKey) -> bool {
        self.epoch(at) == epoch
    }

    /// Begins a setPoints: moves the epoch now, and again when the guard goes.
    pub fn begin_write(&self, member: MemberId, reach: Reach, hold: Duration, now: Tick) -> Write<'_> {
        self.unsettled(member, reach).under_way.fetch_add(1, Ordering::SeqCst);
        self.move_on(member, Read::Points, reach);
        Write { fence: self, member, reach, hold, unknown_at: Some(now), elsewhere: false }
    }

    /// As [`Fence::begin_write`], of a setPoints that goes through another process: until it is over,
    /// nothing of the member is kept, since that one's callers may be told what is newer.
    pub fn begin_write_elsewhere(&self, member: MemberId, hold: Duration, now: Tick) -> Write<'_> {
        self.unsettled(member, Reach::All).elsewhere.fetch_add(1, Ordering::SeqCst);
        let mut write = self.begin_write(member, Reach::All, hold, now);
        write.elsewhere = true;
        write
    }

    /// What is held of one read is in doubt: a caller is about to be given what may be newer.
    pub fn overtaken(&self, at: &EntryKey, reach: Reach) {
        self.move_on(at.member, at.read, reach);
    }

    /// Everything known of a member is in doubt, in every guild: somebody else changed something
    /// about it.
    pub fn changed(&self, member: MemberId) {
        self.move_all_on(member, Reach::All);
    }

    /// Everything is in doubt.
    pub fn changed_all(&self) {
        self.all.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether answers about this member may be kept at `now`: not for a while after a write whose
    /// outcome nobody knows, since it may still take effect, and not amid one that goes through another
    /// process.
    pub fn may_keep(&self, at: &EntryKey, now: Tick) -> bool {
        self.reaching(at).iter().all(|unsettled| {
            unsettled.until.load(Ordering::SeqCst) <= now.0 && unsettled.elsewhere.load(Ordering::SeqCst) == 0
        })
    }

    /// Whether a write to this member may yet take effect, or have taken it unanswered.
    pub fn is_unsettled(&self, at: &EntryKey, now: Tick) -> bool {
        self.reaching(at).iter().any(|unsettled| unsettled.under_way.load(Ordering::SeqCst) > 0)
            || !self.may_keep(at, now)
    }

    pub(super) fn move_on(&self, member: MemberId, read: Read, reach: Reach) {
        self.slot(member, read, reach).fetch_add(1, Ordering::SeqCst);
    }

    fn move_all_on(&self, member: MemberId, reach: Reach) {
        Read::ALL.into_iter().for_each(|read| self.move_on(member, read, reach));
    }

    pub(super) fn slot(&self, member: MemberId, read: Read, reach: Reach) -> &AtomicU64 {
        let hash = reach.spread(member.get().wrapping_mul(4).wrapping_add(read.index() as u64));
        &self.epochs[hash as usize % self.epochs.len()]
    }

    pub(super) fn unsettled(&self, member: MemberId, reach: Reach) -> &Unsettled {
        &self.unsettled[reach.spread(member.get()) as usize % self.unsettled.len()]
    }

    /// The unsettled writes that reach an entry: those of its realm, and those of all.
    fn reaching(&self, at: &EntryKey) -> [&Unsettled; 2] {
        [Reach::Realm(at.realm), Reach::All].map(|reach| self.unsettled(at.member, reach))
    }
}

impl Reach {
    /// A hash of `value` that is another one for each realm.
    fn spread(self, value: u64) -> u64 {
        match self {
            Reach::Realm(Realm(number)) => spread(value ^ spread(number)),
            Reach::All => spread(value),
        }
    }
}

/// Spreads snowflakes, whose low bits are much alike, over a table (a multiply and a fold).
fn spread(value: u64) -> u64 {
    let wide = u128::from(value ^ 0x9E37_79B9_7F4A_7C15) * u128::from(0xD6E8_FEB8_6659_FD93_u64);
    (wide >> 64) as u64 ^ wide as u64
}

/// A write under way. Dropping it moves the epoch the second time, **whatever came back**: a read
/// that began amid the write must not fill the cache.
#[derive(Debug)]
pub struct Write<'f> {
    fence: &'f Fence,
    member: MemberId,
    reach: Reach,
    hold: Duration,
    elsewhere: bool,
    /// When the outcome was last found to be unknown: at the start, so that a guard dropped unsaid
    /// (the request was cancelled, or panicked) holds too. `None` once the origin has said.
    unknown_at: Option<Tick>,
}

impl Write<'_> {
    /// The origin said what became of it.
    pub fn settled(mut self) {
        self.unknown_at = None;
    }

    /// Nobody knows what became of it: the member's answers are not kept for one `points.ttl`.
    pub fn unknown(mut self, now: Tick) {
        self.unknown_at = Some(now);
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        let unsettled = self.fence.unsettled(self.member, self.reach);
        if let Some(now) = self.unknown_at {
            // The hold comes before the second move: whoever sees the moved epoch sees the hold.
            unsettled.until.fetch_max(now.plus(self.hold).0, Ordering::SeqCst);
            self.fence.move_all_on(self.member, self.reach);
        } else {
            self.fence.move_on(self.member, Read::Points, self.reach);
        }
        if self.elsewhere {
            unsettled.elsewhere.fetch_sub(1, Ordering::SeqCst);
        }
        // Last: whoever finds no write under way finds the epoch moved.
        unsettled.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("epochs", &self.epochs.len()).finish()
    }
}
