//! What is counted for one key whatever its limits are: the day's requests, the requests in flight, the last use, and
//! what became of its recent requests.
//! All secrets of a key share it, and it outlives every reload, so that a change of tier or of secret loses no count.
//! All counters are atomic; a request takes no lock, unless its cluster
//! node is about to end.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;

use super::share::Share;
use super::{Activity, DayCount, DayCounter};
use crate::clock::Tick;
use crate::cluster::KeyEscrow;

/// Identifies the usage of one key while the process runs, also when the key gets another id. It is never reused. Each
/// permit of the origin that the key holds or waits for has a clone of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UsageId(pub Arc<u64>);

impl Default for UsageId {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        UsageId(Arc::new(NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

/// The usage of one key.
#[derive(Debug, Default)]
pub struct Usage {
    pub id: UsageId,
    pub day: DayCounter,
    pub activity: Activity,
    /// Its share of the limits that several nodes have together; made when it is first needed. Another one replaces it when
    /// the key gets another id.
    pub(super) share: OnceLock<ArcSwap<Share>>,
    in_flight: AtomicU32,
    last: AtomicU64,
    /// Nobody has said yet that the key is valid.
    is_unproven: AtomicBool,
}

impl Usage {
    /// The usage of a key of which nobody has said yet that it is valid; its count of the day may be in the store.
    pub fn unproven(count: Option<DayCount>) -> Self {
        let day = count.map_or_else(DayCounter::default, DayCounter::from_store);
        Usage { day, is_unproven: AtomicBool::new(true), ..Usage::default() }
    }

    /// The key is valid, of which the shared limits are told.
    pub fn prove(&self) {
        if self.is_unproven.swap(false, Ordering::SeqCst)
            && let Some(escrow) = self.escrow()
        {
            escrow.proven();
        }
    }

    pub fn is_proven(&self) -> bool {
        !self.is_unproven.load(Ordering::Relaxed)
    }

    /// The usage of a key whose count of the day is in the store.
    pub fn with_count(count: DayCount) -> Self {
        Usage { day: DayCounter::from_store(count), ..Usage::default() }
    }

    /// The escrow of the key's share of the shared limits, if that was needed already.
    pub fn escrow(&self) -> Option<Arc<KeyEscrow>> {
        self.share.get().map(|share| share.load().escrow.clone())
    }

    /// Counts a request as in flight until [`Usage::end`]. Returns the number of others in flight.
    pub fn begin(&self) -> u32 {
        self.in_flight.fetch_add(1, Ordering::AcqRel)
    }

    /// The number of requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Ends a request in flight.
    pub fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst); // before it is looked whether the node is about to end
        if let Some(share) = self.share.get() {
            share.load().escrow.request_ended();
        }
    }

    /// Whether no request is in flight, no permit of the origin is held, and no request was counted on the day of
    /// `unix`. A permit may be held after its request has ended: the question runs on when the caller has hung up.
    pub fn is_idle(&self, unix: i64) -> bool {
        let holds_permits = Arc::strong_count(&self.id.0) > 1;
        self.in_flight.load(Ordering::Acquire) == 0 && !holds_permits && self.day.used(unix) == 0
    }

    /// Records a use at `now`. 0 means no use, so a use at tick 0 is stored as tick 1.
    pub fn touch(&self, now: Tick) {
        self.last.store(now.0.max(1), Ordering::Relaxed);
    }

    /// When the key was last used; `None` if it was not used since the last call.
    pub fn take_last_use(&self) -> Option<Tick> {
        match self.last.swap(0, Ordering::Relaxed) {
            0 => None,
            tick => Some(Tick(tick)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_under_way_until_it_ends() {
        let usage = Usage::default();
        assert_eq!((usage.begin(), usage.begin()), (0, 1));
        usage.end();
        assert_eq!(usage.begin(), 1);
    }

    #[test]
    fn a_use_is_told_once() {
        let usage = Usage::default();
        usage.touch(Tick(0));
        assert_eq!((usage.take_last_use(), usage.take_last_use()), (Some(Tick(1)), None));
    }
}
