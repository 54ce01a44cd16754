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
mod io;
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

pub use limiter::CallerFiles;
pub use listener::{Audience, BindError, Listener, ListeningSocket};
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
    /// `most`: the files that the process may open for callers.
    pub fn new(gateway: Arc<Gateway>, tls: Option<Arc<Tls>>, most: CallerFiles) -> Self {
        let state = gateway.state();
        let server = &state.config.server;
        let most = CallerFiles { connections: most.connections.min(server.max_connections), ..most };
        let connections =
            ConnectionLimiter::new(most, Some(server.max_connections_per_address).filter(|most| *most > 0));
        Edge { gateway, connections: Arc::new(connections), drain: Arc::default(), tls }
    }
}
