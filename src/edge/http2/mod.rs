//! HTTP/2 on one connection: the `h2` crate reads and writes frames, the gateway answers requests. This module runs the
//! connection and its streams in one task, bounds what a peer may open or leave unfinished, and ends the connection
//! when a bound is exceeded, when it idles, or when the process drains.

mod body;
mod frames;
mod header;
mod stream;
mod trailers;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::Reason;
use h2::server::{Builder, Connection};
use tokio::time::{Instant, Sleep, timeout_at};

use super::Edge;
use super::accept::Peer;
use super::limiter::ConnectionPermit;
use super::request::MAX_FIELDS;
use super::timed_stream::{DRAIN_TIME, TimedStream};
use super::transport::{Transport, set_reset};
use crate::config::Server;
use frames::MonitoredTransport;
use stream::Finished;

/// Requests at once on one connection, the least that RFC 9113 recommends. Each may hold a body of `max_body` and one
/// answer.
const MAX_STREAMS: usize = 100;

/// Streams reset by the peer before they were accepted; more ends the connection (CVE-2023-44487). A caller may cancel all
/// that it has under way.
const MAX_RESETS_PENDING: usize = MAX_STREAMS;

/// Streams reset by us and still remembered, 50 a second: more are not remembered. The ends of their bodies may be on their
/// way, and trailers for a stream that is not remembered end the connection; DATA counts as an error.
const MAX_RESETS_REMEMBERED: usize = 5 * MAX_STREAMS;

/// For how long they are remembered: a caller may read late that its stream was reset.
const RESETS_REMEMBERED_FOR: Duration = Duration::from_secs(10);

/// Streams that the crate had to reset because of what the peer sent on them, over the life of a connection; more ends
/// it (CVE-2025-8671).
const MAX_ERRORS: usize = 1000;

/// The initial window of a stream if `max_body` is less. The window of the whole connection is the smallest that
/// RFC 9113 allows, 64 KiB.
const MIN_WINDOW: usize = 16 * 1024;

/// Bytes of one answer that the crate buffers for the peer.
const MAX_SEND_BUFFER: usize = 64 * 1024;

/// The crate's bound for a header is this many times `max_header`. It answers 431 by itself, without a line, to a longer
/// one, and ends the connection at four times that. So a header that is a little too long is refused by us with 16, and
/// one that is far too long is never held.
const HEADER_SLACK: usize = 4;

/// `:method`, `:scheme`, `:authority` and `:path`.
const PSEUDO_FIELDS: usize = 4;

/// What the crate counts for a field in addition to its name and value (RFC 9113, 6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// Serves a connection on which HTTP/2 was negotiated. When `stop` completes, the peer is asked to send no more
/// requests, in two steps, so that no request is lost that is on its way. When `over` completes, a connection without
/// requests ends after [`DRAIN_TIME`].
pub(super) async fn serve(
    edge: &Edge,
    transport: Transport,
    peer: Peer,
    _permit: ConnectionPermit,
    mut stop: Pin<Box<impl Future<Output = ()>>>,
    mut over: Pin<&mut impl Future<Output = ()>>,
) {
    let config = edge.gateway.state().config.clone();
    let server = &config.server;
    let transport = MonitoredTransport::new(transport);
    let handshake = timeout_at(peer.accepted_at + server.header_timeout, builder(server).handshake(transport.clone()));
    let h2 = tokio::select! {
        biased;
        done = handshake => match done {
            Ok(Ok(connection)) => connection,
            Ok(Err(_)) | Err(_) => {
                if let Some(transport) = transport.take() {
                    close(transport, server, true).await;
                }
                return;
            }
        },
        () = &mut over => return,
    };
    let mut connection = Http2Connection {
        edge,
        peer,
        h2,
        transport,
        requests: FuturesUnordered::new(),
        answered: None,
        draining: false,
        drained_by: None,
        ends_by: None,
        ending: Ending::InOrder,
        timer: Box::pin(tokio::time::sleep(server.idle_timeout)),
    };
    poll_fn(|cx| connection.poll(cx, stop.as_mut(), over.as_mut())).await;
    let Http2Connection { h2, transport, mut requests, ending, .. } = connection;
    drop(h2);
    // The requests continue without their caller: others may wait for the same answer from the origin, and a write must
    // not be left half done.
    let ended = async { while requests.next().await.is_some() {} };
    let closed = async {
        match transport.take() {
            Some(transport) if ending == Ending::Reset => set_reset(&transport),
            Some(transport) => close(transport, server, ending == Ending::Fault).await,
            None => {}
        }
    };
    tokio::join!(ended, closed);
}

async fn close(transport: Transport, server: &Server, is_early: bool) {
    TimedStream::new(transport, server.write_timeout).close(is_early).await;
}

fn builder(server: &Server) -> Builder {
    let as_u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let max_fields = MAX_FIELDS + PSEUDO_FIELDS;
    let header_list = server.max_header.saturating_mul(HEADER_SLACK).saturating_add(max_fields * FIELD_OVERHEAD);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(as_u32(MAX_STREAMS))
        .max_header_list_size(as_u32(header_list))
        .initial_window_size(as_u32(server.max_body.max(MIN_WINDOW)))
        .max_send_buffer_size(MAX_SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESETS_PENDING)
        .max_concurrent_reset_streams(MAX_RESETS_REMEMBERED)
        .reset_stream_duration(RESETS_REMEMBERED_FOR)
        .max_local_error_reset_streams(Some(MAX_ERRORS))
        // Bodies are read as they come, and `frames` bounds what is not; this would count late frames for ever.
        .data_frame_budget(usize::MAX);
    builder
}

