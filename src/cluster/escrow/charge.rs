//! A key that gets another id is another key to Redis: this node tells it there what the key has used up under the id before.

use super::owed::OwedNow;
use super::{BUCKETS, Bucket, Escrow, Known, Lease, NextTurn, Owed, capacity};
use crate::clock::Tick;

/// What a node knows that a key has used up, at one moment.
#[derive(Debug)]
pub struct UsedUp {
    known: [Known; BUCKETS],
    /// What Redis has not told to be counted.
    owed: [OwedNow; BUCKETS],
    /// When its buckets are full.
    full_at: [Tick; BUCKETS],
    /// The last day that Redis told of, and the requests counted on it.
    day: (i64, u64),
}

impl UsedUp {
    /// The same once Redis has been told of all that was owed.
    pub fn told(self) -> Self {
        UsedUp { owed: Default::default(), ..self }
    }
}

impl Escrow {
    /// What the key has used up, as far as this node knows. What it held is not spent any more.
    pub fn used_up(&self) -> UsedUp {
        let node = self.node.lock();
        self.leases.iter().for_each(Lease::end);
        let mut owed = self.owed.each_ref().map(Owed::now);
        for bucket in Bucket::ALL.into_iter().filter(|bucket| *bucket != Bucket::InFlight) {
            let at = bucket as usize;
            let unanswered = node.unanswered.as_ref().map_or(0, |turn| turn.asks[at].spent + turn.asks[at].owed);
            owed[at].of_leases += u64::from(self.lease(bucket).spent()) + unanswered;
        }
        let full_at = Bucket::ALL.map(|bucket| self.lease(bucket).full_at(capacity(&node.tier, bucket).1));
        UsedUp { known: node.known, owed, full_at, day: self.day_told.last() }
    }

    /// Charges the key with what another one has used up: no more is left than that one has. Other nodes do the same with what
    /// they know. Asks for the turn that tells it.
    pub fn charge_as(&self, other: &UsedUp, now: Tick) -> NextTurn {
        let mut node = self.node.lock();
        node.sequence += 1; // a turn is missing: Redis takes what this node knows into account
        self.day_told.charge_as(other.day, now);
        for bucket in Bucket::ALL {
            let at = bucket as usize;
            node.known[at] = node.known[at].max(other.known[at], now);
            self.owed[at].charge_as(other.owed[at]);
            // What this one has spent is added when it is read.
            let full_at = self.lease(bucket).full_at(0).max(other.full_at[at]);
            self.lease(bucket).set_full_at(full_at);
        }
        node.queue()
    }
}
