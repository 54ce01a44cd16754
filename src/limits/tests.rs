//! The decision on one request, what a caller is told of it, and what is left over any number of changes of limits.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock::Tick;
use crate::config::{Rate, Tier};
use crate::model::{Limit, PerRate};
use crate::wire::Operation;

const GET: Operation = Operation::GetPoints;
const SET: Operation = Operation::SetPoints;
const NOON: i64 = 43_200;
const SECOND: u64 = 1_000_000_000;

fn rate(per_second: u64, burst: u32) -> Rate {
    Rate { period_ns: SECOND / per_second, burst: NonZeroU32::new(burst).unwrap() }
}

fn tier(name: &str) -> Tier {
    Tier { write: Some(rate(5, 10)), ..Tier::new(name, rate(20, 40)) }
}

fn standard() -> Policy {
    Policy::new(Arc::new(tier("standard")))
}

fn policy(main: Rate, write: Option<Rate>) -> Policy {
    Policy::new(Arc::new(Tier { main, write, ..tier("standard") }))
}

/// One key, asked at whatever time, with the wall clock at noon and the tick's seconds.
#[derive(Default)]
struct Caller(Budget);

impl Caller {
    fn decide(&self, policy: &Policy, operation: Operation, tick: u64, by: DecidedBy) -> LimitOutcome {
        let query = LimitQuery { operation, in_flight: 0, now: Tick(tick) };
        self.0.decide(policy, query, by, || NOON + (tick / SECOND) as i64)
    }

    fn ask(&self, policy: &Policy, operation: Operation, tick: u64) -> LimitOutcome {
        self.decide(policy, operation, tick, DecidedBy::ALONE)
    }

    fn let_in(&self, policy: &Policy, operation: Operation, tick: u64) -> usize {
        (0..100).filter(|_| self.ask(policy, operation, tick).over.is_none()).count()
    }
}

