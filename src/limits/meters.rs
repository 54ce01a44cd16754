//! The GCRA buckets of one key under one tier, and how they pass to another tier. Others replace them for every caller
//! at once: a request that still holds the old ones is directed to their successor. A write limit that is removed and
//! added again begins with what was left, and not full (guarantee 6). `policy` asks these buckets; `keys` and
//! `cli/limits` replace them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;

use super::bucket::Change;
use super::{Bucket, Policy};
use crate::clock::Tick;
use crate::config::{Rate, Tier};

/// The buckets of one key under one policy. Under another policy others replace them, at once and for
/// everybody: a request that still comes with these is decided by those.
#[derive(Debug, Default)]
pub struct Meters {
    pub(super) main: Bucket,
    pub(super) write: Bucket,
    pub(super) candidate: Bucket,
    /// The rate that `write` goes by where the policy has none: taken away and put back, it refills no
    /// one.
    write_was: Option<Rate>,
    /// The largest bursts that the key was held to before, by `main` and by `write`.
    largest: (u32, u32),
    /// Set before the first of the buckets says that it was replaced.
    successor: Mutex<Option<Successor>>,
}

/// A policy, and the buckets of a key under it.
type Successor = (Arc<Policy>, Arc<Meters>);

impl Meters {
    /// The buckets of a key that was held to `held_to` and is held to `policy` from `at` on: the same
    /// ones if the limits are the same, else others that replace them.
    pub fn under(held_to: &Arc<Policy>, meters: &Arc<Meters>, policy: &Arc<Policy>, at: Tick) -> Arc<Meters> {
        let mut successor = meters.successor.lock();
        if let Some((held_to, meters)) = &mut *successor {
            // The whole way is gone once: what lies between is not needed any more.
            *meters = Meters::under(held_to, meters, policy, at);
            *held_to = policy.clone();
            return meters.clone();
        }
        if held_to.tier() == policy.tier() {
            return meters.clone();
        }
        let after = Arc::new(Meters::for_change(held_to.tier(), meters));
        *successor = Some((policy.clone(), after.clone()));
        // The main bucket goes first: whoever comes here by another one finds it filled.
        meters.each_change(held_to.tier(), policy.tier(), at, |of, change| of(&after).replace(of(meters), change));
        after
    }

    /// As [`Meters::under`], for a key of its own that goes on beside the one whose buckets these are. Its limits
    /// were changed at an unknown moment of these; it has the most that may be left.
    pub fn copy_under(
        held_to: &Arc<Policy>,
        meters: &Arc<Meters>,
        policy: &Policy,
        changed: RangeInclusive<Tick>,
    ) -> Meters {
        let (held_to, meters) = meters.successor().unwrap_or_else(|| (held_to.clone(), meters.clone()));
        let after = Meters::for_change(held_to.tier(), &meters);
        let (first, last) = changed.into_inner();
        meters
            .each_change(held_to.tier(), policy.tier(), first, |of, change| of(&after).copy(of(&meters), change, last));
        after
    }

    /// The last of those that replaced these, if any did.
    pub(super) fn successor(&self) -> Option<Successor> {
        let (policy, meters) = self.successor.lock().clone()?;
        Some(meters.successor().unwrap_or((policy, meters)))
    }

    /// Whether others have replaced these.
    pub fn are_replaced(&self) -> bool {
        self.main.is_replaced()
    }

    /// Whether a key that is gone need not be remembered any longer: since then, so much would have come
    /// back as it was ever let have at once. It may come back full then, whatever it is held to.
    pub fn may_be_forgotten(&self, policy: &Policy, now: Tick) -> bool {
        let (tier, (main, write)) = (policy.tier(), self.largest);
        self.main.full_with(tier.main, main) <= now
            && tier.write.or(self.write_was).is_none_or(|rate| self.write.full_with(rate, write) <= now)
    }

    /// Buckets that are to take over those of a key under `from`.
    fn for_change(from: &Tier, before: &Meters) -> Meters {
        let write_was = from.write.or(before.write_was);
        let largest = (
            before.largest.0.max(from.main.burst.get()),
            before.largest.1.max(write_was.map_or(0, |rate| rate.burst.get())),
        );
        Meters { write_was, largest, ..Meters::default() }
    }

    /// Each bucket that is taken over from one tier to another, and how.
    fn each_change(&self, from: &Tier, to: &Tier, at: Tick, mut take: impl FnMut(fn(&Meters) -> &Bucket, Change)) {
        // A key that was let in once is known, by whichever operation.
        let was_asked = self.main.was_asked();
        let mut change = |of: fn(&Meters) -> &Bucket, from, to| take(of, Change { from, to, at, was_asked });
        change(|meters| &meters.main, from.main, to.main);
        if let Some(was) = from.write.or(self.write_was) {
            change(|meters| &meters.write, was, to.write.unwrap_or(was));
        }
        if let (Some(from), Some(to)) = (from.candidate, to.candidate) {
            change(|meters| &meters.candidate, from, to);
        }
    }
}
