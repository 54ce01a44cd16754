//! The network side. Connections are accepted, and TLS is spoken, in `server` and `accept`; HTTP/1.1 has a parser of our
//! own, since strict framing and a deadline for the whole header are needed (contract section 1, "Framing"); HTTP/2 is a
//! library's, within further bounds (guarantee 8). The rules for a request are `gateway`'s: nothing here decides them.

mod accept;
mod answer;
mod exchange;
mod host;
mod http1;
mod http2;
mod io;
mod limiter;
mod listener;
mod metrics;
mod pass;
mod proxies;
mod proxy_protocol;
mod request;
mod server;
mod timed_stream;
mod tls;
mod transport;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::watch;

use crate::gateway::Gateway;

pub use listener::{BindError, Listener, ListeningSocket};
pub use server::Server;
pub use tls::Tls;

use limiter::ConnectionLimiter;

/// What all connections share.
#[derive(Debug)]
pub struct Edge {
    gateway: Arc<Gateway>,
    connections: Arc<ConnectionLimiter>,
    proxy: pass::Proxy,
    /// The TLS of the TCP listeners; `None`: plain HTTP/1.1, which Unix sockets always speak.
    tls: Option<Arc<Tls>>,
    /// Whether the health path answers 503, because nobody will serve these addresses any more. In a hand-over it does not:
    /// the path answers for the addresses, not for this process.
    health_fails: AtomicBool,
    /// Becomes true when connections without a request under way are to be closed.
    closes_idle: watch::Sender<bool>,
}

impl Edge {
    /// `max_connections`: the connections for which the process may open files.
    pub fn new(gateway: Arc<Gateway>, tls: Option<Arc<Tls>>, max_connections: usize) -> Self {
        let connections = {
            let server = &gateway.state().config.server;
            ConnectionLimiter::new(max_connections.min(server.max_connections), server.max_connections_per_address)
        };
        Edge {
            proxy: pass::Proxy::new(gateway.clone()),
            gateway,
            connections: Arc::new(connections),
            tls,
            health_fails: AtomicBool::new(false),
            closes_idle: watch::Sender::new(false),
        }
    }
}
