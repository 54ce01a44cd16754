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

use super::bucket::Change;
use super::{Bucket, Verdict};
use crate::clock::Tick;
use crate::config::Rate;

/// Buckets for all the addresses there are: 512 KiB, whoever comes. Two addresses whose hashes
/// meet share a budget; they are strangers both, and a known key never pays here.
const BUCKETS: usize = 1 << 16;

/// What each client address may spend on requests whose key is none, or was never proven: those that end in 01 or 02, and
/// where only the origin knows keys, those that it did not answer (`[limits.strangers]`).
pub struct Strangers {
    rate: Rate,
    buckets: Box<[Bucket]>,
    // Random per process, so that nobody can choose an address that meets a certain other's.
    hasher: RandomState,
    /// Requests that were over it.
    over: Arc<AtomicU64>,
    /// The same addresses under another rate; set before the first bucket says that it was replaced.
    successor: OnceLock<Arc<Strangers>>,
}

/// What an address was charged for one request.
#[derive(Clone, Copy, Debug)]
pub struct Paid {
    /// When it is back by itself.
    back_at: Tick,
    /// The time in which one request comes back.
    period_ns: u64,
}

impl Strangers {
    pub fn new(rate: Rate) -> Self {
        let buckets = (0..BUCKETS).map(|_| Bucket::default()).collect();
        Strangers { rate, buckets, hasher: RandomState::new(), over: Arc::default(), successor: OnceLock::new() }
    }

    /// The same addresses under another rate from now on, which has given none of them a request more.
    /// Whoever still charges or refunds by `before` does it here.
    pub fn after(before: &Self, rate: Rate, now: Tick) -> Arc<Self> {
        if let Some(before) = before.successor.get() {
            return Strangers::after(before, rate, now);
        }
        let (hasher, over) = (before.hasher.clone(), before.over.clone());
        let after = before.successor.get_or_init(|| Arc::new(Strangers { hasher, over, ..Strangers::new(rate) }));
        let change = Change { from: before.rate, to: rate, at: now, was_asked: false };
        for (bucket, old) in after.buckets.iter().zip(&before.buckets) {
            bucket.replace(old, change);
        }
        after.clone()
    }

    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Charges one request to an address; the error is how long until it could pay.
    pub fn charge(&self, address: IpAddr, now: Tick) -> Result<Paid, Duration> {
        let (bucket, period_ns) = (self.bucket(address), self.rate.period_ns);
        match (bucket.decide(self.rate, now), self.successor.get()) {
            (Verdict::Admitted, _) => Ok(Paid { back_at: bucket.full_at(), period_ns }),
            (Verdict::Replaced, Some(after)) => after.charge(address, now),
            (Verdict::Refused { wait }, _) => {
                self.over.fetch_add(1, Ordering::Relaxed);
                Err(wait)
            }
            // There always is a successor before a bucket is replaced.
            (Verdict::Replaced, None) => Err(Duration::from_nanos(period_ns)),
        }
    }

    /// How many requests were over it, under this rate and those before.
    pub fn over(&self) -> u64 {
        self.over.load(Ordering::Relaxed)
    }

    /// Pays an address back: the key that came from it turned out to be good. What has come back by
    /// itself meanwhile is not paid twice. It is paid where it counts now, whatever the rate was then.
    pub fn refund(&self, address: IpAddr, paid: Paid, now: Tick) {
        let Paid { back_at, period_ns } = paid;
        let left = u128::from(back_at.0.saturating_sub(now.0).min(period_ns));
        let amount = left * u128::from(self.rate.period_ns) / u128::from(period_ns.max(1));
        let amount = Duration::from_nanos(u64::try_from(amount).unwrap_or(u64::MAX));
        if !self.bucket(address).refund(amount)
            && let Some(after) = self.successor.get()
        {
            after.refund(address, paid, now);
        }
    }

    fn bucket(&self, address: IpAddr) -> &Bucket {
        let hash = self.hasher.hash_one(network(address));
        &self.buckets[hash as usize % BUCKETS]
    }
}

/// What counts as one address: an IPv4 address, or an IPv6 /64, which is what one customer has.
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
        let strangers = Strangers::new(RATE);
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
        let (strangers, address) = (Strangers::new(RATE), "10.0.0.1".parse().unwrap());
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
        let (strangers, address) = (Strangers::new(burst(40)), "10.0.0.1".parse().unwrap());
        let second = |n: u64| Tick(n * 1_000_000_000);
        let let_in = |strangers: &Strangers, now| (0..100).filter(|_| strangers.charge(address, now).is_ok()).count();
        assert_eq!(let_in(&strangers, second(0)), 40);
        let lowered = Strangers::after(&strangers, burst(1), second(0));
        assert_eq!(let_in(&lowered, second(60)), 1);
        let raised = Strangers::after(&lowered, burst(40), second(120));
        assert_eq!(let_in(&raised, second(120)), 1);
        // Whoever still goes by an older one meets the same budget.
        assert_eq!(let_in(&strangers, second(120)), 0);
        assert_eq!(let_in(&lowered, second(125)), 5);
        assert_eq!(let_in(&raised, second(125)), 0);
    }

    #[test]
    fn what_was_paid_before_a_reload_is_paid_back_to_the_budget_in_force() {
        let (strangers, address) = (Strangers::new(burst(4)), "10.0.0.1".parse().unwrap());
        let paid: Vec<Paid> = (0..4).map(|_| strangers.charge(address, Tick(0)).unwrap()).collect();
        let faster = Rate { period_ns: RATE.period_ns / 4, ..burst(4) };
        let after = Strangers::after(&strangers, faster, Tick(0));
        assert!(after.charge(address, Tick(0)).is_err());
        paid.iter().take(2).for_each(|paid| strangers.refund(address, *paid, Tick(0)));
        assert_eq!((0..9).filter(|_| after.charge(address, Tick(0)).is_ok()).count(), 2);
    }

    #[test]
    fn what_was_paid_is_paid_back_once_be_it_by_time_or_by_hand() {
        let (strangers, address) = (Strangers::new(RATE), "10.0.0.1".parse().unwrap());
        let second = |n: u64| Tick(n * 1_000_000_000);
        let paid = strangers.charge(address, second(0)).unwrap();
        strangers.refund(address, paid, second(0));
        let paid = [strangers.charge(address, second(0)).unwrap(), strangers.charge(address, second(0)).unwrap()];
        assert!(strangers.charge(address, second(0)).is_err());
        // Ten seconds later all of it is back; others spend it.
        assert!(strangers.charge(address, second(10)).is_ok() && strangers.charge(address, second(10)).is_ok());
        paid.into_iter().for_each(|paid| strangers.refund(address, paid, second(10)));
        assert!(strangers.charge(address, second(10)).is_err());
    }

    #[test]
    fn a_mapped_ipv4_address_is_the_ipv4_address() {
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), network("10.0.0.1".parse().unwrap()));
        assert_ne!(network("10.0.0.2".parse().unwrap()), network("10.0.0.1".parse().unwrap()));
    }
}
