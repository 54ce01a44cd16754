//! What a node holds of one bucket: tokens and the deadline until which they may be spent, in one atomic word. Spending a
//! token is one compare-and-swap. Time is an argument.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::clock::Tick;

/// Bits of the deadline, in units of 2^20 ns: 36 years. The others hold the tokens.
const DEADLINE_BITS: u32 = 40;
const UNIT_BITS: u32 = 20;
const DEADLINE: u64 = (1 << DEADLINE_BITS) - 1;

/// Most tokens that a node may hold of one bucket, so that they fit the word.
pub const MAX_TOKENS: u32 = 1 << 20;

/// The tokens of one bucket.
#[derive(Debug, Default)]
pub struct Lease {
    word: AtomicU64,
    /// The unit after that of the newest spend, so that a spend is never taken for older than it is.
    newest: AtomicU64,
    /// The tokens that were set last.
    issued: AtomicU32,
    /// Until when it is known that no token is to be had.
    denied_until: AtomicU64,
    /// The theoretical arrival time of the bucket if nothing but this lease is spent, for what callers are told. Of a day:
    /// its end.
    full_at: AtomicU64,
}

impl Lease {
    /// Spends a token at `now`: the tokens that are left, or `None` if none may be spent.
    pub fn spend(&self, now: Tick) -> Option<u32> {
        let unit = now.0 >> UNIT_BITS;
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word >> DEADLINE_BITS == 0 || unit >= word & DEADLINE {
                return None;
            }
            // Before the token is spent: a turn that sees it spent must see when.
            if self.newest.load(Ordering::Acquire) <= unit {
                self.newest.fetch_max(unit + 1, Ordering::AcqRel);
            }
            let left = word - (1 << DEADLINE_BITS);
            match self.word.compare_exchange_weak(word, left, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((left >> DEADLINE_BITS) as u32),
                Err(now) => word = now,
            }
        }
    }

    /// Gives a token back that was spent and not used. If a turn has reported it meanwhile, it stays spent. No turn may
    /// begin or end at the same time.
    pub(super) fn unspend(&self) {
        let issued = u64::from(self.issued.load(Ordering::Acquire));
        let more = |word| (word >> DEADLINE_BITS < issued).then_some(word + (1 << DEADLINE_BITS));
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, more); // an error: it stays spent
    }

    /// The tokens that may be spent at `now`.
    pub fn tokens(&self, now: Tick) -> u32 {
        let word = self.word.load(Ordering::SeqCst);
        if now.0 >> UNIT_BITS < word & DEADLINE { (word >> DEADLINE_BITS) as u32 } else { 0 }
    }

    /// Whether it is known that no token is to be had at `now`.
    pub fn is_denied(&self, now: Tick) -> bool {
        now.0 < self.denied_until.load(Ordering::Acquire)
    }

    pub fn denied_until(&self) -> Tick {
        Tick(self.denied_until.load(Ordering::Acquire))
    }

    /// When the bucket is full if no more than what was spent until now is spent, given its period.
    pub fn full_at(&self, period_ns: u64) -> Tick {
        let left = (self.word.load(Ordering::Acquire) >> DEADLINE_BITS) as u32;
        let spent = u64::from(self.issued.load(Ordering::Acquire).saturating_sub(left));
        Tick(self.full_at.load(Ordering::Acquire).saturating_add(spent.saturating_mul(period_ns)))
    }

    /// How long ago the newest token was spent, at least.
    pub(super) fn newest_age_ns(&self, now: Tick) -> u64 {
        now.0.saturating_sub(self.newest.load(Ordering::Acquire) << UNIT_BITS)
    }

    /// The tokens that were set last, whether or not they may still be spent.
    pub(super) fn held(&self) -> u32 {
        (self.word.load(Ordering::Acquire) >> DEADLINE_BITS) as u32
    }

    /// The tokens spent since [`Lease::cut`] or [`Lease::set`].
    pub(super) fn spent(&self) -> u32 {
        self.issued.load(Ordering::Acquire).saturating_sub(self.held())
    }

    /// Keeps at most `keep` tokens, none if they may not be spent any more. Returns those spent since the last call of
    /// this or [`Lease::set`], and those kept.
    pub(super) fn cut(&self, keep: u32, now: Tick) -> (u32, u32) {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let left = (word >> DEADLINE_BITS) as u32;
            let kept = if now.0 >> UNIT_BITS < word & DEADLINE { left.min(keep) } else { 0 };
            let after = (u64::from(kept) << DEADLINE_BITS) | (word & DEADLINE);
            match self.word.compare_exchange_weak(word, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return (self.issued.swap(kept, Ordering::AcqRel).saturating_sub(left), kept),
                Err(now) => word = now,
            }
        }
    }

    /// Sets what is held until `deadline`, less what was spent since [`Lease::cut`]. Returns what is left.
    pub(super) fn set(&self, held: u32, deadline: Tick) -> u32 {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let spent = self.issued.load(Ordering::Acquire).saturating_sub((word >> DEADLINE_BITS) as u32);
            let left = held.saturating_sub(spent);
            let after = (u64::from(left) << DEADLINE_BITS) | (deadline.0 >> UNIT_BITS).min(DEADLINE);
            match self.word.compare_exchange_weak(word, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.issued.store(left + spent.min(held), Ordering::Release);
                    return left;
                }
                Err(now) => word = now,
            }
        }
    }

    /// Ends the lease now. What was spent of it is still reported.
    pub(super) fn end(&self) {
        self.word.fetch_and(!DEADLINE, Ordering::AcqRel);
    }

    /// Sets the slots for requests in flight that are held until `deadline`; `None`: the same deadline. Nobody spends
    /// them: a request compares their number with those in flight.
    pub(super) fn set_slots(&self, held: u32, deadline: Option<Tick>) {
        let same = self.word.load(Ordering::Acquire) & DEADLINE;
        let deadline = deadline.map_or(same, |deadline| (deadline.0 >> UNIT_BITS).min(DEADLINE));
        self.word.store((u64::from(held) << DEADLINE_BITS) | deadline, Ordering::SeqCst);
    }

    pub(super) fn deny_until(&self, until: Tick) {
        self.denied_until.store(until.0, Ordering::Release);
    }

    pub(super) fn set_full_at(&self, at: Tick) {
        self.full_at.store(at.0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn tokens_are_spent_until_the_deadline_and_not_after_it() {
        let lease = Lease::default();
        assert_eq!(lease.spend(Tick(0)), None);
        lease.set(3, Tick(SECOND));
        assert_eq!((lease.spend(Tick(0)), lease.spend(Tick(SECOND / 2))), (Some(2), Some(1)));
        assert_eq!((lease.spend(Tick(SECOND)), lease.tokens(Tick(SECOND))), (None, 0));
        assert_eq!(lease.cut(9, Tick(SECOND)), (2, 0), "what is left is given back, what was spent is reported");
    }

    #[test]
    fn what_is_spent_during_a_turn_is_taken_off_what_the_turn_gives() {
        let lease = Lease::default();
        lease.set(5, Tick(SECOND));
        assert_eq!(lease.spend(Tick(1)), Some(4));
        assert_eq!(lease.cut(3, Tick(2)), (1, 3));
        assert_eq!(lease.spend(Tick(3)), Some(2));
        assert_eq!(lease.set(6, Tick(2 * SECOND)), 5);
        assert_eq!(lease.cut(9, Tick(4)), (1, 5));
        lease.unspend();
        assert_eq!(lease.tokens(Tick(4)), 5, "a token that was reported is not given back");
    }

    #[test]
    fn a_token_that_was_not_used_can_be_spent_again() {
        let lease = Lease::default();
        lease.set(1, Tick(SECOND));
        assert_eq!(lease.spend(Tick(0)), Some(0));
        lease.unspend();
        assert_eq!(lease.cut(9, Tick(0)), (0, 1));
    }

    #[test]
    fn a_lease_that_is_ended_reports_what_was_spent_of_it() {
        let lease = Lease::default();
        lease.set(3, Tick(SECOND));
        assert_eq!(lease.spend(Tick(0)), Some(2));
        lease.end();
        assert_eq!((lease.spend(Tick(0)), lease.cut(9, Tick(0))), (None, (1, 0)));
    }

    #[test]
    fn threads_spend_each_token_once() {
        let lease = Lease::default();
        lease.set(1000, Tick(SECOND));
        let spent = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..500).filter_map(|_| lease.spend(Tick(1))).for_each(|_| {
                        spent.fetch_add(1, Ordering::Relaxed);
                    });
                });
            }
        });
        assert_eq!((spent.into_inner(), lease.cut(9, Tick(1))), (1000, (1000, 0)));
    }
}
