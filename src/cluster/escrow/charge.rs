//! A key that gets another id is another key to Redis: this node tells it there what the key has used up under the id before.

use super::owed::OwedNow;
use super::{BUCKETS, Bucket, Escrow, Known, Lease, NextTurn, Owed, capacity};
use crate::clock::Tick;

/// What a node knows that a key has used up.
struct UsedUp {
    known: [Known; BUCKETS],
    /// What Redis has not told to be counted.
    owed: [OwedNow; BUCKETS],
}

impl Escrow {
    /// Charges the key with what `other` has used up, as far as this node knows it: no more is left than that one has. Other
    /// nodes do the same with what they know. Asks for the turn that tells it.
    pub fn charge_as(&self, other: &Escrow, now: Tick) -> NextTurn {
        let UsedUp { known, owed } = other.used_up();
        let mut node = self.node.lock();
        node.sequence += 1; // a turn is missing: Redis takes what this node knows into account
        self.day_told.charge_as(&other.day_told, now);
        for bucket in Bucket::ALL {
            let at = bucket as usize;
            node.known[at] = node.known[at].max(known[at], now);
            self.owed[at].add_all(owed[at]);
            let period_ns = capacity(&node.tier, bucket).1;
            // What this one has spent is added when it is read.
            let full_at = self.lease(bucket).full_at(0).max(other.lease(bucket).full_at(period_ns));
            self.lease(bucket).set_full_at(full_at);
        }
        node.queue()
    }

    /// What has been used up. What is left of its leases is not spent any more.
    fn used_up(&self) -> UsedUp {
        let node = self.node.lock();
        self.leases.iter().for_each(Lease::end);
        let mut owed = self.owed.each_ref().map(Owed::now);
        for bucket in Bucket::ALL.into_iter().filter(|bucket| *bucket != Bucket::InFlight) {
            let at = bucket as usize;
            let unanswered = node.unanswered.as_ref().map_or(0, |turn| turn.asks[at].spent + turn.asks[at].owed);
            owed[at].of_leases += u64::from(self.lease(bucket).spent()) + unanswered;
        }
        UsedUp { known: node.known, owed }
    }
}
