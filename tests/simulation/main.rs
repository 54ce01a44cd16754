//! The shared limits on virtual time: the very code of the nodes (`cluster::escrow`) and the very script (`turn.lua`, in
//! the Lua that Redis has), with delays, lost and repeated messages, crashes, pauses, reloads, clocks that are ten
//! minutes apart or jump, and a fail-over that loses the last moments. Each run is made by its seed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod outage;
mod redis;
mod rename;
mod world;

use std::num::NonZeroU32;
use std::sync::Arc;

use guildgate::clock::Tick;
use guildgate::cluster::escrow::{Answer, Bucket, Escrow, LocalCounts, NextTurn, SCRIPT, Turn};
use guildgate::config::{Rate, Tier};

use self::redis::Redis;
use self::world::{Faults, Outcome, Run, run};

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 24 * 3600 * SECOND;

fn rate(per_second: u64, burst: u32) -> Rate {
    Rate { period_ns: SECOND / per_second, burst: NonZeroU32::new(burst).unwrap() }
}

fn tier(per_second: u64, burst: u32) -> Tier {
    Tier { name: "t".into(), main: rate(per_second, burst), write: None, daily: None, in_flight: None, candidate: None }
}

/// A node without faults, and nothing in flight.
#[derive(Debug)]
struct NoCounts {
    is_proven: bool,
}

impl LocalCounts for NoCounts {
    fn in_flight(&self) -> u32 {
        0
    }

    fn day(&self, now: Tick) -> (i64, u64) {
        ((now.0 / DAY).cast_signed(), 0)
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn is_proven(&self) -> bool {
        self.is_proven
    }
}

/// How many of so many requests at once are admitted under this tier.
fn admitted(escrow: &Escrow, redis: &Redis, tier: &Arc<Tier>, now: Tick, requests: usize) -> usize {
    escrow.use_tier(tier, now);
    let is_admitted = |_: &usize| {
        if escrow.spend(Bucket::Main, now).is_none() {
            escrow.need([Bucket::Main].into_iter());
            let turn = escrow.begin_turn(None, now).unwrap();
            let numbers = redis.eval(now.0 / 1000, &turn.arguments("0", 10_000_000));
            escrow.finish_turn(&turn, &Answer::read(&numbers).unwrap(), now);
            return escrow.spend(Bucket::Main, now).is_some();
        }
        true
    };
    (0..requests).filter(is_admitted).count()
}

/// A tier of a seed's own, with every kind of limit.
fn any_tier(random: &mut fastrand::Rng) -> Tier {
    let pick = |random: &mut fastrand::Rng, of: &[u64]| of[random.usize(..of.len())];
    let burst = pick(random, &[1, 2, 5, 40]) as u32;
    let per_second = pick(random, &[1, 3, 20, 50]);
    let write = random.bool().then(|| rate(1 + per_second / 3, 1 + burst / 2));
    let daily = random.bool().then(|| random.u64(20..200));
    let in_flight = random.bool().then(|| random.u32(1..6));
    Tier { write, daily, in_flight, ..tier(per_second, burst) }
}

fn seeds(count: u64, faults: impl Fn(&mut fastrand::Rng) -> Faults) -> impl Iterator<Item = (u64, Outcome)> {
    (0..count).map(move |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let tier = any_tier(&mut random);
        let faults = faults(&mut random);
        (seed, run(Run { seed, tier, faults, script: SCRIPT.to_owned() }))
    })
}

/// Lost and repeated messages, which cost nothing but time.
fn lossy(random: &mut fastrand::Rng) -> Faults {
    Faults { is_slow: true, loss: [0.0, 0.1, 0.5][random.usize(..3)], repeated: 0.2, ..Faults::default() }
}

#[test]
fn no_window_admits_more_than_burst_and_rate_allow_whatever_fails() {
    let mut admitted = 0;
    for (seed, outcome) in seeds(2000, |random| Faults {
        crashes: random.usize(..4),
        pauses: random.usize(..4),
        clock_back: random.bool(),
        reloads: random.usize(..3),
        leaves: random.usize(..4),
        ..lossy(random)
    }) {
        assert!(outcome.excess <= 0.0, "seed {seed}: {outcome:?}");
        assert!(outcome.over_day <= 0, "seed {seed}: {outcome:?}");
        admitted += outcome.admitted;
    }
    assert!(admitted > 50_000, "{admitted} requests were admitted: this tests nothing");
}

