//! A server that has no slot left for another connection. What a node cannot do without comes first then: its
//! feed, its lists of keys, its writer. The pool gives up what it has at rest for them, and makes do with the rest.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How soon one that found no slot asks again: a server starts a process for each that asks.
pub(super) const AGAIN: Duration = Duration::from_millis(50);

/// How long the pool makes no connection after one that the node cannot do without found no slot: longer than
/// that takes to ask again and to be let in.
const FOR_OTHERS: Duration = Duration::from_millis(500);

/// And after one of its own found none. Those that it has come back sooner.
const FOR_ITSELF: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Slots {
    /// Until when connections that come back to the pool are ended.
    wanted: Mutex<Option<Instant>>,
    /// Until when the pool makes none.
    none: Mutex<Option<Instant>>,
    /// What the pool has at rest is wanted.
    give: Notify,
}

impl Slots {
    /// What the node cannot do without found no slot.
    pub(super) fn are_wanted(&self) {
        let until = Some(Instant::now() + FOR_OTHERS);
        *self.wanted.lock() = until;
        *self.none.lock() = until;
        self.give.notify_one();
    }

    /// Until the pool is to give up what it has at rest.
    pub(super) async fn wanted_from_the_pool(&self) {
        self.give.notified().await;
    }

    /// Whether a connection that comes back to the pool is to be ended.
    pub(super) fn is_one_wanted(&self) -> bool {
        is_before(*self.wanted.lock())
    }

    /// The pool found no slot.
    pub(super) fn had_none(&self) {
        let mut none = self.none.lock();
        *none = (*none).max(Some(Instant::now() + FOR_ITSELF));
    }

    /// Whether the pool may ask for another one.
    pub(super) fn may_ask(&self) -> bool {
        !is_before(*self.none.lock())
    }
}

fn is_before(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() < until)
}
