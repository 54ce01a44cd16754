//! A gateway on a free port of loopback within this process, for a command that compares it with its origin. It has no
//! store and no log, and ends with the process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::ProcessError;
use super::startup::{load_keys, start_origin};
use crate::clock::Clock;
use crate::config::{Config, Listen, OriginKind};
use crate::edge::{Audience, CallerFiles, Edge, Listener, Server};
use crate::gateway::{Gateway, State};
use crate::origin;
use crate::telemetry::Observer;

/// A gateway that serves for as long as this value lives.
#[derive(Debug)]
pub struct LoopbackGateway {
    address: SocketAddr,
    server: Server,
}

impl LoopbackGateway {
    /// Starts a gateway whose configuration needs no store.
    ///
    /// # Errors
    /// Why it could not start.
    pub async fn start(config: Config) -> Result<Self, ProcessError> {
        let failed = |why: &str| ProcessError::Failed(format!("no gateway could be started on loopback: {why}"));
        let tls = match &config.origin.kind {
            OriginKind::Http(upstreams) => {
                origin::Tls::load(upstreams).map_err(|e| ProcessError::Unusable(e.to_string()))?
            }
            OriginKind::Builtin => None,
        };
        let any_port = Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let listener = Listener::bind(Audience::Callers, &any_port, false, false, &mut Vec::new())
            .map_err(|e| failed(&e.to_string()))?;
        let address = listener.url().trim_start_matches("http://").parse().map_err(|_| failed("it has no address"))?;
        let clock = Clock::system();
        let (keys, key_list, day_counts) = load_keys(&config, None, None, &clock).await?;
        let origin = start_origin(&config, tls, None, &clock).await?;
        let threads = config.server.threads;
        let state = State::new(config, origin, keys, key_list, day_counts, &clock);
        let gateway = Arc::new(Gateway::new(clock, state, Observer::default()));
        let server = Server::start(Edge::new(gateway, None, CallerFiles::of(usize::MAX)), vec![listener], threads);
        let mut server = server.map_err(|e| failed(&e.to_string()))?;
        if !server.is_prepared().await || !server.accept().await {
            return Err(failed("its listener has failed"));
        }
        Ok(LoopbackGateway { address, server })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for LoopbackGateway {
    fn drop(&mut self) {
        self.server.begin_drain(false);
        self.server.close_idle();
    }
}
