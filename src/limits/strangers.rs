//! The rate limit per client address for requests without a valid key (`[limits.strangers]`). The table has a fixed
//! size whatever comes, so that a million addresses cost no memory; addresses whose hashes are equal share a bucket,
//! and the hash is keyed at random. While it is not known whether a request's key is valid, its token is held, and does
//! not come back: so a key that is proven gets its address exactly that token back, however late and over any reload. A
//! known key never pays here. Time is an argument.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Tick;
use crate::config::Rate;

/// Buckets for all addresses: 1.5 MiB. Two addresses with the same hash share a bucket.
const BUCKETS: usize = 1 << 16;

/// The limit for each client address on requests without a valid key: those that end in 01 or 02, and with keys that only
/// the origin knows, those that it did not answer (`[limits.strangers]`).
pub struct Strangers {
    table: Mutex<Table>,
    // Keyed at random, so that nobody can choose an address with the same hash as a certain other one.
    hasher: RandomState,
    /// Requests over the limit.
    over: AtomicU64,
}

struct Table {
    rate: Rate,
    /// How often it has changed.
    changes: u64,
    buckets: Box<[Bucket]>,
}

/// The GCRA bucket of an address.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// When it is full if no token is held.
    full_at: u64,
    /// Tokens of requests whose keys may be proven yet.
    held: u32,
    /// Requests of before the last change of the rate whose tokens a lower burst does not hold: nothing becomes of them.
    dropped: u32,
    was_used: bool,
}

/// The charge to an address for one request: the token is held while this lives, and then spent as of the request.
#[derive(Debug)]
pub struct AddressCharge {
    strangers: Arc<Strangers>,
    bucket: usize,
    began: Tick,
    /// [`Table::changes`] at that time.
    changes: u64,
    is_refunded: AtomicBool,
}

impl Bucket {
    /// Nanoseconds until it is full at `now` if what is held is spent.
    fn owed(&self, rate: Rate, now: Tick) -> u64 {
        self.full_at.saturating_sub(now.0).saturating_add(rate.period_ns.saturating_mul(self.held.into()))
    }

    /// Holds a token; the error is the time until the address has one, if what is held is spent.
    fn hold(&mut self, rate: Rate, now: Tick) -> Result<(), Duration> {
        let most = whole(rate).saturating_sub(rate.period_ns);
        match self.owed(rate, now).checked_sub(most) {
            None | Some(0) => {
                self.held += 1;
                self.was_used = true;
                Ok(())
            }
            Some(wait) => Err(Duration::from_nanos(wait)),
        }
    }

    /// Holds the token of a request no more, which came before the last change of the rate or not. Whether it was held.
    fn release(&mut self, is_of_before: bool) -> bool {
        let is_dropped = is_of_before && self.dropped > 0;
        let released = if is_dropped { &mut self.dropped } else { &mut self.held };
        *released -= 1;
        !is_dropped
    }

    /// Another rate is in force from `now` on. What is available stays available, up to the new burst (guarantee 6); an
    /// address that never asked begins full.
    fn change_rate(&mut self, before: Rate, rate: Rate, now: Tick) {
        if !self.was_used {
            return;
        }
        let available = u128::from(whole(before).saturating_sub(self.owed(before, now)));
        let available = available * u128::from(rate.period_ns) / u128::from(before.period_ns.max(1));
        let owed = whole(rate).saturating_sub(u64::try_from(available).unwrap_or(u64::MAX));
        let held = u64::from(self.held).min(owed.div_ceil(rate.period_ns.max(1)));
        self.dropped += self.held - held as u32;
        self.held = held as u32;
        self.full_at = now.0.saturating_add(owed.saturating_sub(rate.period_ns.saturating_mul(held)));
    }
}

/// Nanoseconds in which a whole burst comes back.
fn whole(rate: Rate) -> u64 {
    rate.period_ns.saturating_mul(rate.burst.get().into())
}

