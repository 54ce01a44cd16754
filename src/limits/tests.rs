//! What a key has left when it is put under other limits, over any number of changes.

use std::num::NonZeroU32;
use std::sync::Arc;

use arc_swap::ArcSwap;
use proptest::prelude::*;

use super::*;
use crate::clock::Tick;
use crate::config::{Rate, Tier};
use crate::model::Limit;
use crate::wire::{Operation, Read};

const GET: Operation = Operation::Read(Read::Points);
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
fn ask(policy: &Policy, meters: &Meters, operation: Operation, tick: u64) -> Option<Limit> {
    let ask = Ask { operation, others: 0, now: Tick(tick) };
    policy.decide(meters, &Usage::default(), ask, || 0).over.map(|(limit, _)| limit)
}

fn let_in(policy: &Policy, meters: &Meters, operation: Operation, tick: u64) -> usize {
    (0..100).filter(|_| ask(policy, meters, operation, tick).is_none()).count()
}

#[test]
fn another_tier_gives_a_key_no_more_and_decides_for_requests_that_came_before_it() {
    let (old, first) = (policy(rate(20, 40), None), Arc::new(Meters::default()));
    assert!((0..39).all(|_| ask(&old, &first, GET, 0).is_none()));
    let new = policy(rate(100, 400), None);
    let second = Meters::under(&old, &first, &new, Tick(0));
    assert_eq!((ask(&new, &second, GET, 0), ask(&new, &second, GET, 0)), (None, Some(Limit::Rate)));
    // A request that still has the old ones in hand is one of the same key under the new limits.
    let tick = SECOND / 100;
    assert_eq!((ask(&old, &first, SET, tick), ask(&old, &first, SET, tick)), (None, Some(Limit::Rate)));
    let over = |policy: &Policy| policy.tally().read().over[Limit::Rate.index()];
    assert_eq!((over(&old), over(&new)), (0, 2));
    assert!(first.are_replaced() && !second.are_replaced());
    // Changed again, it is the last ones that decide, and those in between are not kept.
    let third = Meters::under(&new, &second, &old, Tick(tick));
    assert!(Arc::ptr_eq(&third, &Meters::under(&old, &first, &old, Tick(tick))));
    assert_eq!(let_in(&old, &first, GET, SECOND), 19);
    assert_eq!(let_in(&old, &third, GET, SECOND), 0);
    drop(new);
    assert_eq!((Arc::strong_count(&second), Arc::strong_count(&third)), (1, 3));
}

#[test]
fn a_write_rate_taken_away_and_put_back_gives_nobody_more() {
    let with = |burst| policy(rate(20, 40), Some(rate(5, burst)));
    let without = policy(rate(20, 40), None);
    let policies = [with(10), without.clone(), without, with(1), with(10)];
    let mut meters = Arc::new(Meters::default());
    assert_eq!(let_in(&policies[0], &meters, SET, 0), 10);
    for (n, change) in policies.windows(2).enumerate() {
        meters = Meters::under(&change[0], &meters, &change[1], Tick(n as u64 * SECOND / 10));
    }
    assert_eq!(let_in(&policies[4], &meters, SET, 3 * SECOND / 10), 1);
}

#[test]
fn a_key_that_has_asked_gets_no_larger_write_burst_by_a_change_and_one_that_has_not_does() {
    let (small, large) = (policy(rate(20, 40), Some(rate(1, 1))), policy(rate(20, 40), Some(rate(1, 30))));
    for (asked, left) in [(Some(GET), 1), (Some(SET), 0), (None, 30)] {
        let meters = Arc::new(Meters::default());
        assert!(asked.is_none_or(|operation| ask(&small, &meters, operation, 0).is_none()));
        let meters = Meters::under(&small, &meters, &large, Tick(0));
        assert_eq!(let_in(&large, &meters, SET, 0), left, "{asked:?}");
    }
}

#[test]
fn a_first_write_rate_begins_with_all_of_its_burst() {
    let (without, with, meters) = (policy(rate(20, 40), None), policy(rate(20, 40), Some(rate(1, 5))), Arc::default());
    assert_eq!(ask(&without, &meters, SET, 0), None);
    assert_eq!(let_in(&with, &Meters::under(&without, &meters, &with, Tick(0)), SET, 0), 5);
}

