//! Serves one accepted connection to its end: first a permit of the connection limiter, then the TLS handshake, then
//! HTTP/1.1 or HTTP/2. The permit comes first and the handshake is within `header_timeout` from the accept, so that
//! connections which never finish a handshake are bounded in number and in time. Called by Pingora for each connection,
//! through `Edge`.

use std::io;
use std::net::IpAddr;

use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;
use tokio::time::{Instant, timeout_at};

use super::Edge;
use super::http1;
use super::http2;
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
    pub(super) async fn serve(&self, stream: Stream, shutdown: &ShutdownWatch) {
        let digest = stream.get_socket_digest();
        let address = digest.as_ref().and_then(|d| d.peer_addr().and_then(|a| a.as_inet().map(|a| a.ip())));
        // The local address says so even if the peer has already left.
        let is_tcp = digest.as_ref().is_none_or(|d| d.local_addr().is_none_or(|a| a.as_inet().is_some()));
        let peer = Peer { address, accepted_at: Instant::now() };
        let Some(permit) = self.connections.acquire(address) else { return };
        let over = self.drain.until_idle_closes();
        tokio::pin!(over);
        let transport = if is_tcp && self.tls.is_some() {
            let first = tokio::select! {
                biased;
                // Boxed, so that a plain connection needs no memory for it.
                first = Box::pin(self.secure(stream, peer.accepted_at)) => first,
                () = &mut over => None,
            };
            match first {
                Some(FirstBytes::Tls(transport)) => transport,
                Some(FirstBytes::PlainHttp(stream)) => {
                    let connection = http1::Connection::new(self, Transport::Left(stream), peer, permit);
                    return connection.refuse_and_close(Fault::PlainHttp).await;
                }
                None => return,
            }
        } else {
            Transport::Left(stream)
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
    async fn secure(&self, stream: Stream, accepted_at: Instant) -> Option<FirstBytes> {
        let deadline = accepted_at + self.gateway.state().config.server.header_timeout;
        match timeout_at(deadline, handshake(self.tls.as_ref()?, stream)).await {
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
    PlainHttp(Stream),
}

/// Does the TLS handshake, unless the first byte begins an HTTP method. No TLS record begins with a letter (RFC 8446,
/// 5.1).
async fn handshake(tls: &Tls, mut stream: Stream) -> io::Result<FirstBytes> {
    let mut first = [0];
    stream.try_peek(&mut first).await?;
    if first[0].is_ascii_alphabetic() {
        return Ok(FirstBytes::PlainHttp(stream));
    }
    Ok(FirstBytes::Tls(Transport::Right(Box::new(tls.accept(stream).await?))))
}
