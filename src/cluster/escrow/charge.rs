//! A key that gets another id is another key to Redis: this node tells it there what the key has used up under the id before.

use super::{BUCKETS, Bucket, Escrow, Known, Lease, NextTurn, capacity};
use crate::clock::Tick;

/// What a node knows that a key has used up.
struct UsedUp {
    known: [Known; BUCKETS],
    /// Requests that Redis had not told to be counted.
    untold: [u64; BUCKETS],
}

impl Escrow {
    /// Charges the key with what `other` has used up, as far as this node knows it: no more is left than that one has. Other
    /// nodes do the same with what they know. Asks for the turn that tells it.
    pub fn charge_as(&self, other: &Escrow, now: Tick) -> NextTurn {
        let UsedUp { known, untold } = other.used_up();
        let mut node = self.node.lock();
        node.sequence += 1; // a turn is missing: Redis takes what this node knows into account
        self.day_told.charge_as(&other.day_told, now);
        for bucket in Bucket::ALL {
            let at = bucket as usize;
            node.known[at] = node.known[at].max(known[at], now);
            self.owed[at].add_all(&other.owed[at], untold[at]);
            let period_ns = capacity(&node.tier, bucket).1;
            let full_at = [self, other].map(|escrow| escrow.lease(bucket).full_at(period_ns));
            self.lease(bucket).set_full_at(full_at[0].max(full_at[1]));
        }
        node.queue()
    }

    /// What has been used up. What is left of its leases is not spent any more.
    fn used_up(&self) -> UsedUp {
        let node = self.node.lock();
        self.leases.iter().for_each(Lease::end);
        let mut untold = self.leases.each_ref().map(|lease| u64::from(lease.spent()));
        untold[Bucket::InFlight as usize] = 0;
        if let Some(turn) = &node.unanswered {
            untold.iter_mut().zip(&turn.asks).for_each(|(untold, ask)| *untold += ask.spent + ask.owed);
        }
        UsedUp { known: node.known, untold }
    }
}