impl Strangers {
    pub fn new(rate: Rate) -> Self {
        let table = Mutex::new(Table { rate, changes: 0, buckets: vec![Bucket::default(); BUCKETS].into() });
        Strangers { table, hasher: RandomState::new(), over: AtomicU64::new(0) }
    }

    /// Puts another rate in force; no address gets a request more by that.
    pub fn set_rate(&self, rate: Rate, now: Tick) {
        let Table { rate: before, changes, buckets } = &mut *self.table.lock();
        if *before != rate {
            buckets.iter_mut().for_each(|bucket| bucket.change_rate(*before, rate, now));
            (*before, *changes) = (rate, *changes + 1);
        }
    }

    /// Charges one request to an address; the error is the time until the charge would be possible.
    pub fn charge(self: &Arc<Self>, address: IpAddr, now: Tick) -> Result<AddressCharge, Duration> {
        let bucket = self.hasher.hash_one(network(address)) as usize % BUCKETS;
        let Table { rate, changes, buckets } = &mut *self.table.lock();
        match buckets[bucket].hold(*rate, now) {
            Ok(()) => {
                let (strangers, is_refunded) = (self.clone(), AtomicBool::new(false));
                Ok(AddressCharge { strangers, bucket, began: now, changes: *changes, is_refunded })
            }
            Err(wait) => {
                self.over.fetch_add(1, Ordering::Relaxed);
                Err(wait)
            }
        }
    }

    /// The number of requests over the limit, under this rate and those before.
    pub fn over(&self) -> u64 {
        self.over.load(Ordering::Relaxed)
    }
}

impl AddressCharge {
    /// Refunds the charge, since the key of the request has been proven.
    pub fn refund(&self) {
        if !self.is_refunded.swap(true, Ordering::Relaxed) {
            self.release(|_, _| {});
        }
    }

    /// Holds the token no more, and does this with its bucket, unless it was dropped.
    fn release(&self, then: impl FnOnce(&mut Bucket, Rate)) {
        let Table { rate, changes, buckets } = &mut *self.strangers.table.lock();
        let bucket = &mut buckets[self.bucket];
        if bucket.release(self.changes < *changes) {
            then(bucket, *rate);
        }
    }
}

