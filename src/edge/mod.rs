//! The network side, on Pingora: listeners, runtimes and shut-down are its own. TLS is rustls's
//! under a deadline of ours; HTTP/1.1 is read by a strict reader of ours, the only place where
//! strict framing and a deadline for the whole header can be had, and HTTP/2 by the `h2` crate
//! within bounds of ours (contract section 1, "Framing"; guarantee 8).

mod answer;
mod arrival;
mod body;
mod chunked;
mod connection;
mod draining;
mod guests;
mod handover;
mod handshakes;
mod hang_up;
mod head;
mod host;
mod http2;
mod line;
mod output;
mod pipe;
mod proxies;
mod server;
mod tls;

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;
use tokio::time::Instant;

use crate::config::Config;
use crate::gateway::{Facts, Gateway, Reply};
use crate::model::Limit;
use crate::telemetry::{AccessLog, Outcome};

pub use draining::Draining;
pub use guests::Guests;
pub use handover::{Door, Frame, Handed, Talk};
pub use server::{BindError, Bound, NOT_PERMITTED, Server, bind};
pub use tls::{Certificate, Tls, TlsError};

/// What every connection shares.
#[derive(Debug)]
pub struct Edge {
    pub gateway: Arc<Gateway>,
    pub guests: Arc<Guests>,
    pub access: Option<Arc<AccessLog>>,
    pub draining: Arc<Draining>,
    /// What the TCP listeners speak; `None`: plain HTTP/1.1, as Unix sockets always do.
    pub tls: Option<Arc<Tls>>,
}

impl Edge {
    /// What the access log is told of an answer to a request whose first bytes came at `arrived`.
    fn outcome(&self, config: &Config, reply: &Reply, client: IpAddr, arrived: Instant) -> Outcome {
        let facts = &reply.facts;
        Outcome {
            unix_ms: self.gateway.clock().unix_ms(),
            client,
            operation: facts.operation.map(|o| o.name()),
            status: answer::status(config, reply),
            code: reply.answer.as_ref().err().map(|fault| fault.code()),
            key: facts.key.as_ref().map(|key| key.id.clone()),
            cache: facts.cache.map(answer::cache_word),
            over_limit: over_limit(facts),
            over_candidate: facts.over_candidate,
            took: arrived.elapsed(),
            id: facts.id,
        }
    }
}

/// The limit that a request was over, by its name.
fn over_limit(facts: &Facts) -> Option<&'static str> {
    facts.over_limit.map(Limit::name).or(facts.over_strangers.then_some("strangers"))
}

#[async_trait]
impl ServerApp for Edge {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        self.serve(stream, shutdown).await;
        None
    }
}
