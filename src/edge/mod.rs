//! The network side. Pingora has the server and its runtimes; rustls does TLS; HTTP/1.1 has a parser of our own, since
//! strict framing and a deadline for the whole header are needed (contract section 1, "Framing"); HTTP/2 is the `h2`
//! crate's, within further bounds (guarantee 8). The rules for a request are `gateway`'s: nothing here decides them.

mod accept;
mod answer;
mod drain;
mod exchange;
mod handshakes;
mod host;
mod http1;
mod http2;
mod limiter;
mod listener;
mod metrics;
mod proxies;
mod request;
mod reset_watch;
mod server;
mod socket;
mod spare_buffers;
mod timed_stream;
mod tls;
mod transport;
mod write_buffer;

use std::sync::Arc;

use crate::gateway::Gateway;

pub use listener::{BindError, Listener, ListeningSocket, NOT_PERMITTED};
pub use metrics::EdgeMetrics;
pub use server::Server;
pub use tls::{Tls, TlsError};

use drain::Drain;
use limiter::ConnectionLimiter;

/// What all connections share.
#[derive(Debug)]
pub struct Edge {
    gateway: Arc<Gateway>,
    connections: Arc<ConnectionLimiter>,
    drain: Arc<Drain>,
    /// The TLS of the TCP listeners; `None`: plain HTTP/1.1, which Unix sockets always speak.
    tls: Option<Arc<Tls>>,
}

impl Edge {
    /// `most_connections`: how many connections the process may open files for.
    pub fn new(gateway: Arc<Gateway>, tls: Option<Arc<Tls>>, most_connections: usize) -> Self {
        let state = gateway.state();
        let server = &state.config.server;
        let most = server.max_connections.min(most_connections);
        let connections = ConnectionLimiter::new(most, server.max_connections_per_address);
        Edge { gateway, connections: Arc::new(connections), drain: Arc::default(), tls }
    }
}
