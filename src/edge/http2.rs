//! HTTP/2 on one connection: the frames are the `h2` crate's, the rules are the gateway's. What is
//! here bounds the connection and turns streams into requests.

mod body;
mod frames;
mod request;
mod trailers;

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::poll;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request, Response};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, timeout_at};

use super::Edge;
use super::answer;
use super::arrival::Arrival;
use super::guests::Guest;
use super::head::MAX_FIELDS;
use super::line::{DRAIN_TIME, LEAST_TAKEN, Line};
use super::pipe::Pipe;
use super::proxies;
use crate::config::Server;
use crate::gateway::{Facts, Reply};
use crate::keys::InFlightPlace;
use crate::wire::{Fault, RequestId};
use body::Incoming;
use frames::{Overdue, Watched};

/// Requests under way at once on one connection: what RFC 9113 calls the least that is sensible.
/// Each may hold a body of `max_body` and one answer.
const MAX_STREAMS: usize = 100;

/// Streams reset by the peer before they were looked at, and streams that we reset and still
/// remember; more ends the connection (CVE-2023-44487). The crate's own defaults.
const MAX_RESETS_PENDING: usize = 20;
const MAX_RESETS_REMEMBERED: usize = 50;

/// Streams that the crate had to reset for what the peer sent on them, over a connection's life;
/// more ends it (CVE-2025-8671).
const MAX_ERRORS: usize = 1000;

/// Bytes of body that a peer may send unasked on one stream, where `max_body` is less. The window
/// of the whole connection is the smallest there is, 64 KiB.
const LEAST_WINDOW: usize = 16 * 1024;

/// Bytes of one answer that wait in the crate for the peer.
const MAX_SEND_BUFFER: usize = 64 * 1024;

/// The crate answers 431 by itself, without a line, to a header of more than it is told, and ends
/// the connection at four times that. Told this many times `max_header`, it leaves a header that is
/// too long to us, and to 16; what is far too long is never held.
const HEADER_SLACK: usize = 4;

/// `:method`, `:scheme`, `:authority` and `:path`.
const PSEUDO_FIELDS: usize = 4;

/// What the crate counts for a field beside its name and value (RFC 9113, 6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// Serves a connection on which the peer chose HTTP/2. With `stop` it is told to bring no more
/// requests, in two steps, so that none is lost that was sent before it heard of it; with `over`
/// it is waited for no longer where nothing is under way.
pub(super) async fn serve(
    edge: &Edge,
    pipe: Pipe,
    arrival: Arrival,
    mut place: Guest,
    mut stop: Pin<Box<impl Future<Output = ()>>>,
    mut over: Pin<&mut impl Future<Output = ()>>,
) {
    let config = edge.gateway.state().config.clone();
    let server = &config.server;
    let watched = Watched::new(pipe);
    let greeting = timeout_at(arrival.at + server.header_timeout, builder(server).handshake(watched.clone()));
    let connection = tokio::select! {
        biased;
        greeted = greeting => match greeted {
            Ok(Ok(connection)) => connection,
            Ok(Err(_)) | Err(_) => return,
        },
        () = &mut over => return,
    };
    let mut session = Session {
        edge,
        arrival,
        connection,
        watched,
        running: FuturesUnordered::new(),
        answered: None,
        leaving: false,
        leave_by: None,
        ending: None,
        timer: Box::pin(tokio::time::sleep(server.idle_timeout)),
    };
    poll_fn(|cx| session.poll(cx, stop.as_mut(), over.as_mut())).await;
    let Session { connection, watched, mut running, .. } = session;
    drop(connection);
    // The peer is gone or was told its end, but what it asked for goes on: others may have joined its
    // question, and a write is to end.
    place.detach(running.len());
    let ended = async { while running.next().await.is_some() {} };
    let closed = async {
        if let Some(pipe) = watched.take_pipe() {
            Line::new(pipe, server.write_timeout).close().await;
        }
    };
    tokio::join!(ended, closed);
}

fn builder(server: &Server) -> Builder {
    let as_u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let most_fields = MAX_FIELDS + PSEUDO_FIELDS;
    let header_list = server.max_header.saturating_mul(HEADER_SLACK).saturating_add(most_fields * FIELD_OVERHEAD);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(as_u32(MAX_STREAMS))
        .max_header_list_size(as_u32(header_list))
        .initial_window_size(as_u32(server.max_body.max(LEAST_WINDOW)))
        .max_send_buffer_size(MAX_SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESETS_PENDING)
        .max_concurrent_reset_streams(MAX_RESETS_REMEMBERED)
        .max_local_error_reset_streams(Some(MAX_ERRORS));
    builder
}

