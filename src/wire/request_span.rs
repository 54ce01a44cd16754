//! The OpenTelemetry span of a sampled request, and the spans of the requests to an HTTP origin that it causes. It holds
//! what the end of a request does not know by itself; `telemetry` exports it. Only in builds with the feature `otlp`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::{Operation, TraceParent};
use crate::clock::Tick;

/// The span of one request of a caller, of kind SERVER.
#[derive(Debug)]
pub struct RequestSpan {
    /// The trace, and the caller's span; the `parent_id` 0 is none: the trace begins here.
    pub trace: TraceParent,
    pub id: u64,
    pub method: &'static str,
    pub scheme: &'static str,
    /// `None`: it names no operation.
    pub path: Option<Box<str>>,
    pub started: SystemTime,
    /// The same moment on the process's own clock.
    pub arrived: Tick,
    /// A few at most: retries and unreachable upstreams are bounded.
    pub origin_spans: Mutex<Vec<OriginSpan>>,
}

/// The span of one attempt at one upstream, of kind CLIENT.
#[derive(Clone, Debug)]
pub struct OriginSpan {
    /// The parent id that the upstream was sent.
    pub id: u64,
    pub operation: Operation,
    /// As the metrics name it.
    pub upstream: Arc<str>,
    pub address: SocketAddr,
    pub began: Tick,
    /// `None`: it has not ended.
    pub ended: Option<Tick>,
    /// `None`: no answer began.
    pub status: Option<u16>,
}

impl RequestSpan {
    /// An attempt begins, and so the one before it, if any, has ended.
    pub fn begin_attempt(&self, attempt: OriginSpan) {
        self.end_attempt(attempt.began);
        self.origin_spans.lock().push(attempt);
    }

    /// The upstream of the current attempt has begun an answer.
    pub fn answered(&self, status: u16) {
        if let Some(attempt) = self.origin_spans.lock().last_mut() {
            attempt.status = Some(status);
        }
    }

    /// The current attempt, if any, has ended.
    pub fn end_attempt(&self, now: Tick) {
        if let Some(attempt) = self.origin_spans.lock().last_mut() {
            attempt.ended.get_or_insert(now);
        }
    }
}