fn level(policy: &Policy, levels: &BucketLevels) -> String {
    let mut out = Vec::new();
    policy.write_rate_limit(levels, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn the_headers_read_as_the_contract_shows_them() {
    let (policy, caller) = (standard(), Caller::default());
    assert_eq!(policy.header(), r#""standard";q=40;w=2, "standard-write";q=10;w=2"#);
    let decided = caller.ask(&policy, GET, 0);
    assert_eq!((decided.over, level(&policy, &decided.levels).as_str()), (None, r#""standard";r=39;t=1"#));
    let decided = caller.ask(&policy, SET, 0);
    assert_eq!(level(&policy, &decided.levels), r#""standard";r=38;t=1, "standard-write";r=9;t=1"#);
}

#[test]
fn a_refusal_by_the_write_rate_costs_the_main_one_nothing() {
    let (policy, caller) = (standard(), Caller::default());
    assert!((0..10).all(|_| caller.ask(&policy, SET, 0).over.is_none()));
    let decided = caller.ask(&policy, SET, 0);
    assert_eq!(decided.over, Some((Limit::WriteRate, Duration::from_millis(200))));
    assert_eq!(decided.levels.rates[0].unwrap().remaining, 30);
    assert_eq!(policy.over_limit().over[Limit::WriteRate.index()].load(Ordering::Relaxed), 1);
}

#[test]
fn a_day_has_its_number_of_requests_and_midnight_gives_them_back() {
    let policy = Policy::new(Arc::new(Tier { daily: Some(3), ..tier("standard") }));
    let caller = Caller::default();
    assert!(policy.header().ends_with(r#", "standard-daily";q=3;w=86400"#), "{}", policy.header());
    let used: Vec<u64> = (0..3).map(|_| caller.ask(&policy, GET, 0).used_today).collect();
    assert_eq!(used, [0, 1, 2]);
    let decided = caller.ask(&policy, SET, 0);
    assert_eq!(decided.over, Some((Limit::Daily, Duration::from_secs(43_200))));
    assert_eq!(
        (decided.levels.rates[0].unwrap().remaining, decided.levels.rates[1].unwrap().remaining),
        (37, 10),
        "it costs nothing"
    );
    assert!(level(&policy, &decided.levels).ends_with(r#""standard-daily";r=0;t=43200"#));
    assert_eq!(caller.ask(&policy, GET, 43_199 * SECOND).over, Some((Limit::Daily, Duration::from_secs(1))));
    assert_eq!(caller.ask(&policy, GET, 43_200 * SECOND).over, None);
}

#[test]
fn a_request_over_what_may_be_under_way_is_to_come_again_in_a_second() {
    let policy = Policy::new(Arc::new(Tier { in_flight: Some(2), ..tier("standard") }));
    let caller = Caller::default();
    let ask = |in_flight| {
        caller.0.decide(&policy, LimitQuery { operation: GET, in_flight, now: Tick(0) }, DecidedBy::ALONE, || NOON)
    };
    assert_eq!(ask(1).over, None);
    let decided = ask(2);
    assert_eq!(decided.over, Some((Limit::InFlight, Duration::from_secs(1))));
    assert_eq!(decided.levels.rates[0].unwrap().remaining, 39, "it costs nothing");
}

#[test]
fn a_candidate_is_decided_on_the_same_requests_and_refuses_nothing() {
    let policy = Policy::new(Arc::new(Tier { candidate: Some(rate(1, 2)), ..tier("standard") }));
    let caller = Caller::default();
    let over: Vec<bool> = (0..4)
        .map(|_| caller.ask(&policy, GET, 0))
        .map(|d| {
            assert_eq!(d.over, None);
            d.over_candidate
        })
        .collect();
    assert_eq!(over, [false, false, true, true]);
    assert_eq!(policy.over_limit().over_candidate.load(Ordering::Relaxed), 2);
}

#[test]
fn a_wait_is_long_enough_for_every_budget() {
    // The main rate gives a request in ten seconds, the write rate one in a fifth of a second.
    let main = Rate { period_ns: 10 * SECOND, burst: NonZeroU32::MIN };
    let (policy, caller) = (policy(main, Some(rate(5, 1))), Caller::default());
    assert_eq!(caller.ask(&policy, SET, 0).over, None);
    assert_eq!(caller.ask(&policy, SET, 0).over, Some((Limit::WriteRate, Duration::from_secs(10))));
}

#[test]
fn a_refusal_by_the_main_rate_costs_the_write_rate_nothing() {
    let (policy, caller) = (policy(rate(20, 3), Some(rate(5, 10))), Caller::default());
    assert_eq!(caller.let_in(&policy, SET, 0), 3);
    let decided = caller.ask(&policy, SET, 0);
    assert_eq!(decided.over.unwrap().0, Limit::Rate);
    assert_eq!(decided.levels.rates[1].unwrap().remaining, 7);
}

#[test]
fn a_set_points_amid_a_reload_is_charged_by_the_write_rate_once() {
    let (old, new, caller) =
        (policy(rate(20, 40), Some(rate(1, 9))), policy(rate(30, 50), Some(rate(2, 9))), Caller::default());
    assert_eq!(caller.ask(&old, SET, 0).levels.rates[1].unwrap().remaining, 8);
    caller.0.change_tier(new.tier(), Tick(0));
    // One that came before the reload, and one after it.
    assert_eq!(caller.ask(&old, SET, 0).levels.rates[1].unwrap().remaining, 7);
    assert_eq!(caller.ask(&new, SET, 0).levels.rates[1].unwrap().remaining, 6);
    assert_eq!(caller.ask(&new, GET, 0).levels.rates[0].unwrap().remaining, 36);
}

#[test]
fn a_key_that_has_asked_gets_no_larger_write_burst_by_a_change_and_one_that_has_not_does() {
    let (small, large) = (policy(rate(20, 40), Some(rate(1, 1))), policy(rate(20, 40), Some(rate(1, 30))));
    for (asked, left) in [(Some(GET), 1), (Some(SET), 0), (None, 30)] {
        let caller = Caller::default();
        assert!(asked.is_none_or(|operation| caller.ask(&small, operation, 0).over.is_none()));
        assert_eq!(caller.let_in(&large, SET, 0), left, "{asked:?}");
    }
}

/// What Redis says where everything is there but for so much.
fn told(admitted: bool, owed_ms: u64, count: u64) -> Told {
    Told { admitted, at: Tick(0), unix: NOON, owed: owed(Limit::Rate, owed_ms), day: DayCount { day: 0, count } }
}

fn owed(of: Limit, ms: u64) -> PerRate<Duration> {
    Limit::RATES.map(|limit| Duration::from_millis(if limit == of { ms } else { 0 }))
}

#[test]
fn what_redis_says_counts_and_is_told_to_the_caller() {
    let policy = Policy::new(Arc::new(Tier { daily: Some(9), ..tier("standard") }));
    let caller = Caller::default();
    let by = |told| DecidedBy { nodes: 2, told: Some(told) };
    let decided = caller.decide(&policy, GET, 0, by(told(true, 500, 4)));
    assert_eq!((decided.over, decided.used_today), (None, 3));
    assert!(level(&policy, &decided.levels).starts_with(r#""standard";r=30;t=1, "standard-daily";r=5;"#));
    assert_eq!(caller.0.day().unsaved(), Some(DayCount { day: 0, count: 1 }), "this node let one of them in");
    let decided = caller.decide(&policy, GET, 0, by(told(false, 2000, 4)));
    assert_eq!(decided.over, Some((Limit::Rate, Duration::from_millis(50))));
    let writes = Told { owed: owed(Limit::WriteRate, 2000), ..told(false, 0, 4) };
    let decided = caller.decide(&policy, SET, 0, by(writes));
    assert_eq!(decided.over, Some((Limit::WriteRate, Duration::from_millis(200))));
    let decided = caller.decide(&policy, GET, 0, by(told(false, 0, 9)));
    assert_eq!(decided.over, Some((Limit::Daily, Duration::from_secs(43_200))));
}

#[test]
fn a_share_begins_full_and_is_charged_down_to_empty_with_all_that_is_let_in() {
    let (policy, caller) = (policy(rate(20, 40), None), Caller::default());
    let alone = DecidedBy { nodes: 2, told: None };
    let let_in = |tick| (0..100).filter(|_| caller.decide(&policy, GET, tick, alone).over.is_none()).count();
    assert_eq!(let_in(0), 20);
    // What Redis grants is charged here, too, so that a flood gains no more than the share.
    for n in 0..30 {
        let tick = SECOND + n * SECOND / 30;
        caller.decide(&policy, GET, tick, DecidedBy { told: Some(told(true, 0, 0)), ..alone });
    }
    assert_eq!((let_in(2 * SECOND), let_in(4 * SECOND)), (0, 20));
    // A key at a quarter of its limit is refused for no lost reply, whichever of them is lost.
    let caller = Caller::default();
    for n in 0..400u64 {
        let told = (!n.is_multiple_of(3)).then(|| told(true, 0, 0));
        assert_eq!(caller.decide(&policy, GET, n * SECOND / 5, DecidedBy { told, ..alone }).over, None, "{n}");
    }
    // A share lets at least one request in.
    let one_of_fifty = DecidedBy { nodes: 50, told: None };
    let caller = Caller::default();
    let let_in = (0..100).filter(|_| caller.decide(&policy, GET, 0, one_of_fifty).over.is_none()).count();
    assert_eq!(let_in, 1);
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
        steps in proptest::collection::vec(any_step(), 1..40), is_told in any::<bool>(), nodes in 1u32..4,
    ) {
        let (caller, first) = (Caller::default(), policy(rate(20, 40), Some(rate(5, 10))));
        let (mut in_force, mut now) = (policy(rate(20, 40), Some(rate(5, 10))), 0);
        let mut all = LetIn { times: Vec::new(), rates: vec![in_force.tier().main] };
        let mut writes = LetIn::default();
        writes.rates.extend(in_force.tier().write);
        for (gap, step) in steps {
            now += gap;
            match step {
                Step::Ask(operation, times) => for n in 0..times {
                    // Some are on their way since before the first change.
                    let policy = if n % 3 == 0 { &first } else { &in_force };
                    if caller.decide(policy, operation, now, DecidedBy { nodes, told: None }).over.is_none() {
                        all.times.push(now);
                        // Where writes have no limit of their own, they count for none.
                        if operation == SET && policy.tier().write.is_some() {
                            writes.times.push(now);
                        }
                    }
                },
                Step::Limits(main, write) => {
                    let next = policy(main, write);
                    // A reload does this at once, or else the next request does.
                    if is_told {
                        caller.0.change_tier(next.tier(), Tick(now));
                    }
                    in_force = next;
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