struct Session<'e> {
    edge: &'e Edge,
    arrival: Arrival,
    connection: Connection<Watched, Bytes>,
    watched: Watched,
    /// The requests under way.
    running: FuturesUnordered<BoxFuture<'e, Done>>,
    /// When the last request was answered, from which idleness counts.
    answered: Option<Instant>,
    /// No new requests are wanted.
    leaving: bool,
    /// Until when the peer is waited for to hear of it, where nothing is under way.
    leave_by: Option<Instant>,
    /// The connection is being ended; it is given up at this time.
    ending: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

/// What became of one request, as far as its connection cares.
struct Done {
    malformed: bool,
    panicked: bool,
}

/// What is to be done about a connection on which something took too long.
#[derive(Clone, Copy, Debug)]
enum Verdict {
    /// It is told why, and ended.
    End(Reason),
    /// It takes nothing any more: there is no telling it.
    GiveUp,
}

impl Session<'_> {
    /// Ready once the connection is over.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stop: Pin<&mut impl Future<Output = ()>>,
        over: Pin<&mut impl Future<Output = ()>>,
    ) -> Poll<()> {
        if !self.leaving && stop.poll(cx).is_ready() {
            self.leave();
        }
        if self.leave_by.is_none() && over.poll(cx).is_ready() {
            self.leave();
            self.leave_by = Some(Instant::now() + DRAIN_TIME);
        }
        loop {
            // Everything that has come is taken before anything is answered, and what can be
            // answered at once is sent with the next look at the connection, in one write.
            if self.accept(cx).is_ready() {
                return Poll::Ready(());
            }
            if self.answer(cx) {
                continue;
            }
            if self.watched.is_flooded() && self.ending.is_none() {
                self.end(Reason::ENHANCE_YOUR_CALM);
                continue;
            }
            let Some((due, verdict)) = self.deadline() else { return Poll::Pending };
            if Instant::now() < due {
                if self.timer.deadline() > due || self.timer.is_elapsed() {
                    self.timer.as_mut().reset(due);
                }
                match self.timer.as_mut().poll(cx) {
                    Poll::Ready(()) => continue,
                    Poll::Pending => return Poll::Pending,
                }
            }
            match verdict {
                Verdict::End(reason) => self.end(reason),
                Verdict::GiveUp => return Poll::Ready(()),
            }
        }
    }

    /// Drives the connection and takes the requests that it brings. Ready once it is over.
    fn accept(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.running.len() < MAX_STREAMS {
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    let watched = self.watched.clone();
                    self.running.push(Box::pin(one(self.edge, self.arrival.peer, watched, request, respond)));
                }
                // The crate has told the peer already.
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        // A stream that was reset makes room in the crate, but its request is still under way: new
        // ones wait, or a peer could have any number of them.
        self.connection.poll_closed(cx).map(drop)
    }

    /// Goes on with the requests under way. Whether one was answered.
    fn answer(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some(done)) = self.running.poll_next_unpin(cx) {
            any = true;
            // What is malformed earns nothing: a thousand of them and no good one are a flood.
            if !done.malformed {
                self.watched.answered();
            }
            self.answered = Some(Instant::now());
            if done.panicked {
                self.leave();
                self.leave_by.get_or_insert(Instant::now() + DRAIN_TIME);
            }
        }
        any
    }

    /// What takes too long first, when it does, and what then.
    fn deadline(&self) -> Option<(Instant, Verdict)> {
        if let Some(until) = self.ending {
            return Some((until, Verdict::GiveUp));
        }
        let state = self.edge.gateway.state();
        let server = &state.config.server;
        let overdue = self.watched.deadline(server).map(|(due, what)| match what {
            Overdue::Frame => (due, Verdict::End(Reason::ENHANCE_YOUR_CALM)),
            Overdue::Write => (due, Verdict::GiveUp),
        });
        let idle = self.running.is_empty().then(|| self.idle_until(server)).flatten();
        overdue.into_iter().chain(idle).min_by_key(|(due, _)| *due)
    }

    /// When a connection on which no request is under way has had its time, and what it is told then.
    fn idle_until(&self, server: &Server) -> Option<(Instant, Verdict)> {
        let (due, reason) = match (self.leave_by, self.answered, self.watched.is_within_header()) {
            (Some(by), _, _) => (by, Reason::NO_ERROR),
            // The next request has begun, and has a time of its own.
            (None, Some(_), true) => return None,
            (None, Some(answered), false) => (answered + server.idle_timeout, Reason::NO_ERROR),
            (None, None, true) => (self.arrival.at + server.header_timeout, Reason::ENHANCE_YOUR_CALM),
            (None, None, false) => (self.arrival.at + server.header_timeout, Reason::NO_ERROR),
        };
        Some((due, Verdict::End(reason)))
    }

    /// Tells the peer to bring no more requests; those under way are answered.
    fn leave(&mut self) {
        if !self.leaving {
            self.leaving = true;
            self.connection.graceful_shutdown();
        }
    }

    /// Ends the connection as soon as the peer was told why.
    fn end(&mut self, reason: Reason) {
        self.ending = Some(Instant::now() + DRAIN_TIME);
        self.connection.abrupt_shutdown(reason);
    }
}

