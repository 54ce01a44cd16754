//! One address of an upstream, with its kept connections, its number of requests under way and its health record; and
//! what all addresses of one upstream have in common, above all the request as it is sent. Of what the caller sent,
//! only the key and the two parameters go into that request. Requests read the health state from atomics and take no
//! lock.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request as HttpRequest, Uri};
use parking_lot::Mutex;

use super::connect::{ConnectError, connect};
use super::pool::{Connection, Pool};
use super::standing::{Change, Record, Standing};
use super::tls::{Secure, Tls};
use crate::config::Upstream;
use crate::origin::Question;
use crate::wire::{Fault, Operation};

/// What all addresses of one upstream have in common, made once.
#[derive(Debug, PartialEq)]
pub(super) struct Site {
    pub(super) upstream: Upstream,
    host: HeaderValue,
    /// The targets, `{upstream path}/NAME`.
    targets: Vec<(Operation, Uri)>,
    secure: Option<Secure>,
}

impl Site {
    pub(super) fn new(upstream: &Upstream, tls: Option<&Tls>) -> Result<Self, String> {
        let host = HeaderValue::from_str(&upstream.host).map_err(|e| format!("origin.host: {e}"))?;
        let target = |operation: Operation| {
            let uri = format!("{}/{}", upstream.path, operation.name());
            uri.parse().map(|uri| (operation, uri)).map_err(|e| format!("origin.upstreams: {uri}: {e}"))
        };
        let targets = Operation::ALL.into_iter().map(target).collect::<Result<_, _>>()?;
        let secure = match (&upstream.server_name, tls) {
            (Some(name), Some(tls)) => Some(tls.to(name)?),
            (Some(_), None) => return Err(format!("origin.upstreams: {upstream}: TLS was not set up")),
            (None, _) => None,
        };
        Ok(Site { upstream: upstream.clone(), host, targets, secure })
    }

    /// The question as it is sent to this upstream.
    pub(super) fn request(&self, question: &Question<'_>) -> Result<HttpRequest<Full<Bytes>>, Fault> {
        let operation = question.request.operation();
        let target = self.targets.iter().find(|(o, _)| *o == operation).map(|(_, uri)| uri.clone());
        // The edge lets no value through that is not one for a header; if it did, nobody knows such a key.
        let header = |bytes| HeaderValue::from_bytes(bytes).map_err(|_| Fault::IncorrectKey);
        let mut authorization = header(question.authorization.0)?;
        authorization.set_sensitive(true);
        let body = Full::new(Bytes::from(question.request.canonical_body()));
        let mut request = HttpRequest::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = target.unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(AUTHORIZATION, authorization);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        headers.insert("x-request-id", header(question.id.as_bytes())?);
        Ok(request)
    }

    /// What a health check asks. No caller's key is in it.
    pub(super) fn check(&self, target: &Uri) -> HttpRequest<Full<Bytes>> {
        let mut request = HttpRequest::new(Full::new(Bytes::new()));
        *request.uri_mut() = target.clone();
        request.headers_mut().insert(HOST, self.host.clone());
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("guildgate-health"));
        request
    }
}

/// One address of an upstream: its kept connections, and how it stands.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) site: Arc<Site>,
    pub(super) address: SocketAddr,
    pub(super) pool: Pool,
    in_flight: AtomicUsize,
    /// Changed by [`super::backends::Backends`] alone, which knows whether it is the last one.
    record: Mutex<Record>,
    /// What the record says, for requests, which take no lock.
    standing: AtomicU8,
    is_clean: AtomicBool,
    /// A check or a try of it is under way.
    is_looked_at: AtomicBool,
}

impl Backend {
    pub(super) fn new(site: Arc<Site>, address: SocketAddr) -> Self {
        Backend {
            site,
            address,
            pool: Pool::default(),
            in_flight: AtomicUsize::new(0),
            record: Mutex::default(),
            standing: AtomicU8::new(Standing::In as u8),
            is_clean: AtomicBool::new(true),
            is_looked_at: AtomicBool::new(false),
        }
    }

    pub(super) async fn connect(&self, timeout: Duration) -> Result<Connection, ConnectError> {
        connect(self.address, self.site.secure.as_ref(), timeout).await
    }

    pub(super) fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Relaxed) {
            standing if standing == Standing::In as u8 => Standing::In,
            standing if standing == Standing::Trial as u8 => Standing::Trial,
            _ => Standing::Out,
        }
    }

    /// Whether an answer from it would change nothing in its record.
    pub(super) fn is_clean(&self) -> bool {
        self.is_clean.load(Ordering::Relaxed)
    }

    pub(super) fn record(&self) -> Record {
        self.record.lock().clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Record) -> Option<Change>) -> Option<Change> {
        let mut record = self.record.lock();
        let changed = change(&mut record);
        self.standing.store(record.standing() as u8, Ordering::Relaxed);
        self.is_clean.store(record.is_clean(), Ordering::Relaxed);
        changed
    }

    /// Whether nobody looked at it yet; until [`Backend::end_look`], nobody else does.
    pub(super) fn begin_look(&self) -> bool {
        !self.is_looked_at.swap(true, Ordering::Relaxed)
    }

    pub(super) fn end_look(&self) {
        self.is_looked_at.store(false, Ordering::Relaxed);
    }

    /// Requests at it now.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// One request more, until what is returned is dropped.
    pub(super) fn enter(&self) -> Here<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Here(&self.in_flight)
    }
}

/// As the operator wrote it; with the address where that is another thing.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.site.upstream)?;
        if self.site.upstream.address().is_none() {
            write!(f, " ({})", self.address)?;
        }
        Ok(())
    }
}

/// One request under way, counted until dropped.
#[derive(Debug)]
pub(super) struct Here<'c>(pub(super) &'c AtomicUsize);

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
