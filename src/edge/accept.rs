//! Serves one accepted connection to its end: first a permit of the connection limiter, then the TLS handshake, then
//! HTTP/1.1 or HTTP/2. The permit comes first and the handshake is within `header_timeout` from the accept, so that
//! connections which never finish a handshake are bounded in number and in time. `server` calls it for each connection.

use std::io;
use std::net::IpAddr;

use pingora::server::ShutdownWatch;
use tokio::time::{Instant, timeout_at};

use super::Edge;
use super::http1;
use super::http2;
use super::socket::Socket;
use super::tls::Tls;
use super::transport::{self, Transport};
use crate::wire::Fault;

/// Who connected, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// `None`: over a Unix socket.
    pub(super) address: Option<IpAddr>,
    pub(super) accepted_at: Instant,
}

impl Edge {
    /// `address`: the peer's; `None` over a Unix socket.
    pub(super) async fn serve(&self, socket: Socket, address: Option<IpAddr>, shutdown: &ShutdownWatch) {
        let peer = Peer { address, accepted_at: Instant::now() };
        let Some(permit) = self.connections.acquire(address) else { return };
        let over = self.drain.until_idle_closes();
        tokio::pin!(over);
        let transport = if address.is_some() && self.tls.is_some() {
            let first = tokio::select! {
                biased;
                // Boxed, so that a plain connection needs no memory for it.
                first = Box::pin(self.secure(socket, peer.accepted_at)) => first,
                () = &mut over => None,
            };
            match first {
                Some(FirstBytes::Tls(transport)) => transport,
                Some(FirstBytes::PlainHttp(socket)) => {
                    let connection = http1::Connection::new(self, Transport::Left(socket), peer, permit);
                    return Box::pin(connection.refuse_and_close(Fault::PlainHttp)).await;
                }
                None => return,
            }
        } else {
            Transport::Left(socket)
        };
        if transport::is_http_2(&transport) {
            let mut shutdown = shutdown.clone();
            let stop = async move {
                // An error means that the server is gone, which is a stop as well.
                let _ = shutdown.wait_for(|stop| *stop).await;
            };
            // Boxed, so that an HTTP/1.1 connection needs no memory for it.
            Box::pin(http2::serve(self, transport, peer, permit, Box::pin(stop), over)).await;
        } else {
            http1::Connection::new(self, transport, peer, permit).run(over).await;
        }
    }

    /// Does the TLS handshake within `header_timeout` from the accept.
    async fn secure(&self, socket: Socket, accepted_at: Instant) -> Option<FirstBytes> {
        let deadline = accepted_at + self.gateway.state().config.server.header_timeout;
        match timeout_at(deadline, handshake(self.tls.as_ref()?, socket)).await {
            Ok(Ok(first)) => Some(first),
            // Any stranger can cause these at will, so they are logged for debugging only.
            Ok(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
            Err(_) => {
                tracing::debug!("a TLS handshake took longer than server.header_timeout");
                None
            }
        }
    }
}

/// What a peer speaks on a TLS port.
enum FirstBytes {
    Tls(Transport),
    PlainHttp(Socket),
}

/// Does the TLS handshake, unless the first byte begins an HTTP method. No TLS record begins with a letter (RFC 8446,
/// 5.1).
async fn handshake(tls: &Tls, mut socket: Socket) -> io::Result<FirstBytes> {
    if socket.peek().await?.is_ascii_alphabetic() {
        return Ok(FirstBytes::PlainHttp(socket));
    }
    Ok(FirstBytes::Tls(Transport::Right(Box::new(tls.accept(socket).await?))))
}
