//! What a key has left when it is put under other limits, over any number of changes.

use std::num::NonZeroU32;
use std::sync::Arc;

use arc_swap::ArcSwap;
use proptest::prelude::*;

use super::*;
use crate::clock::Tick;
use crate::config::{Rate, Tier};
use crate::model::Limit;
use crate::wire::Operation;

const GET: Operation = Operation::GetPoints;
const SET: Operation = Operation::SetPoints;
const SECOND: u64 = 1_000_000_000;

fn rate(per_second: u64, burst: u32) -> Rate {
    Rate { period_ns: SECOND / per_second, burst: NonZeroU32::new(burst).unwrap() }
}

fn policy(main: Rate, write: Option<Rate>) -> Arc<Policy> {
    let tier = Tier { name: "standard".into(), main, write, daily: None, in_flight: None, candidate: None };
    Arc::new(Policy::new(Arc::new(tier)))
}

/// The limit that a request is over.
fn ask(policy: &Policy, buckets: &Buckets, operation: Operation, tick: u64) -> Option<Limit> {
    let ask = LimitQuery { operation, in_flight: 0, now: Tick(tick) };
    policy.decide(buckets, &Usage::default(), ask, || 0).over.map(|(limit, _)| limit)
}

fn let_in(policy: &Policy, buckets: &Buckets, operation: Operation, tick: u64) -> usize {
    (0..100).filter(|_| ask(policy, buckets, operation, tick).is_none()).count()
}

#[test]
fn another_tier_gives_a_key_no_more_and_decides_for_requests_that_came_before_it() {
    let (old, first) = (policy(rate(20, 40), None), Arc::new(Buckets::default()));
    assert!((0..39).all(|_| ask(&old, &first, GET, 0).is_none()));
    let new = policy(rate(100, 400), None);
    let second = Buckets::with_policy(&old, &first, &new, Tick(0));
    assert_eq!((ask(&new, &second, GET, 0), ask(&new, &second, GET, 0)), (None, Some(Limit::Rate)));
    // A request that still has the old ones in hand is one of the same key under the new limits.
    let tick = SECOND / 100;
    assert_eq!((ask(&old, &first, SET, tick), ask(&old, &first, SET, tick)), (None, Some(Limit::Rate)));
    let over = |policy: &Policy| policy.over_limit().read().over[Limit::Rate.index()];
    assert_eq!((over(&old), over(&new)), (0, 2));
    assert!(first.are_replaced() && !second.are_replaced());
    // Changed again, it is the last ones that decide, and those in between are not kept.
    let third = Buckets::with_policy(&new, &second, &old, Tick(tick));
    assert!(Arc::ptr_eq(&third, &Buckets::with_policy(&old, &first, &old, Tick(tick))));
    assert_eq!(let_in(&old, &first, GET, SECOND), 19);
    assert_eq!(let_in(&old, &third, GET, SECOND), 0);
    drop(new);
    assert_eq!((Arc::strong_count(&second), Arc::strong_count(&third)), (1, 3));
}

#[test]
fn a_write_rate_removed_and_put_back_refills_no_bucket() {
    let with = |burst| policy(rate(20, 40), Some(rate(5, burst)));
    let without = policy(rate(20, 40), None);
    let policies = [with(10), without.clone(), without, with(1), with(10)];
    let mut buckets = Arc::new(Buckets::default());
    assert_eq!(let_in(&policies[0], &buckets, SET, 0), 10);
    for (n, change) in policies.windows(2).enumerate() {
        buckets = Buckets::with_policy(&change[0], &buckets, &change[1], Tick(n as u64 * SECOND / 10));
    }
    assert_eq!(let_in(&policies[4], &buckets, SET, 3 * SECOND / 10), 1);
}

