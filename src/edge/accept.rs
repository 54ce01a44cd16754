//! Serves one accepted connection to its end: first a permit of the connection limiter, then the PROXY header where there
//! is one, then the TLS handshake, then HTTP/1.1 or HTTP/2. The permit comes first and the handshake is within `header_timeout` from the accept, so that
//! connections which never finish a handshake are bounded in number and in time. `server` calls it for each connection.

use std::net::IpAddr;

use pingora::server::ShutdownWatch;
use tokio::time::{Instant, timeout_at};

use super::Edge;
use super::http1;
use super::http2;
use super::transport::{self, Socket, Transport};
use crate::wire::Fault;

/// How many times `write_timeout` the kernel waits for a peer that takes nothing. It may count a pause of a peer that takes
/// little at a time from an earlier one.
const KERNEL_TIMES: u32 = 4;

/// Who connected, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// Where a PROXY header named another one, that. `None`: over a Unix socket.
    pub(super) address: Option<IpAddr>,
    pub(super) accepted_at: Instant,
}

impl Edge {
    /// `address`: the peer's; `None` over a Unix socket.
    pub(super) async fn serve(&self, mut socket: Socket, address: Option<IpAddr>, stop: ShutdownWatch) {
        let mut peer = Peer { address, accepted_at: Instant::now() };
        let (header_timeout, write_timeout, has_header) = {
            let state = self.gateway.state();
            let server = &state.config.server;
            (server.header_timeout, server.write_timeout, server.proxy_protocol)
        };
        // Where a proxy says whose a connection is, it counts as that caller's.
        let Some(mut permit) = self.connections.acquire(address.filter(|_| !has_header)) else { return };
        let mut closes_idle = self.closes_idle.subscribe();
        let over = async {
            // An error means that the server is gone, which is an end as well.
            let _ = closes_idle.wait_for(|closes| *closes).await;
        };
        tokio::pin!(over);
        if has_header {
            let caller = tokio::select! {
                biased;
                // Boxed, so that a connection without it needs no memory for it.
                caller = Box::pin(self.proxied(&mut socket, &peer)) => caller,
                () = &mut over => return,
            };
            peer.address = match caller {
                Ok(caller) => caller,
                Err(why) => {
                    self.connections.count_unproxied();
                    return tracing::warn!(%why, peer = ?address, "closed a connection: server.proxy_protocol");
                }
            };
            drop(permit);
            let Some(of_caller) = self.connections.acquire(peer.address) else { return };
            permit = of_caller;
        }
        let _permit = permit;
        let transport = tokio::select! {
            biased;
            transport = self.shake_hands(socket, peer.accepted_at + header_timeout) => transport,
            () = &mut over => return,
        };
        let Some(transport) = transport else { return };
        transport::set_user_timeout(&transport, write_timeout.saturating_mul(KERNEL_TIMES));
        if transport::is_http_2(&transport) {
            // Boxed, so that an HTTP/1.1 connection needs no memory for it.
            return Box::pin(http2::serve(self, transport, peer, stop, over)).await;
        }
        let needs_tls = self.tls.is_some() && matches!(transport, Transport::Left(Socket::Left(_)));
        let connection = http1::Connection::new(self, transport, peer, stop);
        match needs_tls {
            true => Box::pin(connection.refuse_and_close(Fault::PlainHttp)).await,
            false => connection.run(over).await,
        }
    }

    /// The TLS handshake, where there is one; `None`: it failed or took too long.
    async fn shake_hands(&self, socket: Socket, until: Instant) -> Option<Transport> {
        let (socket, tls) = match (socket, &self.tls) {
            (Socket::Left(socket), Some(tls)) => (socket, tls),
            (socket, _) => return Some(Transport::Left(socket)),
        };
        // Boxed, so that a plain connection needs no memory for it.
        match Box::pin(timeout_at(until, tls.accept(socket))).await {
            Ok(Ok(transport)) => Some(transport),
            // Any stranger can cause these at will, so they are logged for debugging only.
            failed => {
                tracing::debug!(?failed, "a TLS handshake failed or took too long");
                None
            }
        }
    }
}
