//! The upstreams of requests that are passed on as they came: the same backends as operations', with their choice, health and
//! retries. The edge sends them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::backend::Backend;
use super::connection::{Failed, open};
use super::{Attempt, HttpOrigin, Tried};
use crate::config::Upstreams;
use crate::telemetry::UpstreamUse;
use crate::wire::RequestId;

/// The attempts of one request.
#[derive(Debug)]
pub struct Attempts {
    origin: Arc<HttpOrigin>,
    id: RequestId,
    list: Arc<Vec<Arc<Backend>>>,
    tried: Tried,
    /// The last one, and the number of its backend in the list.
    current: Option<(usize, Attempt)>,
}

/// Where an attempt is made.
#[derive(Clone, Debug)]
pub struct Target {
    origin: Arc<HttpOrigin>,
    backend: Arc<Backend>,
}

impl Attempts {
    /// `is_repeatable`: the request may be sent again where it was not answered.
    pub fn new(origin: Arc<HttpOrigin>, id: RequestId, is_repeatable: bool) -> Self {
        let retries = if is_repeatable { origin.settings.retries } else { 0 };
        let list = origin.backends.load_full();
        Attempts { list, origin, id, tried: Tried { retries, ..Tried::default() }, current: None }
    }

    /// Begins the next attempt; `None`: there is no backend left.
    pub fn begin(&mut self) -> Option<Target> {
        let now = self.origin.clock.now();
        let at = self.origin.choose(&self.list, &self.tried, now)?;
        let backend = self.list[at].clone();
        self.current = Some((at, Attempt::new(&backend, now)));
        Some(Target { origin: self.origin.clone(), backend })
    }

    /// The header of an answer has come.
    pub fn answered(&self) {
        if let Some((_, attempt)) = &self.current {
            attempt.backend.answered(self.origin.clock.now().since(attempt.began));
        }
    }

    /// The attempt has failed; `was_idle`: on a connection that was kept. Whether there may be another one.
    pub fn failed(&mut self, failed: &Failed, was_idle: bool) -> bool {
        let Some((at, attempt)) = &mut self.current else { return false };
        self.origin.failed(self.id, attempt, failed, failed.counts(was_idle));
        self.tried.may_go_on(*at, failed)
    }

    /// The last attempt, for the access log.
    pub fn upstream_use(&self) -> Option<UpstreamUse> {
        self.current.as_ref().map(|(_, attempt)| attempt.upstream_use(self.origin.clock.now()))
    }
}

impl Target {
    pub fn address(&self) -> SocketAddr {
        self.backend.address
    }

    pub fn has_tls(&self) -> bool {
        self.backend.upstream.server_name.is_some()
    }

    pub fn settings(&self) -> &Upstreams {
        &self.origin.settings
    }

    /// The `Host` that operations send to it.
    pub fn host(&self) -> &str {
        &self.backend.upstream.host
    }

    /// Opens a connection with TLS.
    pub async fn connect(&self) -> io::Result<Box<TlsStream<TcpStream>>> {
        let name = self.backend.upstream.server_name.as_deref();
        let opened = open(self.backend.address, self.origin.tls.as_ref().zip(name));
        match timeout(self.origin.settings.connect_timeout, opened).await?? {
            Either::Right(stream) => Ok(stream),
            Either::Left(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
