//! A key that gets another id is another key to Redis: each node that was asked with it tells there what it knows.

use std::sync::Arc;

use guildgate::clock::Tick;
use guildgate::cluster::escrow::{Answer, Bucket, Escrow, SCRIPT};
use guildgate::config::Tier;

use crate::redis::Redis;
use crate::world::excess;
use crate::{NoCounts, SECOND, tier};

const LEASE_US: u64 = 2_000_000;

/// The nodes of a key under one of its ids.
struct Named {
    redis: Redis,
    tier: Arc<Tier>,
    nodes: Vec<Escrow>,
}

impl Named {
    fn new(tier: Tier, nodes: usize, now: u64, script: &str) -> Self {
        let tier = Arc::new(tier);
        let node = |_| Escrow::new(tier.clone(), Box::new(NoCounts { is_proven: true }), Tick(now));
        Named { redis: Redis::new(script), nodes: (0..nodes).map(node).collect(), tier }
    }

    fn turn(&self, node: usize, now: u64) {
        let turn = self.nodes[node].begin_turn(None, Tick(now)).unwrap();
        let numbers = self.redis.eval(now / 1000, &turn.arguments(&format!("{node:x}"), LEASE_US));
        self.nodes[node].finish_turn(&turn, &Answer::read(&numbers).unwrap(), Tick(now));
    }

    fn admits(&self, node: usize, now: u64) -> bool {
        let spends = || self.nodes[node].spend(Bucket::Main, Tick(now)).is_some();
        self.nodes[node].use_tier(&self.tier, Tick(now));
        if !spends() {
            self.nodes[node].need([Bucket::Main].into_iter());
            self.turn(node, now);
            return spends();
        }
        true
    }
}

/// The worst window, as requests over burst + rate * T. Nodes that were not asked before are asked after it, too.
fn run(seed: u64, script: &str) -> f64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let (nodes, burst) = (random.usize(2..5), random.u32(4..41));
    let mut rates = [[1, 3, 20][random.usize(..3)]; 2];
    if random.bool() {
        rates[1] = [1, 3, 20][random.usize(..3)];
    }
    let (mut now, mut admitted) = (3600 * SECOND, Vec::new());
    let before = Named::new(tier(rates[0], burst), nodes, now, script);
    let asked = random.usize(1..=nodes);
    let mut requests = |named: &Named, asked: usize, now: &mut u64| {
        let (length, most) = (random.u64(1..3 * SECOND), [1, 5, 300][random.usize(..3)]);
        let mut times: Vec<u64> = (0..most).map(|_| *now + random.u64(..length)).collect();
        times.sort_unstable();
        for at in times {
            if named.admits(random.usize(..asked), at) {
                admitted.push(at);
            }
        }
        *now += length;
    };
    requests(&before, asked, &mut now);
    // What several nodes have spent in the last quarter of a second may be counted once, as the pages say.
    (0..asked).filter(|_| asked > 1).for_each(|node| before.turn(node, now));
    let after = Named::new(tier(rates[1], burst), nodes, now, script);
    for (node, escrow) in before.nodes.iter().enumerate().take(asked) {
        after.nodes[node].charge_as(&escrow.used_up(), Tick(now));
        after.turn(node, now);
    }
    requests(&after, nodes, &mut now);
    excess(&admitted, (u64::from(burst), SECOND / rates[0].max(rates[1])))
}

#[test]
fn no_window_admits_more_than_burst_and_rate_allow_where_a_key_gets_another_id() {
    for seed in 0..1000 {
        let excess = run(seed, SCRIPT);
        assert!(excess <= 0.0, "seed {seed}: {excess}");
    }
}

#[test]
fn a_script_that_takes_no_notice_of_what_nodes_know_is_caught() {
    let ignores = SCRIPT.replace("if is_rate and known_at > 0 then", "if false then");
    assert!(ignores != SCRIPT && (0..1000).any(|seed| run(seed, &ignores) > 0.0));
}