#[test]
fn a_copy_has_what_is_left_and_leaves_it_where_it_is() {
    let (small, large, meters) = (policy(rate(1, 4), None), policy(rate(1, 9), None), Arc::default());
    assert_eq!(let_in(&small, &meters, GET, 0), 4);
    let now = Tick(3 * SECOND);
    let copy = Meters::copy_under(&small, &meters, &large, now..=now);
    assert_eq!((let_in(&large, &copy, GET, now.0), let_in(&small, &meters, GET, now.0)), (3, 3));
    // Of a moment that is not known, the one after which most is left.
    let (slow, later) = (policy(Rate { period_ns: 3600 * SECOND, ..rate(1, 9) }, None), 60 * SECOND);
    let most = Meters::copy_under(&small, &meters, &slow, now..=Tick(later));
    assert_eq!(let_in(&slow, &most, GET, later), 4, "changed once it was full");
    let fast = policy(rate(100, 40), None);
    let most = Meters::copy_under(&small, &meters, &fast, now..=Tick(later));
    assert_eq!(let_in(&fast, &most, GET, later), 40, "changed right after its last request");
}

#[test]
fn while_limits_change_under_load_no_request_is_let_in_twice_over() {
    // An hour passes before anything comes back: whatever is let in comes out of one largest burst.
    const MOST: u32 = 4000;
    let hourly = |burst| policy(Rate { period_ns: 3600 * SECOND, burst: NonZeroU32::new(burst).unwrap() }, None);
    for round in 0..20 {
        let (first, meters) = (hourly(MOST), Arc::new(Meters::default()));
        let in_force = ArcSwap::from_pointee((first.clone(), meters));
        let let_in = std::thread::scope(|scope| {
            let ask_all = || {
                let ask_one = |_: &u32| {
                    let held_to = in_force.load_full();
                    // The longer this takes, the more of them are late.
                    std::thread::yield_now();
                    ask(&held_to.0, &held_to.1, GET, 1).is_none()
                };
                (0..MOST).filter(ask_one).count()
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(ask_all)).collect();
            for n in 0..300 {
                let (held_to, next) = (in_force.load_full(), hourly(if n % 2 == 0 { MOST - 1 } else { MOST }));
                let meters = Meters::under(&held_to.0, &held_to.1, &next, Tick(1));
                std::thread::yield_now();
                in_force.store(Arc::new((next, meters)));
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
        let (first, first_meters) = (policy(rate(20, 40), Some(rate(5, 10))), Arc::new(Meters::default()));
        let (mut held_to, mut meters, mut now) = (first.clone(), first_meters.clone(), 0);
        let mut all = LetIn { times: Vec::new(), rates: vec![held_to.tier().main] };
        let mut writes = LetIn::default();
        writes.rates.extend(held_to.tier().write);
        for (gap, step) in steps {
            now += gap;
            match step {
                Step::Ask(operation, times) => for n in 0..times {
                    // Some are on their way since before the first change.
                    let (policy, buckets) = if n % 3 == 0 { (&first, &first_meters) } else { (&held_to, &meters) };
                    if ask(policy, buckets, operation, now).is_none() {
                        all.times.push(now);
                        // Where writes have no limit of their own, they count for none.
                        if operation == SET && held_to.tier().write.is_some() {
                            writes.times.push(now);
                        }
                    }
                },
                Step::Limits(main, write) => {
                    let available = |policy: &Policy, meters: &Meters| {
                        let level = |bucket: &Bucket, rate| bucket.level(rate, Tick(now)).remaining;
                        (level(&meters.main, policy.tier().main), policy.tier().write.map(|rate| level(&meters.write, rate)))
                    };
                    let next = policy(main, write);
                    let before = available(&held_to, &meters);
                    meters = Meters::under(&held_to, &meters, &next, Tick(now));
                    held_to = next;
                    let after = available(&held_to, &meters);
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
struct LetIn {
    times: Vec<u64>,
    rates: Vec<Rate>,
}

impl LetIn {
    /// Whether no stretch of time, from any request to any other, has more of them than the largest burst
    /// and the largest rate allow.
    fn is_within(&self) -> bool {
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
