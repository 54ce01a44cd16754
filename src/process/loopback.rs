//! A gateway on a free port of loopback within this process, for a command that compares it with its origin. It has no
//! store and no log, and ends with the process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::ProcessError;
use super::startup::{load_keys, start_origin};
use crate::clock::Clock;
use crate::config::{Config, Listen};
use crate::edge::{Edge, Listener, Server};
use crate::gateway::{Gateway, State};
use crate::origin::Tls;
use crate::telemetry::Observer;

/// Starts a gateway whose configuration needs no store. It serves at the address for as long as the server lives. `tls`: to
/// its upstreams.
///
/// # Errors
/// Why it could not start.
pub async fn start_loopback(config: Config, tls: Option<Tls>) -> Result<(SocketAddr, Server), ProcessError> {
    let failed = |why: String| ProcessError::Failed(format!("no gateway could be started on loopback: {why}"));
    let any_port = Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let listener = Listener::bind("server.listen", &any_port, false, false, &mut Vec::new());
    let listener = listener.map_err(|e| failed(e.to_string()))?;
    let address = listener.url.trim_start_matches("http://").parse().map_err(|e| failed(format!("{e}")))?;
    let (clock, threads) = (Clock::system(), config.server.threads);
    let (keys, key_list, day_counts) = load_keys(&config, None, None, &clock).await?;
    let origin = start_origin(&config, tls, None, &clock).await?;
    let state = State::new(config, origin, keys, key_list, day_counts, &clock);
    let gateway = Arc::new(Gateway::new(clock, state, Observer::default()));
    let server = Server::start(Arc::new(Edge::new(gateway, None, usize::MAX)), vec![listener], threads);
    let mut server = server.map_err(|e| failed(e.to_string()))?;
    server.accept();
    Ok((address, server))
}