/// Answers the request of one stream.
async fn one(
    edge: &Edge,
    peer: Option<IpAddr>,
    watched: Watched,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> Done {
    let arrived = Instant::now();
    let state = Arc::clone(&edge.gateway.state());
    let config = &state.config;
    let server = &config.server;
    // Where the stream's end is noticed beside the request, which says 100 on it.
    let respond = Mutex::new(respond);
    let (parts, stream) = request.into_parts();
    let head_only = parts.method == Method::HEAD;
    let (method, path) = (parts.method.as_str().as_bytes(), parts.uri.path().as_bytes());
    if server.is_health(method, path) {
        let (head, body) = answer::http2_health(edge.draining.ends_service());
        send(respond.into_inner(), head, if head_only { Bytes::new() } else { body }, server).await;
        return Done { malformed: false, panicked: false };
    }
    let want_forwarded = proxies::is_trusted(peer, &server.trusted_proxies);
    let judged = request::judge(&parts, server.max_header, want_forwarded);
    let mut malformed = judged.is_none();
    let (reply, client) = match judged {
        None => {
            drop(stream);
            let reply = Reply { answer: Err(Fault::Malformed), facts: Facts::new(RequestId::random()) };
            (reply, proxies::client(peer, &[], &[]))
        }
        Some((seen, length)) => {
            let client = proxies::client(peer, &seen.forwarded_for, &server.trusted_proxies);
            let in_flight = InFlightPlace::default();
            let mut body = Incoming {
                stream,
                watched,
                respond: &respond,
                whole: Vec::new(),
                expect_continue: seen.expect_continue,
                max_body: server.max_body,
                timeout: server.body_timeout,
                malformed: false,
            };
            let head = seen.head(method, path, length, client, &in_flight);
            let reply = {
                let handling = pin!(edge.gateway.handle(&state, &head, &mut body));
                attend(handling, &respond, &in_flight).await
            };
            malformed = body.malformed;
            (reply, client)
        }
    };
    let (head, body) = answer::http2(config, &reply);
    drop(parts); // before the peer is waited for, which may take nothing for long
    send(respond.into_inner(), head, if head_only { Bytes::new() } else { body }, server).await;
    if let Some(access) = &edge.access {
        access.record(edge.outcome(config, &reply, client, arrived));
    }
    Done { malformed, panicked: reply.facts.panicked }
}

/// Drives a request to its end. Where its stream is reset meanwhile, or the connection is gone, it no
/// longer counts against its key's `in_flight`.
async fn attend(
    mut request: Pin<&mut impl Future<Output = Reply>>,
    respond: &Mutex<SendResponse<Bytes>>,
    in_flight: &InFlightPlace,
) -> Reply {
    if let Poll::Ready(reply) = poll!(request.as_mut()) {
        return reply;
    }
    tokio::select! {
        biased;
        reply = request.as_mut() => return reply,
        _ = poll_fn(|cx| respond.lock().poll_reset(cx)) => in_flight.give_back(),
    }
    request.await
}

/// Sends an answer as the peer takes it, each part of it within `write_timeout`.
async fn send(mut respond: SendResponse<Bytes>, head: Response<()>, body: Bytes, server: &Server) {
    // A stream or connection that is gone has nobody who waits.
    let Ok(mut stream) = respond.send_response(head, body.is_empty()) else { return };
    let mut rest = body;
    while !rest.is_empty() {
        let part = rest.split_to(rest.len().min(LEAST_TAKEN));
        let sending = send_part(&mut stream, part, rest.is_empty());
        match tokio::time::timeout(server.write_timeout, sending).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => return stream.send_reset(Reason::CANCEL),
        }
    }
}

/// Sends a part of an answer; whether there is somebody who takes it.
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
