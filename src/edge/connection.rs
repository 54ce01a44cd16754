//! One connection of HTTP/1.1, from its first byte to its close: reads requests, has the gateway answer each, gathers
//! the answers of pipelined requests into one write, and decides whether the connection goes on. It sets the deadlines
//! for headers and for idleness, and lets other connections of its thread go first after a number of answers. After an
//! early answer the connection is drained or closed, so that the next request never starts inside the last one's body.

use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::time::Instant;

use super::Edge;
use super::answer::{self, Shape};
use super::arrival::Arrival;
use super::body::{Fate, Incoming};
use super::guests::Guest;
use super::hang_up::HangUp;
use super::head::{Framing, Parsed, RequestHead, parse};
use super::line::{DRAIN_TIME, Got, Line, MAX_DRAIN};
use super::output::Output;
use super::pipe::Pipe;
use super::proxies;
use crate::config::Config;
use crate::gateway::{Facts, Reply, State};
use crate::keys::InFlightPlace;
use crate::telemetry::Outcome;
use crate::wire::{Fault, RequestId};

/// What a connection reads into, and keeps while it idles. The longest honest request is about
/// 600 bytes; several pipelined ones fit.
const READ_BUFFER: usize = 4096;

/// Answers to pipelined requests that are gathered before they are sent.
const MAX_GATHERED: usize = 64 * 1024;

/// Answers, and bytes of answers, after which a connection whose next requests are there already lets the
/// others of its thread go first: with a whole socket's room of them in one go, those would wait for
/// milliseconds.
const TURN: usize = 32;
const TURN_BYTES: usize = MAX_GATHERED;

/// Empty lines that are read past before a request: without a bound they would be read for ever, and
/// for nothing. Clients with that habit send one.
const MAX_EMPTY_LINES: usize = 100;

/// One HTTP/1.1 connection.
pub(super) struct Connection<'e> {
    edge: &'e Edge,
    line: Line,
    place: Guest,
    hang_up: HangUp,
    peer: Option<IpAddr>,
    /// Bytes read; those before `start` are done with.
    buffer: Vec<u8>,
    start: usize,
    /// Empty lines read past since the last request.
    empty_lines: usize,
    /// Answers not sent yet, and what the access log is to be told once they are.
    out: Output,
    outcomes: Vec<Outcome>,
    spill: Vec<u8>,
    /// Answers made, and bytes of them sent, in this turn.
    turn: usize,
    turn_bytes: usize,
    /// When the header now awaited or read began, for its deadline: at accept, then at its first byte.
    header_began: Instant,
    /// When the last bytes between requests came, from which the access log counts.
    arrived: Instant,
    /// When the last request was answered, from which idleness counts.
    answered: Instant,
    /// Whether a request was answered here before.
    reused: bool,
}

/// What is to come after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The next request, `skip` bytes on.
    Request {
        skip: usize,
    },
    /// The same, once this many bytes of the last body were read past.
    Drain(u64),
    /// The next request begins in what the body's reader read too much.
    Surplus {
        at: usize,
    },
    Close,
    /// The peer is gone; there is nobody to answer.
    Gone,
}

impl<'e> Connection<'e> {
    pub(super) fn new(edge: &'e Edge, pipe: Pipe, arrival: Arrival, place: Guest) -> Self {
        let write_timeout = edge.gateway.state().config.server.write_timeout;
        Connection {
            edge,
            hang_up: HangUp::of(pipe.socket()),
            line: Line::new(pipe, write_timeout),
            place,
            peer: arrival.peer,
            buffer: Vec::with_capacity(READ_BUFFER),
            start: 0,
            empty_lines: 0,
            out: Output::default(),
            outcomes: Vec::new(),
            spill: Vec::new(),
            turn: 0,
            turn_bytes: 0,
            header_began: arrival.at,
            arrived: arrival.at,
            answered: arrival.at,
            reused: false,
        }
    }

    /// Answers what comes until one side ends it; once `over` is there, it idles no more.
    pub(super) async fn run(mut self, mut over: Pin<&mut impl Future<Output = ()>>) {
        loop {
            let goes_on = self.answer_what_is_there().await;
            if !goes_on || !self.send().await {
                break;
            }
            let more = if self.is_idle() {
                tokio::select! {
                    biased;
                    more = self.read_more() => more,
                    () = &mut over => false,
                }
            } else {
                self.read_more().await
            };
            if !more {
                break;
            }
        }
        self.end().await;
    }
}

