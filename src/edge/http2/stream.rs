//! Answers the request of one HTTP/2 stream and sends the answer as the peer's flow control takes it, each part within
//! `write_timeout`. The header is checked in `header`, the body is read in `body`.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Response};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::body::Http2Body;
use super::frames::MonitoredTransport;
use super::header;
use crate::edge::accept::Peer;
use crate::edge::exchange::ReceivedRequest;
use crate::edge::timed_stream::{DRAIN_TIME, MAX_DRAIN, WRITE_PART};
use crate::edge::{Edge, proxies};

/// What the connection needs to know of a request that has ended.
pub(super) struct Finished {
    pub(super) malformed: bool,
    pub(super) panicked: bool,
}

/// Answers the request of one stream.
pub(super) async fn answer(
    edge: &Edge,
    peer: Peer,
    transport: MonitoredTransport,
    request: http::Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> Finished {
    let arrived = Instant::now();
    let state = Arc::clone(&edge.gateway.state());
    let config = &state.config;
    let server = &config.server;
    // Shared by the body, which sends a 100 on the stream, and the wait for the stream's reset.
    let respond = Mutex::new(respond);
    let (parts, stream) = request.into_parts();
    let from_trusted_proxy = proxies::is_trusted(peer.address, &server.trusted_proxies);
    let fields = header::check(&parts, server.max_header, from_trusted_proxy);
    let request = ReceivedRequest {
        method: parts.method.as_str().as_bytes(),
        path: parts.uri.path().as_bytes(),
        fields: fields.as_ref().map(|(fields, length)| (fields, *length)),
        peer: peer.address,
        arrived,
        began: arrived,
    };
    let mut body = Http2Body {
        stream,
        transport,
        respond: &respond,
        whole: Vec::new(),
        expect_continue: fields.as_ref().is_some_and(|(fields, _)| fields.expect_continue),
        max_body: server.max_body,
        timeout: server.body_timeout,
        malformed: fields.is_none(),
    };
    let reset = poll_fn(|cx| respond.lock().poll_reset(cx).map(drop));
    let answer = edge.answer(&state, &request, &mut body, reset).await;
    let finished = Finished { malformed: body.malformed, panicked: answer.panicked() };
    let (header, text) = answer.http2(config);
    let text = if parts.method == Method::HEAD { Bytes::new() } else { text };
    let write_timeout = server.write_timeout;
    // All else is freed before the peer is waited for, which may take the answer slowly.
    let Http2Body { stream, malformed, transport, whole, .. } = body;
    drop((fields, whole));
    drop((parts, state));
    let mut rest = RestOfBody { stream, left: MAX_DRAIN };
    let mut sending = pin!(send(respond.into_inner(), header, text, (write_timeout, &transport)));
    poll_fn(|cx| {
        // Meanwhile nothing of it is held: each small frame would keep the buffer in which it was read.
        let _ = rest.poll_discard(cx);
        sending.as_mut().poll(cx)
    })
    .await;
    if !malformed {
        let discarded = poll_fn(|cx| {
            let discarded = rest.poll_discard(cx);
            if rest.left == 0 { Poll::Ready(()) } else { discarded }
        });
        let _ = timeout(DRAIN_TIME, discarded).await;
    }
    finished
}

/// What is left of a body that was answered early. It is read within the bounds of HTTP/1.1, since curl loses the answer if
/// the stream is reset before it has sent the body; then the stream is reset (`NO_ERROR`).
struct RestOfBody {
    stream: RecvStream,
    /// Bytes that are still given back to the flow-control window; at 0 the peer can send no more than the window.
    left: u64,
}

impl RestOfBody {
    /// Discards what comes, trailers as well; completes at the body's end.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(Ok(data)) = ready!(self.stream.poll_data(cx)) {
            self.left = self.left.saturating_sub(data.len() as u64);
            if self.left > 0 {
                let _ = self.stream.flow_control().release_capacity(data.len()); // the stream may be gone
            }
        }
        self.stream.poll_trailers(cx).map(drop)
    }
}

/// Sends an answer as the peer takes it, each part of it within `write_timeout` for each request under way on the connection:
/// the peer may give windows to one after the other.
async fn send(
    mut respond: SendResponse<Bytes>,
    header: Response<()>,
    text: Bytes,
    (write_timeout, transport): (Duration, &MonitoredTransport),
) {
    // This fails if the stream or the connection is gone.
    let Ok(mut stream) = respond.send_response(header, text.is_empty()) else { return };
    let mut rest = text;
    while !rest.is_empty() {
        let part = rest.split_to(rest.len().min(WRITE_PART));
        let sent = {
            let mut sending = pin!(send_part(&mut stream, part, rest.is_empty()));
            let (mut times, mut most) = (1, transport.requests());
            loop {
                let sent = timeout(write_timeout, sending.as_mut()).await;
                most = most.max(transport.requests());
                if sent.is_ok() || times >= most {
                    break sent;
                }
                times += 1;
            }
        };
        match sent {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => return stream.send_reset(Reason::CANCEL),
        }
    }
}

/// Sends a part of an answer. Returns whether the stream is still open.
async fn send_part(stream: &mut SendStream<Bytes>, mut part: Bytes, is_last: bool) -> bool {
    while !part.is_empty() {
        stream.reserve_capacity(part.len());
        if stream.capacity() == 0 && !matches!(poll_fn(|cx| stream.poll_capacity(cx)).await, Some(Ok(_))) {
            return false;
        }
        let piece = part.split_to(stream.capacity().min(part.len()));
        if stream.send_data(piece, is_last && part.is_empty()).is_err() {
            return false;
        }
    }
    true
}
