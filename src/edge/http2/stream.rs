//! Answers the request of one HTTP/2 stream: reads its body within `max_body` and `body_timeout`, and sends the answer as
//! the peer's flow control takes it, each part within `write_timeout`. The header is checked in `header`.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Method, Response};
use pingora::protocols::http::v2::write_body;
use tokio::time::{Instant, timeout};

use super::header;
use crate::config::{Server, is_trusted};
use crate::edge::accept::Peer;
use crate::edge::exchange::ReceivedRequest;
use crate::edge::io::Bounded;
use crate::edge::timed_stream::{DRAIN_TIME, MAX_DRAIN, WRITE_PART};
use crate::edge::{Edge, pass};
use crate::gateway::Body;
use crate::wire::Fault;

/// Answers the request of one stream.
pub(super) async fn answer(
    edge: &Edge,
    peer: Peer,
    io: Bounded,
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let arrived = Instant::now();
    let (parts, stream) = request.into_parts();
    // Freed before the peer is waited for, which may take the answer slowly.
    let (header, text, stream, is_well_formed, write_timeout) = {
        let state = Arc::clone(&edge.gateway.state());
        let server = &state.config.server;
        let from_trusted_proxy = is_trusted(peer.address, &server.trusted_proxies);
        let parts = parts;
        let fields = header::check(&parts, server.max_header, from_trusted_proxy);
        let request = ReceivedRequest {
            method: parts.method.as_str().as_bytes(),
            target: parts.uri.path().as_bytes(),
            path: parts.uri.path().as_bytes(),
            fields: fields.as_ref().map(|(fields, length)| (fields, *length)),
            peer: peer.address,
            arrived,
            began: arrived,
        };
        let mut body = Http2Body { stream, io: &io, whole: Vec::new(), server };
        let reset = poll_fn(|cx| respond.poll_reset(cx).map(drop));
        let answer = match edge.answer(&state, &request, &mut body, reset).await {
            Ok(answer) => answer,
            Err(passed) => {
                let (stream, write_timeout) = (body.stream, server.write_timeout);
                drop((fields, state));
                io.made_progress();
                // It takes as much memory as a connection of its own, and is bounded with them.
                let Some(_permit) = edge.connections.acquire(peer.address) else {
                    return respond.send_reset(Reason::REFUSED_STREAM);
                };
                return pass::http2::pass(edge, passed, (parts, stream, &io), respond, write_timeout).await;
            }
        };
        let (header, text) = answer.http2(&state.config);
        let text = if parts.method == Method::HEAD { Bytes::new() } else { text };
        (header, text, body.stream, fields.is_some(), server.write_timeout)
    };
    // But for malformed requests, which are a flood if they have no end.
    if is_well_formed {
        io.made_progress();
    }
    // Meanwhile nothing of the body is held. Once the answer is sent it may still come for a while: curl loses an answer
    // whose stream is reset before it has sent the body.
    match select(pin!(discard(stream)), pin!(send(respond, header, text, write_timeout))).await {
        Either::Left(((), sending)) => sending.await,
        Either::Right(((), discarding)) => drop(timeout(DRAIN_TIME, discarding).await),
    }
}

/// Reads and discards the rest of a body and its trailers. After [`MAX_DRAIN`] bytes the peer gets no more window.
async fn discard(mut stream: RecvStream) {
    let mut left = MAX_DRAIN;
    while let Some(Ok(data)) = stream.data().await {
        left = left.saturating_sub(data.len() as u64);
        if left > 0 {
            let _ = stream.flow_control().release_capacity(data.len()); // the stream may be gone
        }
    }
    let _ = stream.trailers().await;
}

/// Sends an answer as the peer takes it.
async fn send(mut respond: SendResponse<Bytes>, header: Response<()>, mut text: Bytes, write_timeout: Duration) {
    // This fails if the stream or the connection is gone.
    let Ok(mut stream) = respond.send_response(header, text.is_empty()) else { return };
    while !text.is_empty() {
        let part = text.split_to(text.len().min(WRITE_PART));
        match timeout(write_timeout, write_body(&mut stream, part, text.is_empty(), None)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => return stream.send_reset(Reason::CANCEL),
        }
    }
}

/// A request's body on an HTTP/2 stream.
struct Http2Body<'s> {
    stream: RecvStream,
    io: &'s Bounded,
    whole: Vec<u8>,
    server: &'s Server,
}

impl Body for Http2Body<'_> {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        timeout(self.server.body_timeout, self.read()).await.unwrap_or(Err(Fault::TooSlow))?;
        Ok(&self.whole)
    }
}

impl Http2Body<'_> {
    async fn read(&mut self) -> Result<(), Fault> {
        while let Some(data) = self.stream.data().await {
            // A body that is cut short or has another length than the header says performs nothing.
            let data = data.map_err(|_| Fault::Malformed)?;
            if self.whole.len() + data.len() > self.server.max_body {
                return Err(Fault::BodyTooLarge);
            }
            self.whole.extend_from_slice(&data);
            self.stream.flow_control().release_capacity(data.len()).map_err(|_| Fault::Malformed)?;
            self.io.made_progress();
        }
        Ok(())
    }
}
