//! The rules of a request: which key may ask, how often, and what may be answered from memory. No socket and no type of
//! Pingora is here, so the rules run in tests with a clock that the test moves.

mod admit;
mod alone;
mod caller;
mod key_source;
mod metrics;
mod order;
mod pass;
mod peers;
mod purge;
mod read;
mod reload;
mod reply;
mod state;
mod store_follower;
mod usage;
mod usage_flush;
mod write;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use alone::Writes;
use arc_swap::{ArcSwap, Guard};
use futures_util::FutureExt;
use parking_lot::Mutex;
use read::Asked;

use crate::cache::Answers;
use crate::clock::{Clock, Tick, nanos};
use crate::cluster::bus::Bus;
use crate::cluster::{Freshness, MAX_AGE, Node, SharedLimits};
use crate::keys::InFlightSlot;
use crate::model::KeyId;
use crate::telemetry::{AccessLine, Observer};
use crate::wire::{Fault, RequestId, TraceContext};

pub use key_source::{KeyFile, KeyList, KeySource};
pub use pass::Passage;
pub use peers::Peers;
pub use reload::NewKeys;
pub use reply::{CacheStatus, Reply, RequestDetails};
pub use state::State;
pub use usage::KeyUsage;

/// The gateway: the rules, and what they depend on.
#[derive(Debug)]
pub struct Gateway {
    clock: Clock,
    state: ArcSwap<State>,
    /// Held while the next state is made.
    swap: Mutex<()>,
    cache: Answers<Asked>,
    /// Where the outcomes of requests go.
    pub observer: Observer,
    /// The limits that other nodes have a part in.
    shared_limits: Option<Arc<SharedLimits>>,
    /// The other nodes before the same HTTP origin, which tell each other of their writes over the bus.
    peers: Option<Peers>,
    /// How old what is known of the store is.
    feed: Freshness,
    /// Keys whose day was given back, by the change feed, and is not yet here.
    day_resets: Mutex<Vec<KeyId>>,
    /// Held while the use of keys is written to the store.
    usage_lock: tokio::sync::Mutex<()>,
    writes: Arc<Writes>,
}

/// A request's header, as far as the rules need it. The edge has checked its framing.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it holds the key in the clear")]
pub struct RequestHeader<'h> {
    pub method: &'h [u8],
    /// Without the query.
    pub path: &'h [u8],
    /// The whole value.
    pub authorization: Option<&'h [u8]>,
    pub content_type: Option<&'h [u8]>,
    pub content_encoded: bool,
    pub content_length: Option<u64>,
    /// Passed on to an HTTP origin.
    pub trace: TraceContext<'h>,
    /// When its turn on its connection began. Until it waits it is judged by this time, so that a hit reads no clock.
    pub began: Tick,
    /// The address that is charged if the key is not valid: the peer, or the one that a trusted proxy names.
    pub client: IpAddr,
    pub id: RequestId,
    /// The request's slot among those of its key in flight. If the caller resets its stream, the slot is released, and
    /// the request is still polled to its end: others may wait for its answer.
    pub in_flight: &'h InFlightSlot,
}

/// A request's body, read only once the key is accepted (contract section 1, "Order").
pub trait Body: Send {
    /// The whole body; 14, 16 or 17 if it is too large, malformed or too slow.
    fn whole(&mut self) -> impl Future<Output = Result<&[u8], Fault>> + Send;
}

impl Gateway {
    pub fn new(clock: Clock, state: State, observer: Observer) -> Self {
        Gateway {
            clock,
            cache: Answers::new(state.config.cache.max_size),
            state: ArcSwap::from_pointee(state),
            swap: Mutex::default(),
            observer,
            shared_limits: None,
            peers: None,
            feed: Freshness::not_followed(),
            day_resets: Mutex::default(),
            usage_lock: tokio::sync::Mutex::default(),
            writes: Arc::default(),
        }
    }

    /// The same gateway beside other nodes.
    pub fn beside(self, limits: Option<Arc<SharedLimits>>, bus: Option<Bus>) -> Self {
        Gateway { shared_limits: limits, peers: bus.map(Peers::new), ..self }
    }

    /// The limits that other nodes have a part in, and what is known of those nodes.
    pub fn shared_limits(&self) -> Option<&Arc<SharedLimits>> {
        self.shared_limits.as_ref()
    }

    /// What the other nodes are told of this one.
    pub fn describe(&self, node: Node) -> Node {
        let (state, now) = (self.state(), self.now());
        let writes_age = match self.peers_of(&state) {
            Some(peers) => peers.bus.freshness().age(now),
            None => self.feed_age(&state, now),
        };
        let keys_hash = match &state.keys {
            KeySource::File(file) => Some(file.hash.to_string()),
            KeySource::Store(_) | KeySource::Origin(_) => None,
        };
        let (writes_age_ms, cut_off) = (writes_age.map(|age| nanos(age) / 1_000_000), writes_age >= Some(MAX_AGE));
        Node { config_hash: state.config.hash.to_string(), keys_hash, writes_age_ms, cut_off, ..node }
    }

    /// What is to be said while the limits cannot be shared, or the other nodes are not heard. The node is ready all the
    /// same.
    pub fn redis_fault(&self) -> Option<&'static str> {
        if !self.hears_peers(&self.state(), self.now()) {
            return Some(
                "the other nodes are not heard over Redis: setPoints is refused with 21 and every read goes to the origin \
                 until they are",
            );
        }
        let is_away = self.shared_limits.as_ref().is_some_and(|limits| limits.is_away());
        is_away.then_some("Redis is away: each node limits by cluster.when_away until it answers")
    }

    /// The state in force, under which a request that begins now is answered.
    pub fn state(&self) -> Guard<Arc<State>> {
        self.state.load()
    }

    /// The state in force, to be kept while something is waited for.
    fn state_full(&self) -> Arc<State> {
        self.state.load_full()
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    fn now(&self) -> Tick {
        self.clock.now()
    }

    /// Answers one request. Up to a fresh hit this allocates nothing, and waits only for limits that other nodes have a part
    /// in. A panic is answered with 20 and concerns this caller only: guards release what the request held.
    pub async fn handle<B: Body>(
        self: &Arc<Self>,
        state: &Arc<State>,
        header: &RequestHeader<'_>,
        body: &mut B,
    ) -> Reply {
        let mut details = RequestDetails { id: header.id, ..RequestDetails::default() };
        let answer = AssertUnwindSafe(self.answer(state, header, body, &mut details)).catch_unwind().await;
        details.panicked = answer.is_err();
        if details.is_stranger {
            details.hide_key();
        }
        {
            details.span = header.trace.span.cloned();
        }
        Reply { answer: answer.unwrap_or(Err(Fault::NoUsableAnswer)), details }
    }

    /// The trace and the parent of a request's span, if it is sampled.
    pub fn sample(&self, trace: &TraceContext<'_>) -> Option<crate::wire::TraceParent> {
        self.observer.sample(trace)
    }

    /// Reports the end of a request, which was answered at this moment.
    pub fn finished(&self, details: &RequestDetails, answered: Instant, outcome: AccessLine) {
        if let Some(key) = &details.key {
            key.budget.activity.count(outcome.code, details.over_limit, self.clock.at(answered));
        }
        self.observer.finished(outcome);
    }
}
