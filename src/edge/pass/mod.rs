//! Passes on what is no operation (contract section 1, "Everything else"), by Pingora's proxy: streaming, upgrades and the pool
//! of connections to upstreams are its own. Our readers have checked the header, and the gateway has admitted the request,
//! before Pingora gets it; `proxy_hooks` is what it asks us on the way, `http2` brings it the requests of HTTP/2 streams.

pub(super) mod http2;
mod proxy_hooks;
mod upstream;

use std::fmt;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderValue;
use pingora::apps::HttpServerApp;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::proxy::{HttpProxy, http_proxy};
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::exchange::ReceivedRequest;
use crate::config::{Config, OriginKind};
use crate::gateway::{Gateway, Passage, RequestDetails};
use crate::origin::{Attempts, Target};
use crate::wire::{Fault, may_be_operation};

use proxy_hooks::ProxyHooks;

/// Connections to upstreams that are kept.
const MAX_IDLE: usize = 256;

/// Pingora's proxy under our rules.
pub(super) struct Proxy(Arc<HttpProxy<ProxyHooks>>);

/// A request that was admitted, until its answer has ended.
#[derive(Debug)]
pub(super) struct Passed {
    passage: Passage,
    attempts: Attempts,
    target: Option<Target>,
    /// Until they are in the access log.
    details: Option<RequestDetails>,
    client: IpAddr,
    arrived: Instant,
    /// The value of `X-Forwarded-Proto`; `None`: that of a trusted proxy is passed on.
    scheme: Option<HeaderValue>,
    /// Whether its connection may be used after it.
    pub(super) keeps_connection: bool,
    /// Bytes of the body so far.
    body: u64,
    /// Whether the header of an answer has come.
    is_answered: bool,
    /// What its caller is told, unless something is answered.
    fault: Option<Fault>,
    is_cut: Arc<AtomicBool>,
}

/// What became of the connection of a passed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The next request may follow.
    Open,
    /// It is to be closed so that the answer arrives.
    Closing,
    /// It is to be reset, so that nobody takes the answer for whole.
    Cut,
}

impl Proxy {
    pub(super) fn new(gateway: Arc<Gateway>) -> Self {
        let conf = ServerConf { upstream_keepalive_pool_size: MAX_IDLE, ..ServerConf::default() };
        Proxy(Arc::new(http_proxy(&Arc::new(conf), ProxyHooks { gateway })))
    }

    /// Passes on the one request that `stream` holds. Once `stop` is true, its answer is the last of its connection; `None`: it
    /// came over HTTP/2, where a stream that ends is a caller that hung up, and not one that has only finished sending.
    pub(super) async fn pass(&self, stream: Stream, passed: Box<Passed>, stop: Option<&ShutdownWatch>) -> Left {
        let is_cut = passed.is_cut.clone();
        // A body that comes slowly does not keep others from the origin.
        let (place, body_timeout) = (passed.passage.place(), passed.passage.config.server.body_timeout);
        let mut session = ServerSession::new_http1(stream);
        if let ServerSession::H1(http1) = &mut session {
            // What comes behind a body in chunks does not end its request.
            http1.set_pipelining_enabled(true);
            http1.set_abort_on_close(stop.is_none());
        }
        session.set_connection_user_context(Some(passed));
        let never;
        let stop = match stop {
            Some(stop) => stop,
            None => {
                never = watch::channel(false);
                &never.1
            }
        };
        let mut passing = pin!(self.0.process_new_http(session, stop));
        let stream = tokio::select! {
            biased;
            stream = &mut passing => stream,
            () = sleep(body_timeout) => {
                drop(place.lock().take());
                passing.await
            }
        };
        match stream {
            Some(_) => Left::Open,
            None if is_cut.load(Ordering::Relaxed) => Left::Cut,
            None => Left::Closing,
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proxy(…)")
    }
}

/// Whether a request that is no operation goes on to an upstream: its path lies under one of `pass.paths`, and no server may
/// take it for an operation's.
pub(super) fn is_passed(config: &Config, path: &[u8]) -> bool {
    let base = &config.server.base_path;
    if config.pass.paths.is_empty() || !config.pass.covers(path) {
        return false;
    }
    let OriginKind::Http(upstreams) = &config.origin.kind else { return false };
    let paths: Vec<&str> = upstreams.list.iter().map(|upstream| upstream.path.as_str()).collect();
    !may_be_operation(path, base, &paths)
}

impl Passed {
    pub(super) fn new(
        passage: Passage,
        details: RequestDetails,
        (request, client, is_proxied): (&ReceivedRequest<'_>, IpAddr, bool),
    ) -> Box<Self> {
        let has_tls = passage.config.server.tls.is_some() && request.peer.is_some(); // a Unix socket has none
        let is_repeatable = matches!(request.method, b"GET" | b"HEAD");
        Box::new(Passed {
            attempts: Attempts::new(passage.origin.clone(), details.id, is_repeatable),
            passage,
            target: None,
            details: Some(details),
            client,
            arrived: request.arrived,
            scheme: (!is_proxied).then(|| HeaderValue::from_static(if has_tls { "https" } else { "http" })),
            keeps_connection: false,
            body: 0,
            is_answered: false,
            fault: None,
            is_cut: Arc::default(),
        })
    }
}
