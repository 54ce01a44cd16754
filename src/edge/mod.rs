//! The network side, on Pingora: listeners, runtimes and shut-down are its own; HTTP/1.1 is read
//! by a strict reader of ours, the only place where strict framing and a deadline for the whole
//! header can be had (contract section 1, "Framing"; guarantee 8).

mod answer;
mod body;
mod chunked;
mod connection;
mod guests;
mod head;
mod line;
mod proxies;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;

use crate::gateway::Gateway;
use crate::telemetry::AccessLog;

pub use guests::Guests;
pub use server::{BindError, Bound, Server, bind};

/// What every connection shares.
#[derive(Debug)]
pub struct Edge {
    pub gateway: Arc<Gateway>,
    pub guests: Arc<Guests>,
    pub access: Option<Arc<AccessLog>>,
    pub draining: Arc<Draining>,
}

/// Set once, when the process begins to stop: every answer is its connection's last, and the
/// health path says 503.
#[derive(Debug, Default)]
pub struct Draining(AtomicBool);

impl Draining {
    pub fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[async_trait]
impl ServerApp for Edge {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        self.serve(stream, shutdown.clone()).await;
        None
    }
}