impl Drop for AddressCharge {
    fn drop(&mut self) {
        if !*self.is_refunded.get_mut() {
            let spend = |full_at: u64, rate: Rate| full_at.max(self.began.0).saturating_add(rate.period_ns);
            self.release(|bucket, rate| bucket.full_at = spend(bucket.full_at, rate));
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
        f.debug_struct("Strangers").field("buckets", &BUCKETS).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn rate(period_ns: u64, burst: u32) -> Rate {
        Rate { period_ns, burst: NonZeroU32::new(burst).unwrap() }
    }

    fn with(rate: Rate) -> Arc<Strangers> {
        Arc::new(Strangers::new(rate))
    }

    fn at(second: u64) -> Tick {
        Tick(second * SECOND)
    }

    fn address() -> IpAddr {
        "10.0.0.1".parse().unwrap()
    }

    /// How many of many requests with wrong keys are let in.
    fn let_in(strangers: &Arc<Strangers>, now: Tick) -> usize {
        (0..200).filter(|_| strangers.charge(address(), now).is_ok()).count()
    }

    fn hold(strangers: &Arc<Strangers>, tokens: usize, now: Tick) -> Vec<AddressCharge> {
        (0..tokens).map(|_| strangers.charge(address(), now).unwrap()).collect()
    }

    fn refund(charges: Vec<AddressCharge>) {
        charges.iter().for_each(AddressCharge::refund);
    }

    #[test]
    fn addresses_of_one_ipv6_network_share_a_budget_and_others_do_not() {
        let strangers = with(rate(SECOND, 2));
        let pays = |a: &str| strangers.charge(a.parse().unwrap(), Tick(0)).is_ok();
        assert!(pays("2001:db8::1") && pays("2001:db8::2") && !pays("2001:db8::3"));
        // One of these may meet that bucket by chance; not all of them can.
        assert!((1..9).any(|n| pays(&format!("2001:db8:{n}::1"))));
    }

    #[test]
    fn an_address_is_let_in_as_often_as_its_rate_allows_and_is_told_when() {
        let strangers = with(rate(SECOND, 2));
        assert_eq!(let_in(&strangers, at(1)), 2);
        assert_eq!(strangers.charge(address(), at(1)).unwrap_err(), Duration::from_secs(1));
        assert_eq!((let_in(&strangers, at(2)), let_in(&strangers, at(9))), (1, 2));
    }

    #[test]
    fn another_rate_refills_no_address_and_one_that_never_asked_begins_full() {
        let strangers = with(rate(SECOND, 2));
        assert_eq!(let_in(&strangers, at(0)), 2);
        strangers.set_rate(rate(SECOND, 50), at(0));
        assert_eq!((let_in(&strangers, at(0)), strangers.over()), (0, 398));
        // Of ten others some meet no bucket that was asked.
        let most = (2..12).map(|n| {
            let other = format!("10.0.0.{n}").parse().unwrap();
            (0..60).filter(|_| strangers.charge(other, at(0)).is_ok()).count()
        });
        assert_eq!(most.max(), Some(50));
    }

    #[test]
    fn a_burst_that_is_lowered_and_raised_again_gives_no_address_a_second_one() {
        let strangers = with(rate(SECOND, 40));
        assert_eq!(let_in(&strangers, at(0)), 40);
        strangers.set_rate(rate(SECOND, 1), at(0));
        assert_eq!(let_in(&strangers, at(60)), 1);
        strangers.set_rate(rate(SECOND, 40), at(120));
        assert_eq!((let_in(&strangers, at(120)), let_in(&strangers, at(125))), (1, 5));
    }

    #[test]
    fn what_is_paid_for_a_key_that_is_proven_comes_back_whole_over_any_reload() {
        let hour = 3600 * SECOND;
        for (reloads, then) in [
            (&[][..], 30),
            (&[rate(SECOND, 30)], 30),
            (&[rate(2 * hour, 30)], 30),
            (&[rate(hour, 60), rate(hour, 30)], 30),
            (&[rate(hour, 60), rate(hour, 45)], 30),
            (&[rate(hour, 60)], 30),
            (&[rate(hour, 5)], 5),
        ] {
            let strangers = with(rate(hour, 30));
            let charges = hold(&strangers, 30, at(0));
            reloads.iter().for_each(|rate| strangers.set_rate(*rate, at(1)));
            refund(charges);
            assert_eq!(let_in(&strangers, at(1)), then, "{reloads:?}");
        }
    }

    #[test]
    fn what_is_paid_back_between_a_lowered_and_a_raised_burst_fills_no_budget() {
        let hour = 3600 * SECOND;
        let strangers = with(rate(hour, 30));
        let charges = hold(&strangers, 1, at(1));
        strangers.set_rate(rate(hour, 5), at(2));
        refund(charges);
        strangers.set_rate(rate(hour, 30), at(4));
        assert_eq!(let_in(&strangers, at(4)), 5);
    }

    #[test]
    fn a_token_is_held_until_it_is_known_whose_it_is_and_then_counts_from_the_request_on() {
        let strangers = with(rate(SECOND, 2));
        let charges = hold(&strangers, 2, at(1));
        assert_eq!(let_in(&strangers, at(9)), 0, "both may be proven yet");
        drop(charges);
        assert_eq!(let_in(&strangers, at(9)), 2, "both have come back");
        let mut charges = hold(&strangers, 2, at(20));
        refund(charges.split_off(1));
        assert_eq!(let_in(&strangers, at(20)), 1);
        drop(charges);
        assert_eq!(let_in(&strangers, at(20)), 0);
    }

    #[test]
    fn a_lower_burst_that_can_hold_no_more_drops_what_is_held_and_leaves_what_was_available() {
        let hour = 3600 * SECOND;
        for is_proven in [true, false] {
            let strangers = with(rate(hour, 30));
            let charges = hold(&strangers, 10, at(0));
            strangers.set_rate(rate(hour, 5), at(1));
            assert_eq!(let_in(&strangers, at(1)), 5, "20 were available");
            charges.iter().filter(|_| is_proven).for_each(AddressCharge::refund);
            drop(charges);
            assert_eq!(let_in(&strangers, at(1)), 0);
            assert_eq!(let_in(&strangers, at(3602)), 1, "no more than the burst is owed");
        }
    }

    #[test]
    fn a_charge_is_refunded_once() {
        let strangers = with(rate(SECOND, 2));
        let charge = strangers.charge(address(), at(0)).unwrap();
        charge.refund();
        charge.refund();
        drop(charge);
        assert_eq!(let_in(&strangers, at(0)), 2);
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Requests whose keys the origin refuses at once.
        Wrong(usize),
        /// Requests whose keys it judges later.
        Unknown(usize),
        Proven(usize),
        Refused(usize),
        Reload(Rate),
    }

    fn step() -> impl Strategy<Value = Step> {
        let rates = (1..=4_u64, 1..=6_u32).prop_map(|(tenths, burst)| Step::Reload(rate(tenths * SECOND / 10, burst)));
        prop_oneof![
            3 => (1..8_usize).prop_map(Step::Wrong),
            3 => (1..8_usize).prop_map(Step::Unknown),
            2 => (1..8_usize).prop_map(Step::Proven),
            2 => (1..8_usize).prop_map(Step::Refused),
            1 => rates,
        ]
    }

    proptest! {
        /// Guarantee 6, of the requests whose keys are not proven, each as of the moment at which it was let in.
        #[test]
        fn in_any_time_an_address_tries_at_most_the_largest_burst_and_rate_of_wrong_keys(
            steps in prop::collection::vec((0..400_u64, step()), 1..60),
        ) {
            let first = rate(SECOND / 5, 4);
            let (strangers, mut now) = (with(first), 0);
            let (mut held, mut wrong, mut rates) = (Vec::new(), Vec::new(), vec![first]);
            for (ms, step) in steps {
                now += ms * SECOND / 1000;
                match step {
                    Step::Wrong(n) => (0..n).for_each(|_| wrong.extend(strangers.charge(address(), Tick(now)).map(|_| now))),
                    Step::Unknown(n) => (0..n).for_each(|_| held.extend(strangers.charge(address(), Tick(now)))),
                    Step::Proven(n) => refund(held.drain(..n.min(held.len())).collect()),
                    Step::Refused(n) => {
                        let refused = held.drain(held.len() - n.min(held.len())..);
                        wrong.extend(refused.map(|charge| charge.began.0));
                    }
                    Step::Reload(rate) => {
                        strangers.set_rate(rate, Tick(now));
                        rates.push(rate);
                    }
                }
            }
            wrong.extend(held.drain(..).map(|charge| charge.began.0));
            wrong.sort_unstable();
            let burst = rates.iter().map(|rate| u64::from(rate.burst.get())).max().unwrap();
            let period_ns = rates.iter().map(|rate| rate.period_ns).min().unwrap();
            for (n, from) in wrong.iter().enumerate() {
                for (count, to) in (1..).zip(&wrong[n..]) {
                    prop_assert!(count <= burst + (to - from) / period_ns, "{count} from {from} to {to} of {wrong:?}");
                }
            }
        }
    }

    #[test]
    fn a_mapped_ipv4_address_is_the_ipv4_address() {
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), network("10.0.0.1".parse().unwrap()));
        assert_ne!(network("10.0.0.2".parse().unwrap()), network("10.0.0.1".parse().unwrap()));
    }
}
