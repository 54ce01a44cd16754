//! HTTP/2 on one connection: the `h2` crate reads and writes frames under its own limits and Pingora's, the gateway answers
//! requests. This module runs the connection and its streams in one task, and ends it when it idles, when its
//! peer sends too much for nothing, or when the process drains.
//!
//! Streams are taken from the `h2` connection and not as Pingora's `HttpSession`: that one answers a request without one
//! clear host by itself, with a 400 that has no line.

mod header;
mod stream;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::Reason;
use h2::server::Connection;
use pingora::protocols::http::v2::server::H2Options;
use pingora::server::ShutdownWatch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::Edge;
use super::accept::Peer;
use super::io::Bounded;
use super::timed_stream::{DRAIN_TIME, TimedStream, WRITE_PART};
use super::transport::Transport;
use crate::config::Server;

/// The initial window of a stream if `max_body` is less. The window of the whole connection is the smallest that
/// RFC 9113 allows, 64 KiB.
const MIN_WINDOW: usize = 16 * 1024;

/// The crate's bound for a header is this many times `max_header`. It answers 431 by itself, without a line, to a longer
/// one, and ends the connection at four times that. So a header that is a little too long is refused by us with 16, and
/// one that is far too long is never held.
const HEADER_SLACK: usize = 4;

/// And so much more, since it counts 32 bytes for each of up to a hundred fields and a few.
const FIELDS_OVERHEAD: usize = 4 * 1024;

/// Requests of a connection at once: what browsers and nginx take as well, and each may hold a body of `max_body`.
const MAX_STREAMS: u32 = 100;

/// What small DATA frames that wait to be read may cost, each 256 bytes less its length: [`MAX_STREAMS`] requests may come at
/// once, each with its body in forty pieces.
const DATA_FRAME_BUDGET: usize = 1024 * 1024;

/// Serves a connection on which HTTP/2 was negotiated. At the `stop` the peer is asked to send no more
/// requests, in two steps, so that no request is lost that is on its way. When `over` completes, a connection without
/// requests ends after [`DRAIN_TIME`].
pub(super) async fn serve(
    edge: &Edge,
    transport: Transport,
    peer: Peer,
    stop: ShutdownWatch,
    mut over: Pin<&mut impl Future<Output = ()>>,
) {
    let config = edge.gateway.state().config.clone();
    let server = &config.server;
    let io = Bounded::new(transport, server);
    let handshake = options(server).handshake(io.clone());
    let h2 = tokio::select! {
        biased;
        done = timeout_at(peer.accepted_at + server.header_timeout, handshake) => done,
        () = io.over() => return,
        () = &mut over => return,
    };
    let mut requests = FuturesUnordered::new();
    if let Ok(Ok(mut h2)) = h2 {
        run((edge, peer, &io), &mut h2, &mut requests, stop, over).await;
    }
    // The requests continue without their caller: others may wait for the same answer from the origin, and a write must
    // not be left half done.
    let ended = async { while requests.next().await.is_some() {} };
    let closed = async {
        if let Some(transport) = io.take() {
            TimedStream::new(transport, server.write_timeout).close().await;
        }
    };
    tokio::join!(ended, closed);
}

fn options(server: &Server) -> H2Options {
    let as_u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut options = H2Options::default();
    options
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(as_u32(server.max_header.saturating_mul(HEADER_SLACK).saturating_add(FIELDS_OVERHEAD)))
        .initial_window_size(as_u32(server.max_body.max(MIN_WINDOW)))
        .max_send_buffer_size(WRITE_PART)
        .data_frame_budget(DATA_FRAME_BUDGET);
    options
}

/// Runs a connection to its end.
async fn run<'e>(
    (edge, peer, io): (&'e Edge, Peer, &Bounded),
    h2: &mut Connection<Bounded, Bytes>,
    requests: &mut FuturesUnordered<BoxFuture<'e, ()>>,
    mut stop: ShutdownWatch,
    mut over: Pin<&mut impl Future<Output = ()>>,
) {
    let idle_timeout = || edge.gateway.state().config.server.idle_timeout;
    let first_by = peer.accepted_at + edge.gateway.state().config.server.header_timeout;
    // When the last request was answered; until when the peer may still send one, once the process drains.
    let (mut answered, mut drained_by) = (None, None);
    let mut stopped = false;
    loop {
        let accepted = poll_fn(|cx| h2.poll_accept(cx));
        let flooded = poll_fn(|_| if io.is_flooded() { Poll::Ready(()) } else { Poll::Pending });
        let idle_until = drained_by.or_else(|| Some(answered? + idle_timeout())).unwrap_or(first_by);
        tokio::select! {
            biased;
            // All requests that have come are accepted before any is answered.
            accepted = accepted => match accepted {
                Some(Ok((request, respond))) => {
                    requests.push(Box::pin(stream::answer(edge, peer, io.clone(), request, respond)));
                }
                Some(Err(_)) | None => return, // the crate has told the peer why
            },
            () = flooded => return go_away(h2, Reason::ENHANCE_YOUR_CALM).await,
            () = io.over(), if requests.is_empty() => return,
            Some(()) = requests.next() => {
                // Answers that are ready at once are sent in one write, when the connection is polled next.
                while let Some(Some(())) = requests.next().now_or_never() {}
                answered = Some(Instant::now());
            }
            // An error means that the server is gone, which is a stop as well.
            () = async { drop(stop.wait_for(|stop| *stop).await) }, if !stopped => {
                stopped = true;
                h2.graceful_shutdown();
            }
            () = &mut over, if drained_by.is_none() => {
                drained_by = Some(Instant::now() + DRAIN_TIME);
                h2.graceful_shutdown();
            }
            () = sleep_until(idle_until), if requests.is_empty() => return go_away(h2, Reason::NO_ERROR).await,
        }
    }
}

/// Ends a connection.
async fn go_away(h2: &mut Connection<Bounded, Bytes>, reason: Reason) {
    h2.abrupt_shutdown(reason);
    let _ = timeout(DRAIN_TIME, poll_fn(|cx| h2.poll_closed(cx))).await; // the peer may take nothing
}
