//! What the gateway returns for one request: the text or the fault, and what was found on the way to it. The network
//! side makes header fields and the access log's line from it, so it contains everything that either needs, and never
//! the key itself or a body (guarantee 9).

use std::sync::Arc;
use std::time::Duration;

use crate::keys::Key;
use crate::limits::BucketLevels;
use crate::model::Limit;
use crate::telemetry::{CacheUse, UpstreamUse};
use crate::wire::{Fault, Operation, RequestId};

/// The answer to one request.
#[derive(Debug)]
pub struct Reply {
    pub answer: Result<Arc<str>, Fault>,
    pub details: RequestDetails,
}

/// What was found out about a request, as far as it came.
#[derive(Debug, Default)]
pub struct RequestDetails {
    pub id: RequestId,
    pub operation: Option<Operation>,
    pub key: Option<Arc<Key>>,
    pub levels: Option<BucketLevels>,
    /// The limit that the request was over, whether or not it was refused for that (`limits.shadow`).
    pub over_limit: Option<Limit>,
    /// The request was over the limit of its address, likewise.
    pub over_strangers: bool,
    /// The request was over its tier's candidate limit, which refuses nothing.
    pub over_candidate: bool,
    /// The origin has neither proven nor refused the key, which is not told.
    pub is_stranger: bool,
    /// The request is admitted but for its limits, which wait for Redis.
    pub awaits_limits: bool,
    pub cache: Option<CacheStatus>,
    /// The upstream that was asked for this request; `None` for the built-in backend.
    pub upstream: Option<UpstreamUse>,
    /// The request panicked: nothing more should be read from its connection.
    pub panicked: bool,
    /// The span of a sampled request.
    pub span: Option<Arc<crate::wire::RequestSpan>>,
}

impl RequestDetails {
    /// Tells nothing of the key: the caller has not proven it.
    pub(super) fn hide_key(&mut self) {
        (self.key, self.levels, self.over_limit, self.over_candidate) = (None, None, None, false);
    }
}

/// How the cache was used for an answer (RFC 9211; contract section 1, "Headers on answers").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheStatus {
    Hit {
        ttl: Duration,
        age: Duration,
    },
    /// A stale answer, while the origin is asked for a new one.
    WhileRevalidating {
        age: Duration,
    },
    /// A stale answer, because the origin failed.
    IfError {
        age: Duration,
    },
    /// The origin was asked; `stale`: the cache had an answer that was too old.
    Forwarded {
        stale: bool,
        stored: bool,
    },
    /// The request waited for the answer to another caller.
    Collapsed,
    /// A write, which always goes to the origin.
    Method,
    /// The request was refused before the cache was looked up.
    Refused,
    /// The request is no operation and is passed on.
    Bypass,
}

impl CacheStatus {
    /// The status of a request that is refused between its scope and the operation itself.
    pub(super) fn before(operation: Operation) -> Self {
        match operation {
            Operation::Pass | Operation::PassWrite => CacheStatus::Bypass,
            _ if operation.is_write() => CacheStatus::Method,
            _ => CacheStatus::Refused,
        }
    }

    /// The same without times, for the access log and the metrics.
    pub fn kind(self) -> CacheUse {
        match self {
            CacheStatus::Hit { .. } => CacheUse::Hit,
            CacheStatus::WhileRevalidating { .. } => CacheUse::StaleWhileRevalidate,
            CacheStatus::IfError { .. } => CacheUse::StaleIfError,
            CacheStatus::Forwarded { stale: true, .. } => CacheUse::Stale,
            CacheStatus::Forwarded { stale: false, .. } => CacheUse::Miss,
            CacheStatus::Collapsed => CacheUse::Collapsed,
            CacheStatus::Method => CacheUse::Write,
            CacheStatus::Refused => CacheUse::Refused,
            CacheStatus::Bypass => CacheUse::Bypass,
        }
    }
}
