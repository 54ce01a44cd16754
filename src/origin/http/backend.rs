//! A backend is one address of an upstream, with its idle connections, its number of requests in flight and its health.
//! A prepared upstream is what all addresses of one upstream have in common: it makes the requests as they are sent. Of
//! what the caller sent, only the key, the two parameters and the trace context go into a request.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderValue, Uri};
use parking_lot::{Mutex, MutexGuard};

use super::connection::{ConnectError, Connection, IdleConnections, connect};
use super::health::{HealthRecord, HealthState};
use super::tls::{ServerTls, Tls};
use crate::config::Upstream;
use crate::origin::OriginRequest;
use crate::telemetry::metrics::{Histogram, latency};
use crate::wire::Operation;

/// An upstream of the configuration with all that its requests need, made once.
#[derive(Debug, PartialEq)]
pub(super) struct PreparedUpstream {
    pub(super) settings: Upstream,
    /// What a request of each operation begins with, up to the key.
    beginnings: Vec<(Operation, String)>,
    tls: Option<ServerTls>,
}

impl PreparedUpstream {
    pub(super) fn new(upstream: &Upstream, tls: Option<&Tls>) -> Result<Self, String> {
        let host = &upstream.host;
        HeaderValue::from_str(host).map_err(|e| format!("origin.host: {e}"))?;
        let beginning = |operation: Operation| {
            let target = format!("{}/{}", upstream.path, operation.name());
            let target: Uri = target.parse().map_err(|e| format!("origin.upstreams: {target}: {e}"))?;
            Ok((
                operation,
                format!(
                    "POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-www-form-urlencoded\r\n\
                     Authorization: "
                ),
            ))
        };
        let beginnings = Operation::ALL.into_iter().map(beginning).collect::<Result<_, String>>()?;
        let tls = match (&upstream.server_name, tls) {
            (Some(name), Some(tls)) => Some(tls.for_name(name)?),
            (Some(_), None) => return Err(format!("origin.upstreams: {upstream}: TLS was not set up")),
            (None, _) => None,
        };
        Ok(PreparedUpstream { settings: upstream.clone(), beginnings, tls })
    }

    /// Writes the request as it is sent to this upstream, whose parent id is `span_id` if it belongs to a trace.
    pub(super) fn write_request(&self, origin_request: &OriginRequest<'_>, span_id: u64, out: &mut Vec<u8>) {
        let operation = origin_request.request.operation;
        let beginning = self.beginnings.iter().find(|(o, _)| *o == operation).map(|(_, beginning)| beginning.as_str());
        let trace = origin_request.forwarded.trace.for_origin(span_id);
        let (parent, state) = trace.as_ref().map_or((None, None), |(parent, state)| (Some(parent.as_bytes()), *state));
        for (name, value) in [
            (beginning.unwrap_or_default(), Some(origin_request.forwarded.authorization.0)),
            ("\r\nX-Request-Id: ", Some(origin_request.id.as_bytes())),
            ("\r\ntraceparent: ", parent),
            ("\r\ntracestate: ", state),
        ] {
            if let Some(value) = value {
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(value);
            }
        }
        let body = origin_request.request.canonical_body();
        let _ = write!(out, "\r\nContent-Length: {}\r\n\r\n{body}", body.len()); // a `Vec` takes everything
    }

    /// Writes a health check's request. No caller's key is in it.
    pub(super) fn write_check(&self, target: &Uri, out: &mut Vec<u8>) {
        let host = &self.settings.host;
        let _ = write!(out, "GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: guildgate-health\r\n\r\n");
    }
}

/// One address of an upstream.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) upstream: Arc<PreparedUpstream>,
    pub(super) address: SocketAddr,
    /// The upstream as the operator wrote it, and the address where it has a name.
    pub(super) name: Arc<str>,
    pub(super) idle: IdleConnections,
    in_flight: AtomicUsize,
    /// How long it took to answer; failures are counted apart.
    pub(super) answers: Histogram,
    pub(super) failures: AtomicU64,
    /// Changed by [`super::backends::Backends`] alone, which knows whether another backend is available. Locked for
    /// some nanoseconds.
    record: Mutex<HealthRecord>,
    /// A health check or a probe of it is running.
    is_checked_now: AtomicBool,
}

impl Backend {
    pub(super) fn new(upstream: Arc<PreparedUpstream>, address: SocketAddr) -> Self {
        let settings = &upstream.settings;
        let name = match settings.address() {
            Some(_) => settings.to_string(),
            None => format!("{settings} ({address})"),
        };
        Backend {
            upstream,
            address,
            name: name.into(),
            idle: IdleConnections::default(),
            in_flight: AtomicUsize::new(0),
            answers: latency(),
            failures: AtomicU64::new(0),
            record: Mutex::default(),
            is_checked_now: AtomicBool::new(false),
        }
    }

    pub(super) async fn connect(&self, timeout: Duration) -> Result<Connection, ConnectError> {
        connect(self.address, self.upstream.tls.as_ref(), timeout).await
    }

    pub(super) fn health(&self) -> HealthState {
        self.record.lock().state()
    }

    pub(super) fn record(&self) -> MutexGuard<'_, HealthRecord> {
        self.record.lock()
    }

    /// Whether a check of it may begin: none is running. It is running until [`Backend::end_check`].
    pub(super) fn begin_check(&self) -> bool {
        !self.is_checked_now.swap(true, Ordering::Relaxed)
    }

    pub(super) fn end_check(&self) {
        self.is_checked_now.store(false, Ordering::Relaxed);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts one request more as in flight, until what is returned is dropped.
    pub(super) fn count_request(&self) -> CountedRequest<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        CountedRequest(&self.in_flight)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// One request in flight, counted until dropped.
#[derive(Debug)]
pub(super) struct CountedRequest<'c>(&'c AtomicUsize);

impl Drop for CountedRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
