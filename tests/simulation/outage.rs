//! Outages: all nodes lose Redis together, each gives the key its part of the limit from a bucket of its own that begins
//! empty (`cluster.when_away` "share"), and tells Redis what it admitted when that is back.

use std::num::NonZeroU32;
use std::sync::Arc;

use guildgate::clock::Tick;
use guildgate::cluster::escrow::{Answer, Bucket, Escrow, SCRIPT};
use guildgate::config::{Rate, Tier};
use guildgate::limits::{Bucket as LocalBucket, Verdict};

use crate::redis::Redis;
use crate::world::excess;
use crate::{NoCounts, SECOND, admitted, tier};

const LEASE_US: u64 = 2_000_000;

/// Longer than a lease, and than a node that had no request since keeps tokens in store: so the turns by which nodes tell
/// grant nothing before all have told.
const SHORTEST: u64 = 7 * SECOND / 2;

struct World {
    random: fastrand::Rng,
    redis: Redis,
    tier: Arc<Tier>,
    nodes: Vec<(Escrow, LocalBucket)>,
    now: u64,
    admitted: Vec<u64>,
}

impl World {
    fn new(seed: u64, script: &str) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let burst = random.u32(4..41);
        let tier = Arc::new(tier([1, 3, 20][random.usize(..3)], burst));
        let now = 3600 * SECOND;
        let node = |_| {
            let escrow = Escrow::new(tier.clone(), Box::new(NoCounts { is_proven: true }), Tick(now));
            (escrow, LocalBucket::default())
        };
        let nodes = (0..random.usize(2..5)).map(node).collect();
        World { random, redis: Redis::new(script), tier, nodes, now, admitted: Vec::new() }
    }

    fn turn(&mut self, node: usize) {
        let escrow = &self.nodes[node].0;
        let turn = escrow.begin_turn(None, Tick(self.now)).unwrap();
        let numbers = self.redis.eval(self.now / 1000, &turn.arguments(&format!("{node:x}"), LEASE_US));
        escrow.finish_turn(&turn, &Answer::read(&numbers).unwrap(), Tick(self.now));
    }

    /// Whether a request at this node is admitted; `away_since`: without Redis.
    fn is_admitted(&mut self, node: usize, away_since: Option<u64>) -> bool {
        let now = Tick(self.now);
        let nodes = self.nodes.len() as u32;
        let (escrow, local) = &self.nodes[node];
        let lease = escrow.lease(Bucket::Main);
        if escrow.spend(Bucket::Main, now).is_some() {
            return true;
        }
        if lease.is_denied(now) {
            return false;
        }
        let Some(since) = away_since else {
            escrow.need([Bucket::Main].into_iter());
            self.turn(node);
            return self.nodes[node].0.spend(Bucket::Main, now).is_some();
        };
        let Some(burst) = NonZeroU32::new(self.tier.main.burst.get() / nodes) else { return false };
        let share = Rate { period_ns: self.tier.main.period_ns * u64::from(nodes), burst };
        local.empty_at(share, Tick(since));
        let is_admitted = local.decide(share, now) == Verdict::Admitted;
        if is_admitted {
            escrow.owe(Bucket::Main, local.full_at(), share, self.tier.main);
        }
        is_admitted
    }

    /// Requests come for so long, at random: few, as many as the rate allows, or many.
    fn requests(&mut self, length: u64, away: bool) {
        let (begin, most) = (self.now, [1, 5, 300][self.random.usize(..3)]);
        let mut times: Vec<u64> = (0..most).map(|_| begin + self.random.u64(..length)).collect();
        times.sort_unstable();
        for at in times {
            self.now = at;
            let node = self.random.usize(..self.nodes.len());
            if self.is_admitted(node, away.then_some(begin)) {
                self.admitted.push(at);
            }
        }
        self.now = begin + length;
    }

    /// The worst window, as requests over burst + rate * T.
    fn run(mut self) -> f64 {
        let refills = u64::from(self.tier.main.burst.get()) * self.tier.main.period_ns;
        for _ in 0..4 {
            let length = self.random.u64(1..2 * refills + SECOND);
            self.requests(length, false);
            let length = SHORTEST + self.random.u64(..2 * refills);
            self.requests(length, true);
            for node in 0..self.nodes.len() {
                self.nodes[node].0.unstall();
                self.turn(node);
            }
        }
        excess(&self.admitted, (u64::from(self.tier.main.burst.get()), self.tier.main.period_ns))
    }
}

#[test]
fn no_window_admits_more_than_burst_and_rate_allow_over_outages_in_which_each_node_has_its_part() {
    for seed in 0..1000 {
        let excess = World::new(seed, SCRIPT).run();
        assert!(excess <= 0.0, "seed {seed}: {excess}");
    }
}

#[test]
fn a_script_that_forgets_what_was_admitted_without_it_is_caught() {
    let forgets = SCRIPT.replace("if owed > 0 and is_rate then", "if false then");
    assert!(forgets != SCRIPT && (0..1000).any(|seed| World::new(seed, &forgets).run() > 0.0));
}

#[test]
fn what_was_admitted_without_redis_is_charged_under_the_limit_of_then() {
    let (large, small) = (Arc::new(tier(20, 100)), Arc::new(tier(1, 10)));
    let escrow = Escrow::new(large.clone(), Box::new(NoCounts { is_proven: true }), Tick(0));
    let (redis, now) = (Redis::new(SCRIPT), Tick(3600 * SECOND));
    assert_eq!(admitted(&escrow, &redis, &large, now, 1), 1);
    // A reload lowers the limit during an outage.
    escrow.use_tier(&small, now);
    let away = now.plus(std::time::Duration::from_secs(20));
    (0..5).for_each(|_| escrow.owe(Bucket::Main, away.plus(std::time::Duration::from_secs(5)), small.main, small.main));
    assert_eq!(admitted(&escrow, &redis, &small, away, 20), 5);
}
