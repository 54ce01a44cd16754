//! One node: its side of the shared limits, and what it counts by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use guildgate::clock::Tick;
use guildgate::cluster::RedisClock;
use guildgate::cluster::escrow::{Escrow, LocalCounts};
use guildgate::config::Tier;
use guildgate::limits::{DayCount, DayCounter};

#[derive(Debug)]
struct Counts {
    in_flight: Arc<AtomicU32>,
    redis_clock: Arc<RedisClock>,
    day: Arc<DayCounter>,
}

impl LocalCounts for Counts {
    fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::SeqCst)
    }

    fn day(&self, now: Tick) -> (i64, u64) {
        let unix = self.redis_clock.unix(now);
        let DayCount { day, count } = self.day.count(unix);
        (day, count)
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn is_proven(&self) -> bool {
        true
    }
}

pub(super) struct Node {
    pub(super) incarnation: u64,
    pub(super) escrow: Escrow,
    pub(super) tier: Arc<Tier>,
    pub(super) in_flight: Arc<AtomicU32>,
    pub(super) redis_clock: Arc<RedisClock>,
    pub(super) day: Arc<DayCounter>,
    pub(super) paused_until: u64,
    pub(super) waiting: Vec<(u64, bool, u64)>,
    /// The turn that is out, by sequence.
    pub(super) out: Option<u64>,
}

impl Node {
    pub(super) fn new(incarnation: u64, tier: &Arc<Tier>, now: u64, own_clock_us: i64) -> Self {
        let (in_flight, day) = (Arc::<AtomicU32>::default(), Arc::<DayCounter>::default());
        let redis_clock = Arc::new(RedisClock::new(own_clock_us, Tick(now)));
        let counts = Counts { in_flight: in_flight.clone(), redis_clock: redis_clock.clone(), day: day.clone() };
        let escrow = Escrow::new(tier.clone(), Box::new(counts), Tick(now));
        let (tier, waiting) = (tier.clone(), Vec::new());
        Node { incarnation, escrow, tier, in_flight, redis_clock, day, paused_until: 0, waiting, out: None }
    }
}