#[test]
fn of_a_key_that_has_asked_a_lower_burst_is_there_at_once() {
    let (escrow, redis) =
        (Escrow::new(Arc::new(tier(1, 40)), Box::new(NoCounts { is_proven: true }), Tick(0)), Redis::new(SCRIPT));
    let now = Tick(1000 * SECOND);
    assert_eq!(admitted(&escrow, &redis, &Arc::new(tier(1, 40)), now, 5), 5);
    assert_eq!(admitted(&escrow, &redis, &Arc::new(tier(1, 3)), now, 10), 3);
    // What a node has spent before it hears of a higher burst stays spent.
    assert_eq!(admitted(&escrow, &redis, &Arc::new(tier(1, 40)), now, 10), 0);
}

#[test]
fn a_burst_that_is_lowered_and_raised_again_is_not_full_however_long_redis_hears_nothing_meanwhile() {
    let (large, small) = (Arc::new(tier(1, 600)), Arc::new(tier(1, 1)));
    let (escrow, redis) =
        (Escrow::new(large.clone(), Box::new(NoCounts { is_proven: true }), Tick(0)), Redis::new(SCRIPT));
    for (begin, requests) in [(1000, 5), (5000, 600)] {
        let at = |seconds: u64| Tick((begin + seconds) * SECOND);
        assert_eq!(admitted(&escrow, &redis, &large, at(0), requests), requests);
        assert_eq!(admitted(&escrow, &redis, &small, at(1), 2), 1);
        // The small burst has come back, and the time for which a key is kept after that has passed.
        assert_eq!(admitted(&escrow, &redis, &large, at(200), 700), 1, "as many as the small one had");
        assert_eq!(admitted(&escrow, &redis, &large, at(2000), 700), 600);
    }
}

#[test]
fn two_nodes_that_each_hold_the_token_which_the_other_one_lacks_do_not_refuse_for_ever() {
    let tier = Arc::new(Tier { daily: Some(1), ..tier(1, 1) });
    let begin = Tick(1000 * SECOND);
    let redis = Redis::new(SCRIPT);
    let fetch = |escrow: &Escrow, name: &str, needed: &[Bucket], now: Tick| {
        escrow.need(needed.iter().copied());
        take_turn(escrow, &redis, name, &escrow.begin_turn(None, now).unwrap(), now);
    };
    let nodes = [("1", Bucket::Main), ("2", Bucket::Daily)].map(|(name, held)| {
        let escrow = Escrow::new(tier.clone(), Box::new(NoCounts { is_proven: true }), begin);
        fetch(&escrow, name, &[held], begin);
        assert_eq!(escrow.lease(held).tokens(begin), 1);
        (name, escrow)
    });
    // A request every 60 ms at each node, which is longer than "nothing is free" is remembered.
    let is_admitted = (0..20).any(|round| {
        let now = Tick(begin.0 + round * 60_000_000);
        nodes.iter().any(|(name, escrow)| {
            // In the order of the decision, up to the first one of which nothing is free.
            let lacks = |bucket: &Bucket| escrow.lease(*bucket).tokens(now) == 0;
            let missing = || [Bucket::Daily, Bucket::Main].into_iter().filter(lacks);
            for _ in 0..2 {
                let needed: Vec<Bucket> =
                    missing().take_while(|bucket| !escrow.lease(*bucket).is_denied(now)).collect();
                if !needed.is_empty() {
                    fetch(escrow, name, &needed, now);
                }
            }
            missing().next().is_none()
        })
    });
    assert!(is_admitted, "{nodes:?}");
}

/// Takes a turn that was begun before.
fn take_turn(escrow: &Escrow, redis: &Redis, name: &str, turn: &Turn, now: Tick) {
    let numbers = redis.eval(now.0 / 1000, &turn.arguments(name, 60_000_000));
    escrow.finish_turn(turn, &Answer::read(&numbers).unwrap(), now);
}