#[test]
fn a_key_that_has_asked_gets_no_larger_write_burst_by_a_change_and_one_that_has_not_does() {
    let (small, large) = (policy(rate(20, 40), Some(rate(1, 1))), policy(rate(20, 40), Some(rate(1, 30))));
    for (asked, left) in [(Some(GET), 1), (Some(SET), 0), (None, 30)] {
        let buckets = Arc::new(Buckets::default());
        assert!(asked.is_none_or(|operation| ask(&small, &buckets, operation, 0).is_none()));
        let buckets = Buckets::with_policy(&small, &buckets, &large, Tick(0));
        assert_eq!(let_in(&large, &buckets, SET, 0), left, "{asked:?}");
    }
}

#[test]
fn a_first_write_rate_begins_with_all_of_its_burst() {
    let (without, with, buckets) = (policy(rate(20, 40), None), policy(rate(20, 40), Some(rate(1, 5))), Arc::default());
    assert_eq!(ask(&without, &buckets, SET, 0), None);
    assert_eq!(let_in(&with, &Buckets::with_policy(&without, &buckets, &with, Tick(0)), SET, 0), 5);
}

#[test]
fn a_copy_has_what_is_left_and_leaves_it_where_it_is() {
    let (small, large, buckets) = (policy(rate(1, 4), None), policy(rate(1, 9), None), Arc::default());
    assert_eq!(let_in(&small, &buckets, GET, 0), 4);
    let now = Tick(3 * SECOND);
    let copy = Buckets::copy_with_policy(&small, &buckets, &large, now..=now);
    assert_eq!((let_in(&large, &copy, GET, now.0), let_in(&small, &buckets, GET, now.0)), (3, 3));
    // Of a moment that is not known, the one after which most is left.
    let (slow, later) = (policy(Rate { period_ns: 3600 * SECOND, ..rate(1, 9) }, None), 60 * SECOND);
    let most = Buckets::copy_with_policy(&small, &buckets, &slow, now..=Tick(later));
    assert_eq!(let_in(&slow, &most, GET, later), 4, "changed once it was full");
    let fast = policy(rate(100, 40), None);
    let most = Buckets::copy_with_policy(&small, &buckets, &fast, now..=Tick(later));
    assert_eq!(let_in(&fast, &most, GET, later), 40, "changed right after its last request");
}

