//! The source of truth behind the cache: the built-in backend, which reads the store, or an HTTP origin with its
//! upstreams (contract section 1, "Built-in backend" and "Upstream"). It may use the store and the configuration; it
//! knows nothing of the cache, of keys' limits, or of callers' connections.

mod builtin;
mod http;

use std::fmt;
use std::sync::Arc;

use crate::clock::Tick;
use crate::model::GuildId;
use crate::telemetry::UpstreamUse;
use crate::telemetry::metrics::DescriptorEncoder;
use crate::wire::{Fault, Request, RequestId, TraceContext};

pub use builtin::Builtin;
pub use http::{Attempts, Failed, HttpOrigin, IDLE_FOR, Owner, Target, Tls};

/// A request as it is sent to an origin.
#[expect(missing_debug_implementations, reason = "it has a key")]
pub struct OriginRequest<'r> {
    pub request: Request,
    /// When the origin is asked.
    pub asked: Tick,
    /// The guild of the key, for the built-in backend. An HTTP origin finds it by the key.
    pub guild: &'r GuildId,
    /// The key as it came.
    pub authorization: &'r [u8],
    pub trace: TraceContext<'r>,
    pub id: RequestId,
}

/// Permission to send one request to the origin, until it is dropped. An HTTP origin has `max_in_flight` of them. The
/// built-in backend has no limit, since no key can make it slow for that key alone.
pub type Permit = Option<http::Permit>;

/// One address of an upstream, as people look at it.
#[derive(Clone, Debug)]
pub struct UpstreamStatus {
    pub name: String,
    /// Its requests are answered, and its health checks pass. One that is not up is asked only where no other is.
    pub is_up: bool,
    /// Since when it is out, in Unix seconds, and why.
    pub out: Option<(i64, String)>,
    pub in_flight: u64,
    /// Requests that it did not answer, or not whole, since the start.
    pub failures: u64,
}

/// The one source of truth behind the cache.
#[derive(Debug)]
pub enum Origin {
    Builtin(Builtin),
    Http(Arc<HttpOrigin>),
}

impl Origin {
    pub fn is_builtin(&self) -> bool {
        matches!(self, Origin::Builtin(_))
    }

    /// Waits for a permit for a request of `owner`, for at most `origin.queue_timeout`; then 21.
    pub async fn permit(&self, owner: Owner, id: RequestId) -> Result<Permit, Fault> {
        match self {
            Origin::Builtin(_) => Ok(None),
            Origin::Http(http) => http.permit(owner, id).await.map(Some),
        }
    }

    /// The upstreams of an HTTP origin; the built-in backend has none.
    pub fn upstreams(&self) -> Vec<UpstreamStatus> {
        if let Origin::Http(http) = self { http.upstreams() } else { Vec::new() }
    }

    /// Places of an HTTP origin that are in use, requests that wait for one, and how many places there are.
    pub fn places(&self) -> Option<[usize; 3]> {
        match self {
            Origin::Builtin(_) => None,
            Origin::Http(http) => Some(http.places()),
        }
    }

    /// What is known of the origin, for `/metrics`.
    pub fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        match self {
            Origin::Builtin(builtin) => builtin.encode_metrics(encoder),
            Origin::Http(http) => http.encode_metrics(encoder),
        }
    }

    /// Makes this the origin in force, after a reload: it has as many permits as its settings say.
    pub fn activate(&self) {
        if let Origin::Http(http) = self {
            http.activate();
        }
    }

    /// Sends the request once (an HTTP origin sends a read that was not answered up to `origin.retries` times more).
    /// The answer is whole and usable, or the fault says what it was instead. Of an HTTP origin, the upstream that was asked
    /// last is returned too.
    pub async fn send(
        &self,
        _permit: &Permit,
        request: &OriginRequest<'_>,
    ) -> (Result<Arc<str>, Fault>, Option<UpstreamUse>) {
        match self {
            Origin::Builtin(builtin) => (builtin.answer(request).await, None),
            Origin::Http(http) => http.send(request).await,
        }
    }
}

/// Whether, after this fault, a setPoints may have happened all the same (contract section 1:
/// "After 22, or 20 to setPoints, it may have happened").
pub fn may_have_happened(fault: Fault) -> bool {
    matches!(fault, Fault::NoUsableAnswer | Fault::OriginTimeout)
}