/// How many requests of a day of three a node admits, after another one used up the day and a third one gave back that
/// of `given_back_at`.
fn admitted_after_a_day_is_given_back(given_back_at: Tick, now: Tick) -> u32 {
    let redis = Redis::new(SCRIPT);
    let tier = Arc::new(Tier { daily: Some(3), ..tier(1, 40) });
    let node = |at| Escrow::new(tier.clone(), Box::new(NoCounts { is_proven: true }), at);
    let requests = |escrow: &Escrow, name: &str| {
        let is_admitted = |_: &u32| {
            escrow.need([Bucket::Daily].into_iter());
            take_turn(escrow, &redis, name, &escrow.begin_turn(None, now).unwrap(), now);
            escrow.spend(Bucket::Daily, now).is_some()
        };
        let admitted = (0..5).filter(is_admitted).count() as u32;
        escrow.need([Bucket::Daily].into_iter());
        take_turn(escrow, &redis, name, &escrow.begin_turn(None, now).unwrap(), now);
        admitted
    };
    let gives_back = node(given_back_at);
    assert_eq!(gives_back.reset_day(given_back_at), NextTurn::Now);
    let late = gives_back.begin_turn(None, given_back_at).unwrap();
    assert_eq!(requests(&node(now), "1"), 3);
    take_turn(&gives_back, &redis, "2", &late, now);
    requests(&node(now), "3")
}

#[test]
fn a_day_that_is_given_back_while_redis_is_away_is_that_day_only() {
    let midnight = 20 * DAY;
    let (before, after) = (Tick(midnight - 10 * SECOND), Tick(midnight + 10 * SECOND));
    assert_eq!(admitted_after_a_day_is_given_back(after, Tick(after.0 + 60 * SECOND)), 3);
    assert_eq!(admitted_after_a_day_is_given_back(before, after), 0);
}

#[test]
fn what_is_counted_of_a_day_is_kept_for_a_day_only_of_a_key_that_was_proven() {
    let (redis, midnight) = (Redis::new(SCRIPT), DAY);
    let tier = Arc::new(Tier { daily: Some(100), ..tier(1, 1) });
    for (seconds, is_proven, is_kept) in [(1000, false, false), (1001, true, true), (1002, false, true)] {
        let now = Tick(seconds * SECOND);
        let escrow = Escrow::new(tier.clone(), Box::new(NoCounts { is_proven }), now);
        assert_eq!(admitted(&escrow, &redis, &tier, now, 1), 1, "{seconds}");
        let until = redis.expires_us() * 1000;
        assert!(if is_kept { until == midnight } else { until < now.0 + 120 * SECOND }, "{seconds}: {until}");
    }
}

#[test]
fn what_is_counted_is_what_was_admitted_where_messages_are_lost() {
    let faults =
        |random: &mut fastrand::Rng| Faults { lease: 60, is_noon: true, leaves: random.usize(..4), ..lossy(random) };
    for (seed, outcome) in seeds(500, faults) {
        assert!(outcome.excess <= 0.0 && outcome.over_in_flight <= 0, "seed {seed}: {outcome:?}");
        assert_eq!(outcome.miscounted, 0, "seed {seed}: {outcome:?}");
    }
}

#[test]
fn a_fail_over_lets_in_at_most_what_it_lost() {
    let mut over = 0;
    for (seed, outcome) in seeds(500, |random| Faults { fail_over: Some(random.u64(..SECOND)), ..lossy(random) }) {
        assert!(outcome.excess <= outcome.granted_in_lost_time, "seed {seed}: {outcome:?}");
        over += u32::from(outcome.excess > 0.0);
    }
    assert!(over < 125, "{over} of 500 fail-overs let in more than the limit");
}

#[test]
fn a_clock_that_jumps_ahead_lets_in_at_most_what_would_come_back_meanwhile() {
    for (seed, outcome) in seeds(300, |random| Faults { clock_ahead: Some(random.u64(..5 * SECOND)), ..lossy(random) })
    {
        assert!(outcome.excess <= outcome.granted_in_lost_time, "seed {seed}: {outcome:?}");
    }
}

#[test]
fn a_day_begins_by_redis_clock_whatever_the_clocks_of_the_nodes_say() {
    for seed in 0..50 {
        let faults = Faults { steady: Some(2.0), ..Faults::default() };
        let tier = Tier { daily: Some(100), ..tier(50, 40) };
        let outcome = run(Run { seed, tier, faults, script: SCRIPT.to_owned() });
        assert!(outcome.over_day <= 0 && outcome.least_day >= 90, "seed {seed}: {outcome:?}");
    }
}