#[test]
fn while_limits_change_under_load_no_request_is_let_in_twice_over() {
    // An hour passes before anything comes back: whatever is let in comes out of one largest burst.
    const MOST: u32 = 4000;
    let hourly = |burst| policy(Rate { period_ns: 3600 * SECOND, burst: NonZeroU32::new(burst).unwrap() }, None);
    for round in 0..20 {
        let (first, buckets) = (hourly(MOST), Arc::new(Buckets::default()));
        let in_force = ArcSwap::from_pointee((first.clone(), buckets));
        let let_in = std::thread::scope(|scope| {
            let ask_all = || {
                let ask_one = |_: &u32| {
                    let policy_before = in_force.load_full();
                    // The longer this takes, the more of them are late.
                    std::thread::yield_now();
                    ask(&policy_before.0, &policy_before.1, GET, 1).is_none()
                };
                (0..MOST).filter(ask_one).count()
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(ask_all)).collect();
            for n in 0..300 {
                let (policy_before, next) = (in_force.load_full(), hourly(if n % 2 == 0 { MOST - 1 } else { MOST }));
                let buckets = Buckets::with_policy(&policy_before.0, &policy_before.1, &next, Tick(1));
                std::thread::yield_now();
                in_force.store(Arc::new((next, buckets)));
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        assert!((1..=MOST as usize).contains(&let_in), "{let_in} of {MOST} in round {round}");
    }
}

/// One thing that happens to a key: a while passes, and it asks so often or is put under other limits.
#[derive(Clone, Debug)]
enum Step {
    Ask(Operation, u32),
    Limits(Rate, Option<Rate>),
}

fn any_step() -> impl Strategy<Value = (u64, Step)> {
    let any_rate = || {
        (1u64..2 * SECOND, 1u32..40)
            .prop_map(|(period_ns, burst)| Rate { period_ns, burst: NonZeroU32::new(burst).unwrap() })
    };
    let ask = (proptest::sample::select(vec![GET, SET]), 1u32..60).prop_map(|(o, times)| Step::Ask(o, times));
    let limits = (any_rate(), proptest::option::of(any_rate())).prop_map(|(main, write)| Step::Limits(main, write));
    (prop_oneof![2 => 0u64..SECOND / 10, 1 => 0u64..20 * SECOND], prop_oneof![ask, limits])
}

proptest! {
    #[test]
    fn over_any_changes_of_limits_no_time_lets_in_more_than_the_largest_burst_and_rate(
        steps in proptest::collection::vec(any_step(), 1..40),
    ) {
        let (first, first_buckets) = (policy(rate(20, 40), Some(rate(5, 10))), Arc::new(Buckets::default()));
        let (mut policy_before, mut buckets, mut now) = (first.clone(), first_buckets.clone(), 0);
        let mut all = LetIn { times: Vec::new(), rates: vec![policy_before.tier().main] };
        let mut writes = LetIn::default();
        writes.rates.extend(policy_before.tier().write);
        for (gap, step) in steps {
            now += gap;
            match step {
                Step::Ask(operation, times) => for n in 0..times {
                    // Some are on their way since before the first change.
                    let (policy, buckets) = if n % 3 == 0 { (&first, &first_buckets) } else { (&policy_before, &buckets) };
                    if ask(policy, buckets, operation, now).is_none() {
                        all.times.push(now);
                        // Where writes have no limit of their own, they count for none.
                        if operation == SET && policy_before.tier().write.is_some() {
                            writes.times.push(now);
                        }
                    }
                },
                Step::Limits(main, write) => {
                    let available = |policy: &Policy, buckets: &Buckets| {
                        let level = |bucket: &Bucket, rate| bucket.level(rate, Tick(now)).remaining;
                        (level(&buckets.main, policy.tier().main), policy.tier().write.map(|rate| level(&buckets.write, rate)))
                    };
                    let next = policy(main, write);
                    let before = available(&policy_before, &buckets);
                    buckets = Buckets::with_policy(&policy_before, &buckets, &next, Tick(now));
                    policy_before = next;
                    let after = available(&policy_before, &buckets);
                    if !all.times.is_empty() {
                        prop_assert_eq!(after.0, before.0.min(u64::from(main.burst.get())));
                        if let (Some(before), Some(after), Some(write)) = (before.1, after.1, write) {
                            prop_assert_eq!(after, before.min(u64::from(write.burst.get())));
                        }
                    }
                    all.rates.push(main);
                    writes.rates.extend(write);
                }
            }
        }
        prop_assert!(all.is_within() && writes.is_within(), "{:?}\n{:?}", all, writes);
    }
}

/// When requests were let in, and every rate that was in force.
#[derive(Debug, Default)]
pub(crate) struct LetIn {
    pub(crate) times: Vec<u64>,
    pub(crate) rates: Vec<Rate>,
}

impl LetIn {
    /// Whether no stretch of time, from any request to any other, has more of them than the largest burst
    /// and the largest rate allow.
    pub(crate) fn is_within(&self) -> bool {
        let burst = self.rates.iter().map(|rate| i128::from(rate.burst.get())).max().unwrap_or(0);
        let period = self.rates.iter().map(|rate| i128::from(rate.period_ns)).min().unwrap_or(0);
        let mut latest = i128::MIN;
        self.times.iter().zip(0..).all(|(time, n)| {
            // When it may have come at the earliest if it is the first of a stretch, and if it is the last.
            let (first, last) = (i128::from(*time) - n * period, i128::from(*time) - (n + 1 - burst) * period);
            latest = latest.max(first);
            latest <= last
        })
    }
}
