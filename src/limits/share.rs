//! A key's share of the limits that several nodes have together (`[cluster]`): which of its counts Redis is told, under which
//! id, and what passes to another key that gets its id or one of its secrets.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;

use super::day::{DayCount, day_of};
use super::{Policy, Usage};
use crate::clock::Tick;
use crate::cluster::escrow::{self, LocalCounts};
use crate::cluster::{KeyEscrow, Needs, RedisClock, SharedLimits};
use crate::config::Tier;
use crate::model::KeyId;

/// A key's share of the limits that several nodes have together, under one id.
#[derive(Debug)]
pub struct Share {
    pub(super) escrow: Arc<KeyEscrow>,
    /// What is counted of the key counts for this escrow while this lives.
    _in_force: Arc<()>,
}

impl Share {
    fn new(shared: &SharedLimits, id: &KeyId, policy: &Policy, usage: &Arc<Usage>) -> Arc<Self> {
        let in_force = Arc::new(());
        let counts = CountsOfUsage {
            usage: Arc::downgrade(usage),
            is_in_force: Arc::downgrade(&in_force),
            redis_clock: shared.redis_clock.clone(),
        };
        Arc::new(Share { escrow: shared.key(id, policy.tier(), Box::new(counts)), _in_force: in_force })
    }
}

/// What a node counts by itself of a key.
#[derive(Debug)]
struct CountsOfUsage {
    usage: Weak<Usage>,
    is_in_force: Weak<()>,
    redis_clock: Arc<RedisClock>,
}

impl CountsOfUsage {
    fn usage(&self) -> Option<Arc<Usage>> {
        self.usage.upgrade().filter(|_| self.is_alive())
    }
}

impl LocalCounts for CountsOfUsage {
    fn in_flight(&self) -> u32 {
        self.usage().map_or(0, |usage| usage.in_flight())
    }

    fn day(&self, now: Tick) -> (i64, u64) {
        let unix = self.redis_clock.unix(now);
        let none = DayCount { day: day_of(unix), count: 0 };
        let DayCount { day, count } = self.usage().map_or(none, |usage| usage.day.count(unix));
        (day, count)
    }

    fn is_alive(&self) -> bool {
        self.is_in_force.strong_count() > 0
    }

    fn is_proven(&self) -> bool {
        self.usage().is_some_and(|usage| usage.is_proven())
    }
}

/// The escrow of the key of this usage.
pub fn escrow_of(shared: &SharedLimits, id: &KeyId, policy: &Policy, usage: &Arc<Usage>) -> Arc<KeyEscrow> {
    let share = usage.share.get_or_init(|| ArcSwap::new(Share::new(shared, id, policy, usage)));
    share.load().escrow.clone()
}

/// What a key has used up of the shared limits at one moment, as far as this node knows.
#[derive(Debug)]
pub struct SharedUsedUp {
    limits: Arc<SharedLimits>,
    used_up: escrow::UsedUp,
}

/// The escrow of a key whose limits are shared, and whose it is.
fn shared(usage: &Usage) -> Option<(Arc<KeyEscrow>, Arc<SharedLimits>)> {
    let key = usage.escrow()?;
    let limits = key.limits()?;
    Some((key, limits))
}

/// The same if it is not the one under this id.
fn under_another_id(usage: &Usage, id: &KeyId) -> Option<(Arc<KeyEscrow>, Arc<SharedLimits>)> {
    shared(usage).filter(|(key, limits)| !limits.is_of(key, id))
}

/// Whether the key of this usage has shared limits, and not under this id.
pub fn is_shared_under_another_id(usage: &Usage, id: &KeyId) -> bool {
    under_another_id(usage, id).is_some()
}

/// What the key of this usage has used up of shared limits, unless it has this id already. What it held is not spent any more.
pub fn shared_used_up(usage: &Usage, id: &KeyId) -> Option<SharedUsedUp> {
    let (key, limits) = under_another_id(usage, id)?;
    let used_up = key.escrow.used_up();
    // Since it left this id, the key that got it has told what it owed.
    let used_up = if limits.has_left(&key, id) { used_up.told() } else { used_up };
    Some(SharedUsedUp { limits, used_up })
}

/// Another key takes this id of a key that is not listed any more, and with it what Redis knows under it; what this one has
/// used up stays what it is now. Returns what is to be called once the other key is charged.
pub fn leave_shared_id<'k>(
    (usage, tier): (&'k Usage, &'k Arc<Tier>),
    id: &'k KeyId,
    (taker, policy): (&'k Arc<Usage>, &'k Policy),
) -> Option<impl FnOnce() + 'k> {
    let (key, limits) = shared(usage).filter(|(key, limits)| limits.is_of(key, id))?;
    let used_up = key.escrow.used_up();
    Some(move || {
        escrow_of(&limits, id, policy, taker); // keeps what this node has not told under the id
        let (escrow, in_force) = (limits.unlisted(&key, tier, &used_up), Arc::new(()));
        if let Some(share) = usage.share.get() {
            share.store(Arc::new(Share { escrow, _in_force: in_force }));
        }
    })
}

/// The key of this usage has this id from now on, and no more is left of its shared limits than another key has, which had
/// its id or one of its secrets before. Whatever that used up, Redis is told at once under the new id.
pub fn charge_shared_as(usage: &Arc<Usage>, id: &KeyId, policy: &Policy, other: &SharedUsedUp) {
    let SharedUsedUp { limits, used_up } = other;
    match usage.escrow().filter(|own| limits.is_of(own, id)) {
        Some(own) => own.charge_as(used_up),
        None => {
            let share = Share::new(limits, id, policy, usage);
            share.escrow.charge_as(used_up);
            usage.share.get_or_init(|| ArcSwap::new(share.clone())).store(share);
        }
    }
}

/// The key of this usage has other limits from `now` on: the other nodes learn at once of its requests in flight, for which no
/// places are set aside where those are not limited.
pub fn share_in_flight(usage: &Usage, policy: &Policy, now: Tick) {
    if usage.in_flight() > 0
        && policy.tier().in_flight.is_some()
        && let Some((key, limits)) = shared(usage)
        && key.escrow.use_tier(policy.tier(), now)
    {
        limits.ask(&key, Needs::default());
    }
}