struct Http2Connection<'e> {
    edge: &'e Edge,
    peer: Peer,
    h2: Connection<MonitoredTransport, Bytes>,
    transport: MonitoredTransport,
    requests: FuturesUnordered<BoxFuture<'e, Finished>>,
    /// When the last request was answered, from which idleness counts.
    answered: Option<Instant>,
    /// The peer was asked to send no more requests.
    draining: bool,
    /// Until when the peer may still send requests, if none is being answered.
    drained_by: Option<Instant>,
    /// The connection is being ended; if the peer does not take that, it is dropped at this time.
    ends_by: Option<Instant>,
    ending: Ending,
    timer: Pin<Box<Sleep>>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    InOrder,
    /// The peer was told of its fault, or that a deadline has passed.
    Fault,
    /// The peer takes nothing.
    Reset,
}

/// What is done about a connection whose deadline has passed.
#[derive(Clone, Copy, Debug)]
enum OnTimeout {
    /// End it with a GOAWAY.
    GoAway(Reason),
    /// The peer takes nothing, so no GOAWAY can be sent.
    Drop,
}

impl Http2Connection<'_> {
    /// Completes when the connection is over.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stop: Pin<&mut impl Future<Output = ()>>,
        over: Pin<&mut impl Future<Output = ()>>,
    ) -> Poll<()> {
        if !self.draining && stop.poll(cx).is_ready() {
            self.drain();
        }
        if self.drained_by.is_none() && over.poll(cx).is_ready() {
            self.drain();
            self.drained_by = Some(Instant::now() + DRAIN_TIME);
        }
        loop {
            // All requests that have come are accepted before any is answered. Answers that are ready at once are sent
            // when the connection is polled next, in one write.
            if self.accept(cx).is_ready() {
                return Poll::Ready(());
            }
            if self.answer(cx) {
                continue;
            }
            if !self.draining && self.transport.is_used_up() {
                self.drain();
                continue;
            }
            if self.transport.is_flooded() && self.ends_by.is_none() {
                self.go_away(Reason::ENHANCE_YOUR_CALM);
                continue;
            }
            let Some((deadline, on_timeout)) = self.deadline() else { return Poll::Pending };
            if Instant::now() < deadline {
                if self.timer.deadline() > deadline || self.timer.is_elapsed() {
                    self.timer.as_mut().reset(deadline);
                }
                match self.timer.as_mut().poll(cx) {
                    Poll::Ready(()) => continue,
                    Poll::Pending => return Poll::Pending,
                }
            }
            match on_timeout {
                OnTimeout::GoAway(reason) => self.go_away(reason),
                OnTimeout::Drop => {
                    self.ending = Ending::Reset;
                    return Poll::Ready(());
                }
            }
        }
    }

    /// Drives the connection and accepts requests. Completes when the connection is over.
    fn accept(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.requests.len() < MAX_STREAMS {
            match self.h2.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, mut respond)))) => {
                    if respond.poll_reset(cx).is_ready() {
                        continue; // its caller has cancelled it before it began, or the crate has reset it
                    }
                    let transport = self.transport.clone();
                    self.requests.push(Box::pin(stream::answer(self.edge, self.peer, transport, request, respond)));
                }
                Poll::Ready(Some(Err(_))) => {
                    self.ending = Ending::Fault; // the crate has sent the reason to the peer
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        // A reset frees a stream in the crate, but not its request here. So new requests wait, or a peer could have any
        // number of them.
        self.h2.poll_closed(cx).map(drop)
    }

    /// Polls the requests. Returns whether one was answered.
    fn answer(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some(finished)) = self.requests.poll_next_unpin(cx) {
            any = true;
            // A malformed request allows no further frames, so that a series of them is a flood.
            if !finished.malformed {
                self.transport.answered();
            }
            self.answered = Some(Instant::now());
            if finished.panicked {
                self.drain();
                self.drained_by.get_or_insert(Instant::now() + DRAIN_TIME);
            }
        }
        any
    }

    /// The next deadline of the connection, and what is done when it passes.
    fn deadline(&self) -> Option<(Instant, OnTimeout)> {
        if let Some(ends_by) = self.ends_by {
            return Some((ends_by, OnTimeout::Drop));
        }
        let state = self.edge.gateway.state();
        let server = &state.config.server;
        let unfinished = self.transport.deadline(server);
        let idle = self.requests.is_empty().then(|| self.idle_deadline(server)).flatten();
        unfinished.into_iter().chain(idle).min_by_key(|(deadline, _)| *deadline)
    }

    /// The deadline of a connection on which no request is being answered.
    fn idle_deadline(&self, server: &Server) -> Option<(Instant, OnTimeout)> {
        let first_header = self.peer.accepted_at + server.header_timeout;
        let (deadline, reason) = match (self.drained_by, self.answered, self.transport.is_within_header()) {
            (Some(drained_by), _, _) => (drained_by, Reason::NO_ERROR),
            // The next request has begun, and the monitor has a deadline for its header.
            (None, Some(_), true) => return None,
            (None, Some(answered), false) => (answered + server.idle_timeout, Reason::NO_ERROR),
            (None, None, true) => (first_header, Reason::ENHANCE_YOUR_CALM),
            (None, None, false) => (first_header, Reason::NO_ERROR),
        };
        Some((deadline, OnTimeout::GoAway(reason)))
    }

    /// Asks the peer to send no more requests. Those that came are answered.
    fn drain(&mut self) {
        if !self.draining {
            self.draining = true;
            self.h2.graceful_shutdown();
        }
    }

    /// Ends the connection as soon as the GOAWAY is sent.
    fn go_away(&mut self, reason: Reason) {
        self.ends_by = Some(Instant::now() + DRAIN_TIME);
        if reason != Reason::NO_ERROR {
            self.ending = Ending::Fault;
        }
        self.h2.abrupt_shutdown(reason);
    }
}