#[test]
fn a_clock_that_is_set_back_over_a_midnight_gives_nobody_a_second_day() {
    for seed in 0..500 {
        let faults = Faults { steady: Some(2.0), clock_back: true, crashes: 1, ..Faults::default() };
        let tier = Tier { daily: Some(30), ..tier(20, 40) };
        let outcome = run(Run { seed, tier, faults, script: SCRIPT.to_owned() });
        assert!(outcome.over_day <= 0, "seed {seed}: {outcome:?}");
    }
}

/// Whether any seed shows that something is wrong.
fn is_caught(faults: Faults, script: &str) -> bool {
    (0..200).any(|seed| {
        let tier = Tier { daily: Some(100_000), ..tier(20, 5) };
        let outcome = run(Run { seed, tier, faults: faults.clone(), script: script.to_owned() });
        outcome.excess > 0.0 || outcome.miscounted != 0
    })
}

fn planted(what: &str, by: &str) -> String {
    assert!(SCRIPT.contains(what), "the script has no {what:?}");
    SCRIPT.replace(what, by)
}

#[test]
fn a_script_that_charges_a_repeated_turn_again_is_caught() {
    let faults = Faults { loss: 0.3, lease: 60, is_noon: true, ..Faults::default() };
    assert!(!is_caught(faults.clone(), SCRIPT));
    assert!(is_caught(faults, &planted("own ~= nil and own[1] >= sequence", "false")));
}

#[test]
fn a_node_that_spends_after_its_lease_is_caught() {
    let faults = Faults { pauses: 3, ..Faults::default() };
    assert!((0..200).all(|seed| {
        run(Run { seed, tier: tier(20, 5), faults: faults.clone(), script: SCRIPT.to_owned() }).excess <= 0.0
    }));
    assert!(is_caught(faults, &planted("math.max(0, own[at + 1] - now)", "(own[at + 1] - now) * 20")));
}

#[test]
fn a_script_that_grants_what_others_hold_is_caught() {
    let script = planted("/ period) - held_by_others - held", "/ period) - held");
    assert!(is_caught(Faults::default(), &script));
}

#[test]
fn a_script_that_forgets_what_a_crashed_node_held_is_caught() {
    let script =
        planted("level = charge(math.max(level, (ends - now) * 1000), held, capacity, period)", "level = level");
    assert!(is_caught(Faults { crashes: 3, ..Faults::default() }, &script));
}

#[test]
fn below_the_rate_nobody_is_refused() {
    for seed in 0..50 {
        let faults = Faults { steady: Some(0.85), ..Faults::default() };
        let outcome = run(Run { seed, tier: tier(20, 40), faults, script: SCRIPT.to_owned() });
        assert_eq!(outcome.refused, 0, "seed {seed}: {outcome:?}");
        assert!(outcome.turns < outcome.admitted, "seed {seed}: {outcome:?}");
    }
}

#[test]
fn below_the_rate_a_node_that_is_about_to_end_refuses_nobody_either() {
    for seed in 0..50 {
        let faults = Faults { steady: Some(0.85), leaves: 10, ..Faults::default() };
        let tier = Tier { in_flight: Some(100), daily: Some(100_000), ..tier(50, 40) };
        let outcome = run(Run { seed, tier, faults, script: SCRIPT.to_owned() });
        assert_eq!(outcome.refused, 0, "seed {seed}: {outcome:?}");
    }
}

#[test]
fn a_flood_is_admitted_at_nearly_the_whole_rate() {
    for seed in 0..20 {
        let faults = Faults { steady: Some(20.0), ..Faults::default() };
        let outcome = run(Run { seed, tier: tier(50, 40), faults, script: SCRIPT.to_owned() });
        let possible = 40.0 + 50.0 * world::SECONDS as f64;
        assert!(outcome.admitted as f64 >= 0.95 * possible, "seed {seed}: {possible}, {outcome:?}");
        assert!(outcome.turns * 8 < outcome.admitted + outcome.refused, "seed {seed}: {outcome:?}");
    }
}
