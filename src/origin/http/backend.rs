//! A backend is one address of an upstream, with its idle connections, its number of requests in flight and its health.
//! A prepared upstream is what all addresses of one upstream have in common: it makes the requests as they are sent. Of
//! what the caller sent, only the key, the two parameters and the trace context go into a request.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request as HttpRequest, Uri};
use parking_lot::{Mutex, MutexGuard};

use super::connection::{ConnectError, Connection, IdleConnections, connect};
use super::health::{HealthRecord, HealthState};
use super::tls::{ServerTls, Tls};
use crate::config::Upstream;
use crate::origin::OriginRequest;
use crate::telemetry::metrics::{Histogram, latency};
use crate::wire::{Fault, Operation};

/// An upstream of the configuration with all that its requests need, made once.
#[derive(Debug, PartialEq)]
pub(super) struct PreparedUpstream {
    pub(super) settings: Upstream,
    host: HeaderValue,
    /// The targets, `{upstream path}/NAME`.
    targets: Vec<(Operation, Uri)>,
    tls: Option<ServerTls>,
}

impl PreparedUpstream {
    pub(super) fn new(upstream: &Upstream, tls: Option<&Tls>) -> Result<Self, String> {
        let host = HeaderValue::from_str(&upstream.host).map_err(|e| format!("origin.host: {e}"))?;
        let target = |operation: Operation| {
            let uri = format!("{}/{}", upstream.path, operation.name());
            uri.parse().map(|uri| (operation, uri)).map_err(|e| format!("origin.upstreams: {uri}: {e}"))
        };
        let targets = Operation::ALL.into_iter().map(target).collect::<Result<_, _>>()?;
        let tls = match (&upstream.server_name, tls) {
            (Some(name), Some(tls)) => Some(tls.for_name(name)?),
            (Some(_), None) => return Err(format!("origin.upstreams: {upstream}: TLS was not set up")),
            (None, _) => None,
        };
        Ok(PreparedUpstream { settings: upstream.clone(), host, targets, tls })
    }

    /// The request as it is sent to this upstream, whose parent id is `span_id` if it belongs to a trace.
    pub(super) fn request(
        &self,
        origin_request: &OriginRequest<'_>,
        span_id: u64,
    ) -> Result<HttpRequest<Full<Bytes>>, Fault> {
        let operation = origin_request.request.operation();
        let target = self.targets.iter().find(|(o, _)| *o == operation).map(|(_, uri)| uri.clone());
        // The edge refuses values that cannot be a header's. Should one come, no key is like it.
        let header = |bytes| HeaderValue::from_bytes(bytes).map_err(|_| Fault::IncorrectKey);
        let mut authorization = header(origin_request.forwarded.authorization.0)?;
        authorization.set_sensitive(true);
        let body = Full::new(Bytes::from(origin_request.request.canonical_body()));
        let mut request = HttpRequest::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = target.unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(AUTHORIZATION, authorization);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        headers.insert("x-request-id", header(origin_request.id.as_bytes())?);
        if let Some((parent, state)) = origin_request.forwarded.trace.for_origin(span_id) {
            headers.insert("traceparent", header(parent.as_bytes())?);
            if let Some(state) = state {
                headers.insert("tracestate", header(state)?);
            }
        }
        Ok(request)
    }

    /// A health check's request. No caller's key is in it.
    pub(super) fn check_request(&self, target: &Uri) -> HttpRequest<Full<Bytes>> {
        let mut request = HttpRequest::new(Full::new(Bytes::new()));
        *request.uri_mut() = target.clone();
        request.headers_mut().insert(HOST, self.host.clone());
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("guildgate-health"));
        request
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
