//! What a node does that is about to end: it gives back what it holds, so that the key finds it at other nodes and at its
//! successor.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::{Bucket, Escrow, IDLE_AFTER, NextTurn, NodeSide, Owed};
use crate::clock::Tick;

/// After how long without a request a node that is about to end gives back its tokens, also those that a turn has granted:
/// the requests that waited for them spend them within microseconds, if they have a core.
pub(super) const LEAVING_AFTER: Duration = Duration::from_millis(50);

impl Escrow {
    /// The node is about to end, or goes on after all. If it is to end, it keeps from its next turn on no place that no
    /// request needs, and tokens only while requests come.
    pub fn set_leaving(&self, is_leaving: bool, now: Tick) -> NextTurn {
        self.is_leaving.store(is_leaving, Ordering::SeqCst);
        // A request that ends now either sees that, or it is seen to have ended.
        fence(Ordering::SeqCst);
        if is_leaving { self.ask_to_give_back(now) } else { NextTurn::AsBefore }
    }

    /// After how long without a request tokens are given back.
    pub(super) fn idle_after(&self) -> Duration {
        if self.is_leaving() { LEAVING_AFTER } else { IDLE_AFTER }
    }

    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::SeqCst)
    }

    /// Whether Redis has not confirmed yet that it has back the places of requests that have ended.
    pub fn holds_free_place(&self, now: Tick) -> bool {
        let node = self.node.lock();
        node.unanswered.is_some() || self.has_free_place(&node, now)
    }

    pub(super) fn has_free_place(&self, node: &NodeSide, now: Tick) -> bool {
        self.lease(Bucket::InFlight).tokens(now) > node.in_flight()
    }

    fn has_token(&self, node: &NodeSide, now: Tick) -> bool {
        let has_token = |bucket| bucket != Bucket::InFlight && self.lease(bucket).tokens(now) > 0;
        now >= node.fresh_until && Bucket::ALL.into_iter().any(has_token)
    }

    /// The node ends: asks for a turn that gives back all that is held, places of requests that it has given up as well,
    /// if there is anything to give back or to tell.
    pub fn end(&self, now: Tick) -> NextTurn {
        {
            let mut node = self.node.lock();
            (node.has_ended, node.fresh_until) = (true, Tick(0));
        }
        self.ask_to_give_back(now)
    }

    /// Asks for a turn if there is something to give back, or that Redis does not know.
    pub(super) fn ask_to_give_back(&self, now: Tick) -> NextTurn {
        let mut node = self.node.lock();
        let holds_any = self.has_free_place(&node, now) || self.has_token(&node, now);
        let is_untold = node.unanswered.is_some() || self.has_spent() || self.owed.iter().any(Owed::is_any);
        if holds_any || is_untold { node.queue() } else { NextTurn::AsBefore }
    }

    /// A request has ended. Asks for a turn if this node is about to end, and holds a place that no request needs.
    pub fn ask_to_give_place_back(&self, now: Tick) -> NextTurn {
        if !self.is_leaving() {
            return NextTurn::AsBefore;
        }
        let mut node = self.node.lock();
        if self.has_free_place(&node, now) { node.queue() } else { NextTurn::AsBefore }
    }
}