impl Connection<'_> {
    /// Answers every whole request that has been read. Whether the connection goes on.
    async fn answer_what_is_there(&mut self) -> bool {
        loop {
            let state = self.edge.gateway.state();
            let server = &state.config.server;
            // An empty line before a request is some clients' habit after a POST (RFC 9112, 2.2).
            while self.buffer[self.start..].starts_with(b"\r\n") {
                self.start += 2;
                self.empty_lines += 1;
            }
            if self.empty_lines > MAX_EMPTY_LINES {
                self.refuse(&state.config, Fault::Malformed);
                return false;
            }
            let want_forwarded = proxies::is_trusted(self.peer, &server.trusted_proxies);
            // Taken out, so that the header may borrow from it while the rest of `self` is used.
            let buffer = std::mem::take(&mut self.buffer);
            let next = match parse(&buffer[self.start..], server.max_header, want_forwarded) {
                Parsed::Partial => {
                    self.buffer = buffer;
                    return true;
                }
                Parsed::Malformed => {
                    self.refuse(&state.config, Fault::Malformed);
                    Next::Close
                }
                Parsed::Whole(head) => {
                    let rest = &buffer[self.start + head.length..];
                    self.one(&state, &head, rest).await
                }
            };
            self.buffer = buffer;
            self.empty_lines = 0;
            self.reused = true;
            match next {
                Next::Request { skip } => self.start += skip,
                Next::Surplus { at } => {
                    self.buffer.clear();
                    self.buffer.extend_from_slice(&self.spill[at..]);
                    self.start = 0;
                }
                Next::Drain(bytes) => {
                    self.start = self.buffer.len();
                    if !self.send().await || !self.line.drain(bytes, Instant::now() + DRAIN_TIME).await {
                        return false;
                    }
                }
                Next::Close => return false,
                Next::Gone => {
                    self.out.clear();
                    return false;
                }
            }
            if self.out.len() > MAX_GATHERED && !self.send().await {
                return false;
            }
            self.let_others_go_first().await;
            self.answered = Instant::now();
            self.header_began = self.answered;
        }
    }

    /// Ends this turn if it has been long enough.
    async fn let_others_go_first(&mut self) {
        self.turn += 1;
        if self.turn >= TURN || self.turn_bytes >= TURN_BYTES {
            (self.turn, self.turn_bytes) = (0, 0);
            tokio::task::yield_now().await;
        }
    }

    /// Answers one request whose header is `head` and behind which `rest` was read.
    async fn one(&mut self, state: &Arc<State>, head: &RequestHead<'_>, rest: &[u8]) -> Next {
        let config = &state.config;
        let head_only = head.method == b"HEAD";
        if config.server.is_health(head.method, head.path) {
            let whole = head.framing == Some(Framing::Length(0));
            let keep = whole && head.keep_alive && !self.is_last(!rest.is_empty());
            answer::write_health(self.edge.draining.ends_service(), shape(keep, head, head_only), self.out.bytes());
            return if keep { Next::Request { skip: head.length } } else { Next::Close };
        }
        let Some(framing) = head.framing else {
            self.refuse(config, Fault::Malformed);
            return Next::Close;
        };
        let length = match framing {
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
        };
        let client = proxies::client(self.peer, &head.seen.forwarded_for, &config.server.trusted_proxies);
        let in_flight = InFlightPlace::default();
        let request = head.seen.head(head.method, head.path, length, client, &in_flight);
        let mut body = Incoming {
            line: &mut self.line,
            out: &mut self.out,
            buffered: rest,
            spill: &mut self.spill,
            framing,
            expect_continue: head.seen.expect_continue,
            max_body: config.server.max_body,
            timeout: config.server.body_timeout,
            fate: Fate::Untouched,
        };
        let (reply, has_hung_up) = {
            let mut request = pin!(self.edge.gateway.handle(state, &request, &mut body));
            match self.hang_up.attend(request.as_mut()).await {
                Ok(reply) => (reply, false),
                Err(()) => {
                    // Nobody waits for the answer, but what was asked goes on: others may have joined the
                    // question, and a write is to end.
                    in_flight.give_back();
                    self.place.detach(1);
                    (request.await, true)
                }
            }
        };
        if has_hung_up {
            self.record(config, &reply, client);
            return Next::Gone;
        }
        let next = after(&body, head);
        if next == Next::Gone {
            return next;
        }
        let goes_on = next != Next::Close && !reply.facts.panicked;
        let more = match next {
            Next::Request { skip } => rest.len() > skip - head.length,
            Next::Surplus { .. } => true,
            Next::Drain(_) | Next::Close | Next::Gone => false,
        };
        let keep = goes_on && head.keep_alive && !self.is_last(more);
        answer::write(config, &reply, shape(keep, head, head_only), &mut self.out);
        self.record(config, &reply, client);
        if keep { next } else { Next::Close }
    }

    /// Whether the answer at hand is to be the connection's last, as the process ends. Requests that
    /// came with this one (`more`) were sent before their caller could know, so they are answered
    /// first, unless they never cease.
    fn is_last(&self, more: bool) -> bool {
        let draining = &self.edge.draining;
        draining.has_begun() && (!more || draining.idle_is_over())
    }

    /// Refuses what was not even a request; the connection is closed after it.
    fn refuse(&mut self, config: &Config, fault: Fault) {
        let reply = Reply { answer: Err(fault), facts: Facts::new(RequestId::random()) };
        let shape = Shape { close: true, say_keep_alive: false, head_only: false };
        answer::write(config, &reply, shape, &mut self.out);
        self.record(config, &reply, proxies::client(self.peer, &[], &[]));
    }

    /// Refuses a peer that spoke no request at all, and closes the connection.
    pub(super) async fn refuse_and_end(mut self, fault: Fault) {
        let config = self.edge.gateway.state().config.clone();
        self.refuse(&config, fault);
        self.end().await;
    }

    /// Keeps what the access log is to be told once the answer is sent.
    fn record(&mut self, config: &Config, reply: &Reply, client: IpAddr) {
        if self.edge.access.is_some() {
            self.outcomes.push(self.edge.outcome(config, reply, client, self.arrived));
        }
    }

    /// Sends the answers gathered. Whether the peer took them.
    async fn send(&mut self) -> bool {
        self.turn_bytes += self.out.len();
        let sent = self.out.is_empty() || self.line.write(&mut self.out).await.is_ok();
        self.out.clear();
        if let Some(access) = &self.edge.access {
            self.outcomes.drain(..).for_each(|outcome| access.record(outcome));
        }
        sent
    }

    /// Nothing of a request has been read yet.
    fn is_idle(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// Waits for more of the next request, no longer than its deadline. Whether more came.
    async fn read_more(&mut self) -> bool {
        let (header_timeout, idle_timeout) = {
            let state = self.edge.gateway.state();
            (state.config.server.header_timeout, state.config.server.idle_timeout)
        };
        let idle = self.is_idle();
        self.buffer.drain(..self.start);
        self.start = 0;
        if idle {
            // What a large request or answer needed is given back while the connection idles.
            self.buffer.shrink_to(READ_BUFFER);
            self.out.shrink_to(READ_BUFFER);
            self.spill.shrink_to(READ_BUFFER);
        }
        if self.buffer.capacity() - self.buffer.len() < READ_BUFFER / 4 {
            self.buffer.reserve(READ_BUFFER);
        }
        let until = if idle && self.reused { self.answered + idle_timeout } else { self.header_began + header_timeout };
        match self.line.read(&mut self.buffer, until).await {
            Got::Bytes(_) => {
                self.arrived = Instant::now();
                if idle && self.reused {
                    self.header_began = self.arrived;
                }
                true
            }
            Got::TimedOut if !idle => {
                let config = self.edge.gateway.state().config.clone();
                self.refuse(&config, Fault::TooSlow);
                false
            }
            Got::TimedOut | Got::End | Got::Broken => false,
        }
    }

    /// Sends what is due and closes so that it arrives.
    async fn end(mut self) {
        let answered = !self.out.is_empty();
        match (self.send().await, answered) {
            (true, true) => self.line.close().await,
            (true, false) => self.line.part().await,
            (false, _) => {}
        }
    }
}

/// What comes after a request's answer, as far as its body decides it.
fn after(body: &Incoming<'_>, head: &RequestHead<'_>) -> Next {
    match body.fate {
        Fate::Whole { spill_surplus_at: Some(at), .. } => Next::Surplus { at },
        Fate::Whole { of_buffered, spill_surplus_at: None } => Next::Request { skip: head.length + of_buffered },
        Fate::Lost => Next::Close,
        Fate::Gone => Next::Gone,
        // Refused before the body was asked for. Whether a caller that awaits a 100 sends its body
        // after a refusal is its own choice: the connection cannot go on.
        Fate::Untouched => match (body.still_to_come(), body.framing) {
            (Some(0), Framing::Length(length)) => Next::Request { skip: head.length + length as usize },
            (Some(left), _) if left <= MAX_DRAIN && !head.seen.expect_continue => Next::Drain(left),
            (Some(_) | None, _) => Next::Close,
        },
    }
}

fn shape(keep: bool, head: &RequestHead<'_>, head_only: bool) -> Shape {
    // A kept HTTP/1.0 connection must be told so; one of HTTP/1.1 is kept by being silent.
    Shape { close: !keep, say_keep_alive: keep && !head.is_http_11, head_only }
}
