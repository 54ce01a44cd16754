//! The rate limit per client address for requests without a valid key (`[limits.strangers]`). The table has a fixed
//! size whatever comes, so that a million addresses cost no memory; addresses whose hashes are equal share a bucket,
//! and the hash is keyed at random. A key that is proven later gets its address's charge refunded. A known key never
//! pays here. Time is an argument.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::bucket::RateChange;
use super::{Bucket, Verdict};
use crate::clock::{Tick, nanos};
use crate::config::Rate;

/// Buckets for all addresses: 512 KiB. Two addresses with the same hash share a bucket.
const BUCKETS: usize = 1 << 16;

/// The limit for each client address on requests without a valid key: those that end in 01 or 02, and with keys that only
/// the origin knows, those that it did not answer (`[limits.strangers]`).
pub struct Strangers {
    rate: Rate,
    buckets: Box<[Bucket]>,
    // Keyed at random, so that nobody can choose an address with the same hash as a certain other one.
    hasher: RandomState,
    /// Requests over the limit.
    over: Arc<AtomicU64>,
    /// When this rate came into force.
    since: Tick,
    /// The same addresses under another rate; set before the first bucket answers that it was replaced.
    successor: OnceLock<Arc<Strangers>>,
}

/// The charge to an address for one request.
#[derive(Clone, Debug)]
pub struct AddressCharge {
    strangers: Arc<Strangers>,
    /// The bucket of the address.
    bucket: usize,
    /// When the address has recovered it.
    back_at: Tick,
}

impl Strangers {
    pub fn new(rate: Rate) -> Self {
        Strangers {
            rate,
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            hasher: RandomState::new(),
            over: Arc::default(),
            since: Tick(0),
            successor: OnceLock::new(),
        }
    }

    /// The same addresses under another rate from now on; none of them gets a request more by the change. A charge or
    /// refund on `before` is made on the new one.
    pub fn after(before: &Self, rate: Rate, now: Tick) -> Arc<Self> {
        if let Some(before) = before.successor.get() {
            return Strangers::after(before, rate, now);
        }
        let (hasher, over) = (before.hasher.clone(), before.over.clone());
        let after = || Arc::new(Strangers { hasher, over, since: now, ..Strangers::new(rate) });
        let after = before.successor.get_or_init(after);
        let change = RateChange { from: before.rate, to: rate, at: now, was_used: false };
        for (bucket, old) in after.buckets.iter().zip(&before.buckets) {
            bucket.replace(old, change);
        }
        after.clone()
    }

    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Charges one request to an address; the error is the time until the charge would be possible.
    pub fn charge(self: &Arc<Self>, address: IpAddr, now: Tick) -> Result<AddressCharge, Duration> {
        let at = self.hasher.hash_one(network(address)) as usize % BUCKETS;
        let bucket = &self.buckets[at];
        match (bucket.decide(self.rate, now), self.successor.get()) {
            (Verdict::Admitted, _) => {
                Ok(AddressCharge { strangers: self.clone(), bucket: at, back_at: bucket.full_at() })
            }
            (Verdict::Replaced, Some(after)) => after.charge(address, now),
            (Verdict::Refused { wait }, _) => {
                self.over.fetch_add(1, Ordering::Relaxed);
                Err(wait)
            }
            // The successor is set before a bucket is replaced.
            (Verdict::Replaced, None) => Err(Duration::from_nanos(self.rate.period_ns)),
        }
    }

    /// The number of requests over the limit, under this rate and those before.
    pub fn over(&self) -> u64 {
        self.over.load(Ordering::Relaxed)
    }

    /// When a charge is recovered that would be at `back_at` under the rate `before` this one. As many requests are to come
    /// back, at another pace; a lower burst drops those that come back last.
    fn back_at(&self, back_at: Tick, before: Rate) -> Tick {
        let left = u128::from(nanos(back_at.since(self.since))) * u128::from(self.rate.period_ns);
        let left = u64::try_from(left / u128::from(before.period_ns.max(1))).unwrap_or(u64::MAX);
        let dropped = before.burst.get().saturating_sub(self.rate.burst.get());
        let left = left.saturating_sub(self.rate.period_ns.saturating_mul(dropped.into()));
        self.since.plus(Duration::from_nanos(left))
    }
}

