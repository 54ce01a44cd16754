//! The rate limit per client address for requests without a valid key (`[limits.strangers]`). The table has a fixed
//! size whatever comes, so that a million addresses cost no memory; addresses whose hashes are equal share a bucket,
//! and the hash is keyed at random. A known key never pays here. Time is an argument.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::rate::{Bucket, Limiter};
use crate::clock::Tick;
use crate::config::Rate;

/// Buckets for all addresses: 512 KiB.
const BUCKETS: usize = 1 << 16;

/// The limit for each client address on requests without a valid key: those that end in 01 or 02, and with keys that only
/// the origin knows, those that it did not answer (`[limits.strangers]`).
#[derive(Debug)]
pub struct Strangers {
    limiter: Limiter,
    buckets: Box<[Bucket]>,
    // Keyed at random, so that nobody can choose an address with the same hash as a certain other one.
    hasher: RandomState,
    /// Requests over the limit.
    over: AtomicU64,
}

/// The charge to an address for one request.
#[derive(Debug)]
pub struct AddressCharge {
    strangers: Arc<Strangers>,
    bucket: usize,
}

impl Strangers {
    pub fn new(rate: Rate) -> Self {
        let buckets = (0..BUCKETS).map(|_| Bucket::default()).collect();
        Strangers { limiter: Limiter::new(rate), buckets, hasher: RandomState::new(), over: AtomicU64::new(0) }
    }

    /// The limit at another rate, under which every address and the count begin anew; the same one if the rate is the same.
    pub fn with_rate(self: &Arc<Self>, rate: Rate) -> Arc<Self> {
        if self.limiter.rate == rate { self.clone() } else { Arc::new(Strangers::new(rate)) }
    }

    /// Charges one request to an address; the error is the time until the charge would be possible.
    pub fn charge(self: &Arc<Self>, address: IpAddr, now: Tick) -> Result<AddressCharge, Duration> {
        let bucket = self.hasher.hash_one(network(address)) as usize % BUCKETS;
        let charged = self.buckets[bucket].charge(&self.limiter, now);
        charged.inspect_err(|_| _ = self.over.fetch_add(1, Ordering::Relaxed))?;
        Ok(AddressCharge { strangers: self.clone(), bucket })
    }

    /// The number of requests over the limit.
    pub fn over(&self) -> u64 {
        self.over.load(Ordering::Relaxed)
    }
}

impl AddressCharge {
    /// Refunds the charge, once, since the key of the request has been proven.
    pub fn refund(self) {
        self.strangers.buckets[self.bucket].refund(&self.strangers.limiter);
    }
}

/// What counts as one address: an IPv4 address, or an IPv6 /64, which one customer has.
pub fn network(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn with(burst: u32) -> Arc<Strangers> {
        Arc::new(Strangers::new(Rate { period_ns: SECOND, burst: NonZeroU32::new(burst).unwrap() }))
    }

    fn charge(strangers: &Arc<Strangers>, address: &str, second: u64) -> Result<AddressCharge, Duration> {
        strangers.charge(address.parse().unwrap(), Tick(second * SECOND))
    }

    fn let_in(strangers: &Arc<Strangers>, second: u64) -> usize {
        (0..100).filter(|_| charge(strangers, "10.0.0.1", second).is_ok()).count()
    }

    #[test]
    fn an_address_pays_until_its_burst_is_used_up_and_another_does_not() {
        let strangers = with(30);
        assert_eq!((let_in(&strangers, 5), let_in(&strangers, 7)), (30, 2));
        assert_eq!(charge(&strangers, "10.0.0.1", 7).unwrap_err(), Duration::from_secs(1));
        assert!(charge(&strangers, "10.0.0.2", 5).is_ok());
        assert_eq!(strangers.over(), 70 + 98 + 1);
    }

    #[test]
    fn a_refund_gives_one_request_back() {
        let strangers = with(3);
        let charges: Vec<_> = (0..3).map(|_| charge(&strangers, "10.0.0.1", 0).unwrap()).collect();
        for charge in charges {
            charge.refund();
            assert_eq!(let_in(&strangers, 0), 1);
        }
        assert_eq!(let_in(&strangers, 60), 3);
    }

    #[test]
    fn another_rate_begins_anew_and_the_same_one_goes_on() {
        let strangers = with(3);
        assert_eq!(let_in(&strangers, 0), 3);
        let same = strangers.with_rate(strangers.limiter.rate);
        let other = strangers.with_rate(with(5).limiter.rate);
        assert_eq!((let_in(&same, 0), let_in(&other, 0)), (0, 5));
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        let network = |text: &str| network(text.parse().unwrap());
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }
}
