//! A backend is one address of an upstream, with its idle connections, its number of requests in flight and its health.
//! It makes the requests as they are sent: of what the caller sent, only the key, the two parameters and the trace
//! context go into one.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use super::connection::{Connection, IdleConnections};
use super::health::Health;
use super::tls::Tls;
use crate::config::Upstream;
use crate::origin::OriginRequest;
use crate::telemetry::metrics::{Histogram, latency};

#[derive(Debug)]
pub(super) struct Backend {
    pub(super) upstream: Upstream,
    pub(super) address: SocketAddr,
    /// The upstream as the operator wrote it, and the address where it has a name.
    pub(super) name: Arc<str>,
    pub(super) idle: IdleConnections,
    pub(super) in_flight: AtomicUsize,
    /// How long it took to answer; failures are counted apart.
    pub(super) answers: Histogram,
    pub(super) failures: AtomicU64,
    pub(super) health: Health,
}

/// The backends of an upstream at these addresses; those that are there already are used again, with all they hold.
pub(super) fn backends_at(there: &[Arc<Backend>], upstream: &Upstream, addresses: &[SocketAddr]) -> Vec<Arc<Backend>> {
    let backend = |address: &SocketAddr| {
        let same = there.iter().find(|b| b.address == *address && b.upstream == *upstream);
        same.cloned().unwrap_or_else(|| Arc::new(Backend::new(upstream, *address)))
    };
    addresses.iter().map(backend).collect()
}

impl Backend {
    fn new(upstream: &Upstream, address: SocketAddr) -> Self {
        let name = match upstream.address() {
            Some(_) => upstream.to_string(),
            None => format!("{upstream} ({address})"),
        };
        let (idle, in_flight, failures, health) = Default::default();
        let (upstream, name, answers) = (upstream.clone(), name.into(), latency());
        Backend { upstream, address, name, idle, in_flight, answers, failures, health }
    }

    pub(super) async fn connect(&self, tls: Option<&Tls>, timeout: Duration) -> io::Result<Connection> {
        let tls = tls.zip(self.upstream.server_name.as_deref());
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "connecting took longer than origin.connect_timeout");
        tokio::time::timeout(timeout, Connection::open(self.address, tls)).await.map_err(late)?
    }

    /// Writes the request as it is sent to this upstream, whose parent id is `span_id` if it belongs to a trace.
    pub(super) fn write_request(&self, origin_request: &OriginRequest<'_>, span_id: u64, out: &mut Vec<u8>) {
        let trace = origin_request.trace.for_origin(span_id);
        let (parent, state) = trace.as_ref().map_or((None, None), |(parent, state)| (Some(parent.as_bytes()), *state));
        for text in ["POST ", &self.upstream.path, "/", origin_request.request.operation.name(), " HTTP/1.1"] {
            out.extend_from_slice(text.as_bytes());
        }
        for (name, value) in [
            ("\r\nHost: ", Some(self.upstream.host.as_bytes())),
            ("\r\nContent-Type: ", Some("application/x-www-form-urlencoded".as_bytes())),
            ("\r\nAuthorization: ", Some(origin_request.authorization)),
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
    pub(super) fn write_check(&self, path: &str, out: &mut Vec<u8>) {
        let host = &self.upstream.host;
        let _ = write!(out, "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: guildgate-health\r\n\r\n");
    }

    /// Its health has changed, which is logged once.
    pub(super) fn went_down(&self, why: &str) {
        self.idle.clear();
        tracing::warn!(upstream = %self.name, why, "an upstream is out; requests go to others while one is up");
    }

    /// It has answered, after this time.
    pub(super) fn answered(&self, took: Duration) {
        self.answers.observe(took.as_secs_f64());
        if self.health.answered() {
            self.came_back("it answered");
        }
    }

    pub(super) fn came_back(&self, why: &str) {
        tracing::info!(upstream = %self.name, why, "an upstream is back");
    }
}
