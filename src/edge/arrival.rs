//! Serves one accepted connection to its end: first a place in the connection limiter, then the TLS handshake, then
//! HTTP/1.1 or HTTP/2. The place comes first and the handshake is within `header_timeout` from the accept, so that
//! connections which never finish a handshake are bounded in number and in time. Called by Pingora for each connection,
//! through `Edge`.

use std::io;
use std::net::IpAddr;

use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;
use tokio::time::{Instant, timeout_at};

use super::Edge;
use super::connection::Connection;
use super::http2;
use super::pipe::Pipe;
use super::tls::Tls;
use crate::wire::Fault;

/// From where a connection came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// `None`: over a Unix socket.
    pub(super) peer: Option<IpAddr>,
    /// When it was accepted.
    pub(super) at: Instant,
}

impl Edge {
    /// Serves one connection to its end: its place first, then TLS where it is spoken, then HTTP.
    pub(super) async fn serve(&self, stream: Stream, shutdown: &ShutdownWatch) {
        let digest = stream.get_socket_digest();
        let peer = digest.as_ref().and_then(|d| d.peer_addr().and_then(|a| a.as_inet().map(|a| a.ip())));
        // Asked of this side's address: a peer that is gone already has none.
        let is_tcp = digest.as_ref().is_none_or(|d| d.local_addr().is_none_or(|a| a.as_inet().is_some()));
        let arrival = Arrival { peer, at: Instant::now() };
        let Some(place) = self.guests.enter(peer) else { return };
        let over = self.draining.until_idle_is_over();
        tokio::pin!(over);
        let pipe = if is_tcp && self.tls.is_some() {
            let opened = tokio::select! {
                biased;
                // Boxed, so that a plain connection carries no room for it.
                opened = Box::pin(self.secure(stream, arrival.at)) => opened,
                () = &mut over => None,
            };
            match opened {
                Some(Opened::Secured(pipe)) => pipe,
                Some(Opened::PlainHttp(stream)) => {
                    let connection = Connection::new(self, Pipe::Plain(stream), arrival, place);
                    return connection.refuse_and_end(Fault::PlainHttp).await;
                }
                None => return,
            }
        } else {
            Pipe::Plain(stream)
        };
        if pipe.speaks_http_2() {
            // Boxed, so that a connection of HTTP/1.1 carries no room for it.
            let mut shutdown = shutdown.clone();
            let stop = async move {
                // An error means that the server is gone, which is a stop as well.
                let _ = shutdown.wait_for(|stop| *stop).await;
            };
            Box::pin(http2::serve(self, pipe, arrival, place, Box::pin(stop), over)).await;
        } else {
            Connection::new(self, pipe, arrival, place).run(over).await;
        }
    }

    /// Sees what the peer speaks and shakes hands, within the time that the first header has as well: a
    /// peer that stalls, or speaks neither TLS nor HTTP, is gone after it.
    async fn secure(&self, stream: Stream, accepted: Instant) -> Option<Opened> {
        let until = accepted + self.gateway.state().config.server.header_timeout;
        match timeout_at(until, open(self.tls.as_ref()?, stream)).await {
            Ok(Ok(opened)) => Some(opened),
            // Strangers cause these at will: they are no news to anyone who did not ask.
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

/// What a peer speaks on a port that speaks TLS.
enum Opened {
    Secured(Pipe),
    PlainHttp(Stream),
}

/// Shakes hands, unless the first byte begins a method of HTTP. TLS has no record whose first byte is
/// a letter (RFC 8446, 5.1).
async fn open(tls: &Tls, mut stream: Stream) -> io::Result<Opened> {
    let mut first = [0];
    stream.try_peek(&mut first).await?;
    if first[0].is_ascii_alphabetic() {
        return Ok(Opened::PlainHttp(stream));
    }
    Ok(Opened::Secured(Pipe::Tls(Box::new(tls.accept(stream).await?))))
}
