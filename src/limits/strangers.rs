use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Bucket, Verdict};
use crate::clock::Tick;
use crate::config::Rate;

/// Buckets for all the addresses there are: 512 KiB, whoever comes. Two addresses whose hashes
/// meet share a budget; they are strangers both, and a known key never pays here.
const BUCKETS: usize = 1 << 16;

/// What each client address may spend on requests that end in 01 or 02 (`[limits.strangers]`).
pub struct Strangers {
    rate: Rate,
    buckets: Box<[Bucket]>,
    // Random per process, so that nobody can choose an address that meets a certain other's.
    hasher: RandomState,
    /// Requests that were over it.
    over: Arc<AtomicU64>,
}

/// What an address was charged for one request.
#[derive(Clone, Copy, Debug)]
pub struct Paid {
    /// When it is back by itself.
    back_at: Tick,
}

impl Strangers {
    pub fn new(rate: Rate) -> Self {
        let buckets = (0..BUCKETS).map(|_| Bucket::default()).collect();
        Strangers { rate, buckets, hasher: RandomState::new(), over: Arc::default() }
    }

    /// The same addresses under another rate, with what each has used up.
    pub fn after(before: &Self, rate: Rate, now: Tick) -> Self {
        let (hasher, over) = (before.hasher.clone(), before.over.clone());
        let after = Strangers { hasher, over, ..Strangers::new(rate) };
        for (bucket, old) in after.buckets.iter().zip(&before.buckets) {
            bucket.inherit(old, before.rate, rate, now);
        }
        after
    }

    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Charges one request to an address; the error is how long until it could pay.
    pub fn charge(&self, address: IpAddr, now: Tick) -> Result<Paid, Duration> {
        let bucket = self.bucket(address);
        match bucket.decide(self.rate, now) {
            Verdict::Admitted => Ok(Paid { back_at: bucket.full_at() }),
            Verdict::Refused { wait } => {
                self.over.fetch_add(1, Ordering::Relaxed);
                Err(wait)
            }
        }
    }

    /// How many requests were over it, under this rate and those before.
    pub fn over(&self) -> u64 {
        self.over.load(Ordering::Relaxed)
    }

    /// Pays an address back: the key that came from it turned out to be good. What has come back by
    /// itself meanwhile is not paid twice.
    pub fn refund(&self, address: IpAddr, paid: Paid, now: Tick) {
        let period = Duration::from_nanos(self.rate.period_ns);
        self.bucket(address).refund(paid.back_at.since(now).min(period));
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

    #[test]
    fn another_rate_refills_no_address() {
        let (strangers, address) = (Strangers::new(RATE), "10.0.0.1".parse().unwrap());
        while strangers.charge(address, Tick(0)).is_ok() {}
        let after = Strangers::after(&strangers, Rate { burst: NonZeroU32::new(50).unwrap(), ..RATE }, Tick(0));
        assert!(after.charge(address, Tick(0)).is_err());
        assert_eq!(after.over(), 2, "the one that ended the loop, and this one");
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
