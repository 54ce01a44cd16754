//! What Redis told of a key's day: for a Redis that has lost it, and for what callers are told is left.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use super::{Bucket, Escrow};
use crate::clock::Tick;

/// For how long what others held may have been spent without this node's knowing: as long as Redis remembers a node that
/// holds nothing, and no lease is longer by default.
const HELD_FOR: Duration = Duration::from_secs(60);

/// What Redis told last. Each number is right by itself; those of two turns may be read as one.
#[derive(Debug, Default)]
pub(super) struct DayTold {
    day: AtomicI64,
    count: AtomicU64,
    held_by_others: AtomicU64,
    /// When, in ticks.
    at: AtomicU64,
}

impl DayTold {
    pub(super) fn set(&self, day: i64, count: i64, held_by_others: u64, now: Tick) {
        self.at.store(now.0, Ordering::Release);
        self.day.store(day, Ordering::Release);
        self.count.store(u64::try_from(count).unwrap_or(0), Ordering::Release);
        self.held_by_others.store(held_by_others, Ordering::Release);
    }

    /// The requests of this day, with those that others may have spent since.
    pub(super) fn used_up(&self, day: i64, now: Tick) -> u64 {
        if self.day.load(Ordering::Acquire) != day {
            return 0;
        }
        self.count.load(Ordering::Acquire).saturating_add(self.held_by_others(now))
    }

    fn held_by_others(&self, now: Tick) -> u64 {
        let at = Tick(self.at.load(Ordering::Acquire));
        if now.since(at) < HELD_FOR { self.held_by_others.load(Ordering::Acquire) } else { 0 }
    }

    /// The last day that was told of, and its count.
    pub(super) fn last(&self) -> (i64, u64) {
        (self.day.load(Ordering::Acquire), self.count.load(Ordering::Acquire))
    }

    /// Takes over what Redis told of another key, if that is more. What others held of it they tell themselves.
    pub(super) fn charge_as(&self, other: (i64, u64), now: Tick) {
        if other > self.last() {
            self.set(other.0, other.1.cast_signed(), 0, now);
        }
    }
}

impl Escrow {
    /// The requests that are counted of the day of `now`, as far as this node knows, and those that others hold for it.
    pub fn day_told(&self, now: Tick) -> (u64, u64) {
        let lease = self.lease(Bucket::Daily);
        if lease.full_at(0) <= now {
            return (0, 0);
        }
        let count = self.day_told.count.load(Ordering::Acquire).saturating_add(u64::from(lease.spent()));
        (count, self.day_told.held_by_others(now))
    }
}
