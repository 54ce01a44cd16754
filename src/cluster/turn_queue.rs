//! Which keys have a turn now, and which later: keys are queued by requests and by the ends of turns, and taken by `turns`.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::escrow::{Escrow, NextTurn, UsedUp};
use super::shared_limits::SharedLimits;
use crate::clock::Tick;

/// The escrow of one key, with its name in Redis.
#[derive(Debug)]
pub struct KeyEscrow {
    pub(super) name: Arc<str>,
    /// Whether the key has that name still. If not, it is not listed any more, and Redis is asked and told nothing of it.
    pub(super) is_listed: bool,
    pub escrow: Escrow,
    /// A turn has ended.
    pub(super) ended: Notify,
    /// They have this key while it is queued.
    limits: Weak<SharedLimits>,
}

/// The keys that are to have a turn.
#[derive(Debug, Default)]
pub(super) struct TurnQueue {
    pub(super) keys: Mutex<QueuedKeys>,
    /// A key was queued.
    pub(super) wake: Notify,
}

/// The keys whose turn it is, and when others come.
#[derive(Debug, Default)]
pub(super) struct QueuedKeys {
    pub(super) now: Vec<Arc<KeyEscrow>>,
    pub(super) later: BinaryHeap<Reverse<Planned>>,
}

#[derive(Debug)]
pub(super) struct Planned {
    pub(super) at: Tick,
    pub(super) key: Arc<KeyEscrow>,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl KeyEscrow {
    pub(super) fn new(name: Arc<str>, is_listed: bool, escrow: Escrow, limits: Weak<SharedLimits>) -> Arc<Self> {
        Arc::new(KeyEscrow { name, is_listed, escrow, ended: Notify::new(), limits })
    }

    /// The limits of all keys; `None`: nobody takes turns any more.
    pub fn limits(&self) -> Option<Arc<SharedLimits>> {
        self.limits.upgrade()
    }

    /// Does what [`Escrow`] asks for.
    pub fn follow(self: &Arc<Self>, next: NextTurn) {
        if next == NextTurn::AsBefore {
            return;
        }
        let Some(limits) = self.limits() else { return };
        let mut keys = limits.queue.keys.lock();
        match next {
            NextTurn::AsBefore => {}
            NextTurn::Now => keys.now.push(self.clone()),
            NextTurn::At(at) => keys.later.push(Reverse(Planned { at, key: self.clone() })),
        }
        drop(keys);
        limits.queue.wake.notify_one();
    }

    /// The key is known to be valid from now on.
    pub fn proven(self: &Arc<Self>) {
        self.follow(self.escrow.proven());
    }

    /// A request of this key has ended: if this node is about to end, its place is given back at once.
    pub fn request_ended(self: &Arc<Self>) {
        if self.escrow.is_leaving()
            && let Some(limits) = self.limits()
        {
            self.follow(self.escrow.ask_to_give_place_back(limits.clock.now()));
        }
    }

    /// Charges this key with what another one has used up: no more is left than that one has.
    pub fn charge_as(self: &Arc<Self>, other: &UsedUp) {
        if let Some(limits) = self.limits() {
            self.follow(self.escrow.charge_as(other, limits.clock.now()));
        }
    }
}