impl AddressCharge {
    /// Refunds the charge, since the key of the request has been proven. What the address has recovered meanwhile is not
    /// refunded again. The refund goes to the limit in force, whatever the rate was then.
    pub fn refund(&self, now: Tick) {
        let (mut strangers, mut back_at) = (&self.strangers, self.back_at);
        loop {
            let left = back_at.since(now).min(Duration::from_nanos(strangers.rate.period_ns));
            if strangers.buckets[self.bucket].refund(left) {
                return;
            }
            let Some(after) = strangers.successor.get() else { return };
            back_at = after.back_at(back_at, strangers.rate);
            strangers = after;
        }
    }
}

/// What counts as one address: an IPv4 address, or an IPv6 /64, which one customer has.
pub fn network(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
    }
}

impl fmt::Debug for Strangers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Strangers").field("buckets", &self.buckets.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    const RATE: Rate = Rate { period_ns: 1_000_000_000, burst: NonZeroU32::new(2).unwrap() };

    #[test]
    fn addresses_of_one_ipv6_network_share_a_budget_and_others_do_not() {
        let strangers = Arc::new(Strangers::new(RATE));
        let pays = |a: &str| strangers.charge(a.parse().unwrap(), Tick(0)).is_ok();
        assert!(pays("2001:db8::1") && pays("2001:db8::2") && !pays("2001:db8::3"));
        // One of these may meet that bucket by chance; not all of them can.
        assert!((1..9).any(|n| pays(&format!("2001:db8:{n}::1"))));
    }

    fn burst(burst: u32) -> Rate {
        Rate { burst: NonZeroU32::new(burst).unwrap(), ..RATE }
    }

    #[test]
    fn another_rate_refills_no_address_and_one_that_never_asked_begins_full() {
        let (strangers, address) = (Arc::new(Strangers::new(RATE)), "10.0.0.1".parse().unwrap());
        while strangers.charge(address, Tick(0)).is_ok() {}
        let after = Strangers::after(&strangers, burst(50), Tick(0));
        assert!(after.charge(address, Tick(0)).is_err());
        assert_eq!(after.over(), 2, "the one that ended the loop, and this one");
        // Of ten others some meet no bucket that was asked.
        let most = (2..12).map(|n| {
            let other = format!("10.0.0.{n}").parse().unwrap();
            (0..60).filter(|_| after.charge(other, Tick(0)).is_ok()).count()
        });
        assert_eq!(most.max(), Some(50));
    }

    #[test]
    fn a_burst_that_is_lowered_and_raised_again_gives_no_address_a_second_one() {
        let (strangers, address) = (Arc::new(Strangers::new(burst(40))), "10.0.0.1".parse().unwrap());
        let second = |n: u64| Tick(n * 1_000_000_000);
        let let_in =
            |strangers: &Arc<Strangers>, now| (0..100).filter(|_| strangers.charge(address, now).is_ok()).count();
        assert_eq!(let_in(&strangers, second(0)), 40);
        let lowered = Strangers::after(&strangers, burst(1), second(0));
        assert_eq!(let_in(&lowered, second(60)), 1);
        let raised = Strangers::after(&lowered, burst(40), second(120));
        assert_eq!(let_in(&raised, second(120)), 1);
        // A request that still uses an older one is charged to the same budget.
        assert_eq!(let_in(&strangers, second(120)), 0);
        assert_eq!(let_in(&lowered, second(125)), 5);
        assert_eq!(let_in(&raised, second(125)), 0);
    }

    #[test]
    fn what_was_paid_before_a_reload_is_paid_back_to_the_budget_in_force() {
        let (strangers, address) = (Arc::new(Strangers::new(burst(4))), "10.0.0.1".parse().unwrap());
        let charge: Vec<AddressCharge> = (0..4).map(|_| strangers.charge(address, Tick(0)).unwrap()).collect();
        let faster = Rate { period_ns: RATE.period_ns / 4, ..burst(4) };
        let after = Strangers::after(&strangers, faster, Tick(0));
        assert!(after.charge(address, Tick(0)).is_err());
        charge.iter().take(2).for_each(|charge| charge.refund(Tick(0)));
        assert_eq!((0..9).filter(|_| after.charge(address, Tick(0)).is_ok()).count(), 2);
    }

    #[test]
    fn what_is_paid_back_between_a_lowered_and_a_raised_burst_fills_no_budget() {
        let (hour, address) = (3600 * RATE.period_ns, "10.0.0.1".parse().unwrap());
        let an_hour = |most| Rate { period_ns: hour, ..burst(most) };
        let second = |n: u64| Tick(n * 1_000_000_000);
        let strangers = Arc::new(Strangers::new(an_hour(30)));
        let charge = strangers.charge(address, second(1)).unwrap();
        let lowered = Strangers::after(&strangers, an_hour(5), second(2));
        charge.refund(second(3));
        let raised = Strangers::after(&lowered, an_hour(30), second(4));
        assert_eq!((0..60).filter(|_| raised.charge(address, second(4)).is_ok()).count(), 5);
    }

    #[test]
    fn what_was_paid_is_paid_back_once_be_it_by_time_or_by_hand() {
        let (strangers, address) = (Arc::new(Strangers::new(RATE)), "10.0.0.1".parse().unwrap());
        let second = |n: u64| Tick(n * 1_000_000_000);
        let charge = strangers.charge(address, second(1)).unwrap();
        charge.refund(second(1));
        let charge = [strangers.charge(address, second(1)).unwrap(), strangers.charge(address, second(1)).unwrap()];
        assert!(strangers.charge(address, second(1)).is_err());
        // Ten seconds later all of it is back; others spend it.
        assert!(strangers.charge(address, second(10)).is_ok() && strangers.charge(address, second(10)).is_ok());
        charge.iter().for_each(|charge| charge.refund(second(10)));
        assert!(strangers.charge(address, second(10)).is_err());
    }

    #[test]
    fn what_an_address_has_recovered_at_a_faster_rate_is_not_paid_back_too() {
        let (strangers, address) = (Arc::new(Strangers::new(burst(30))), "10.0.0.1".parse().unwrap());
        let second = |n: u64| Tick(n * 1_000_000_000);
        let let_in =
            |strangers: &Arc<Strangers>, now| (0..90).filter(|_| strangers.charge(address, now).is_ok()).count();
        let charges: Vec<AddressCharge> = (0..30).map(|_| strangers.charge(address, second(0)).unwrap()).collect();
        let faster = Strangers::after(&strangers, Rate { period_ns: RATE.period_ns / 20, ..burst(30) }, second(0));
        assert_eq!(let_in(&faster, second(3)), 30, "all has come back");
        charges.iter().for_each(|charge| charge.refund(second(3)));
        assert_eq!(let_in(&faster, second(3)), 0);
    }

    #[test]
    fn what_a_lower_burst_cannot_hold_is_not_paid_back() {
        let (strangers, address) = (Arc::new(Strangers::new(burst(30))), "10.0.0.1".parse().unwrap());
        let charges: Vec<AddressCharge> = (0..30).map(|_| strangers.charge(address, Tick(0)).unwrap()).collect();
        let lowered = Strangers::after(&strangers, burst(2), Tick(0));
        let let_in = || (0..9).filter(|_| lowered.charge(address, Tick(0)).is_ok()).count();
        let let_in: usize = charges.iter().rev().map(|charge| (charge.refund(Tick(0)), let_in()).1).sum();
        assert_eq!(let_in, 2);
    }

    #[test]
    fn a_mapped_ipv4_address_is_the_ipv4_address() {
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), network("10.0.0.1".parse().unwrap()));
        assert_ne!(network("10.0.0.2".parse().unwrap()), network("10.0.0.1".parse().unwrap()));
    }
}
