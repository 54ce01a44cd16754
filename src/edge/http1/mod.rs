//! One connection of HTTP/1.1, from its first byte to its close: reads requests, has the gateway answer each, gathers
//! the answers to pipelined requests into one write, and decides whether the connection continues. It sets the
//! deadlines for headers and for idleness, and yields to other connections of its thread after a number of answers.
//! After an early answer the connection is drained or closed, so that the next request never starts inside the last
//! one's body.

mod body;
mod header;

use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use super::Edge;
use super::accept::Peer;
use super::answer::ConnectionField;
use super::exchange::ReceivedRequest;
use super::limiter::ConnectionPermit;
use super::proxies;
use super::reset_watch::ResetWatch;
use super::spare_buffers;
use super::timed_stream::{DRAIN_TIME, MAX_DRAIN, ReadResult, TimedStream};
use super::transport::Transport;
use super::write_buffer::WriteBuffer;
use crate::config::Config;
use crate::gateway::State;
use crate::wire::{Fault, Framing};
use body::{BodyState, Http1Body};
use header::{Header, Parsed, parse};

/// Bytes of answers to pipelined requests that are gathered before they are sent: a caller who takes none keeps so many in
/// memory, and a little more.
const MAX_GATHERED: usize = 16 * 1024;

/// Answers after which a connection with more pipelined requests yields to the other connections of its thread, if they
/// are not [`MAX_GATHERED`] bytes before. Without this bound the others would wait for milliseconds.
const YIELD_AFTER: usize = 32;

/// Empty lines that are skipped before a request. Some clients send one; without a bound a peer could send them for
/// ever.
const MAX_EMPTY_LINES: usize = 100;

/// One HTTP/1.1 connection.
pub(super) struct Connection<'e> {
    edge: &'e Edge,
    stream: TimedStream,
    permit: ConnectionPermit,
    reset_watch: ResetWatch,
    peer: Peer,
    /// Bytes read; those before `start` are processed.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes behind `start` that are the beginning of a header.
    searched: usize,
    /// Empty lines skipped since the last request.
    empty_lines: usize,
    /// Answers that are not sent yet.
    out: WriteBuffer,
    /// Memory for a body that did not come with its header.
    body: Vec<u8>,
    /// Answers since the last yield.
    answers: usize,
    /// When the header that is awaited or read began, for its deadline: at accept, later at its first byte.
    header_began: Instant,
    /// When the last bytes between requests came, from which the access log counts.
    arrived: Instant,
    /// When the last request was answered, from which idleness counts.
    answered: Option<Instant>,
    /// The caller asked for the close with its last request, and nothing was read behind that.
    close_requested: bool,
    /// The last answer was sent before its request had come whole.
    answered_early: bool,
}

/// What follows a request on its connection.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The next request, `skip` bytes later, and then in `surplus`, which was read behind the body.
    Request {
        skip: usize,
        surplus: Vec<u8>,
    },
    /// The next request, after this many bytes of the body are drained.
    Drain(u64),
    Close,
    /// The peer has disconnected: nobody reads the answer.
    Disconnected,
}

impl<'e> Connection<'e> {
    pub(super) fn new(edge: &'e Edge, transport: Transport, peer: Peer, permit: ConnectionPermit) -> Self {
        let write_timeout = edge.gateway.state().config.server.write_timeout;
        Connection {
            edge,
            reset_watch: ResetWatch::new(&transport),
            stream: TimedStream::new(transport, write_timeout),
            permit,
            peer,
            buffer: Vec::new(),
            start: 0,
            searched: 0,
            empty_lines: 0,
            out: WriteBuffer::default(),
            body: Vec::new(),
            answers: 0,
            header_began: peer.accepted_at,
            arrived: peer.accepted_at,
            answered: None,
            close_requested: false,
            answered_early: false,
        }
    }

    /// Answers requests until one side ends the connection. Once `over` completes, an idle connection is closed.
    pub(super) async fn run(mut self, mut over: Pin<&mut impl Future<Output = ()>>) {
        loop {
            let more = if self.is_idle() {
                tokio::select! {
                    biased;
                    more = self.read_more() => more,
                    () = &mut over => false,
                }
            } else {
                self.read_more().await
            };
            // Boxed, so that an idle connection needs no memory for answers.
            if !more || !Box::pin(self.answer_and_send()).await {
                break;
            }
        }
        Box::pin(self.close()).await;
    }
}

impl Connection<'_> {
    /// Answers every whole request that was read, and sends the answers. Returns whether the connection continues.
    async fn answer_and_send(&mut self) -> bool {
        self.answer_buffered().await && self.send().await
    }

    /// Answers every whole request that was read. Returns whether the connection continues.
    async fn answer_buffered(&mut self) -> bool {
        loop {
            let state = self.edge.gateway.state();
            let server = &state.config.server;
            // Some clients send an empty line after a POST (RFC 9112, 2.2).
            while self.buffer[self.start..].starts_with(b"\r\n") {
                self.start += 2;
                self.searched = 0;
                self.empty_lines += 1;
            }
            if self.empty_lines > MAX_EMPTY_LINES {
                self.refuse(&state.config, Fault::Malformed);
                return false;
            }
            let from_trusted_proxy = proxies::is_trusted(self.peer.address, &server.trusted_proxies);
            // Taken out of `self`, so that the header can borrow from it while the rest of `self` is used.
            let buffer = std::mem::take(&mut self.buffer);
            let searched = std::mem::take(&mut self.searched);
            let next = match parse(&buffer[self.start..], searched, server.max_header, from_trusted_proxy) {
                Parsed::Partial => {
                    self.searched = buffer.len() - self.start;
                    self.buffer = buffer;
                    return true;
                }
                Parsed::Malformed => {
                    self.refuse(&state.config, Fault::Malformed);
                    Next::Close
                }
                Parsed::Whole(header) => {
                    let rest = &buffer[self.start + header.length..];
                    self.answer_request(&state, &header, rest).await
                }
            };
            drop(state); // before the peer is waited for: a state holds a whole key table
            self.buffer = buffer;
            self.empty_lines = 0;
            match next {
                Next::Request { skip, surplus } => {
                    self.start += skip;
                    if !surplus.is_empty() {
                        // Each body may bring the next header, and the buffer would grow for as long as they do.
                        self.buffer.drain(..self.start);
                        self.start = 0;
                        self.buffer.extend_from_slice(&surplus);
                    }
                }
                Next::Drain(bytes) => {
                    self.start = self.buffer.len();
                    if !self.send().await || !self.stream.drain(bytes, Instant::now() + DRAIN_TIME).await {
                        return false;
                    }
                    self.header_began = Instant::now();
                }
                Next::Close => return false,
                Next::Disconnected => {
                    self.out.clear();
                    return false;
                }
            }
            let is_full = self.out.len() > MAX_GATHERED;
            if is_full && !self.send().await {
                return false;
            }
            self.answers += 1;
            if is_full || self.answers >= YIELD_AFTER {
                self.answers = 0;
                tokio::task::yield_now().await;
                self.header_began = Instant::now();
            }
            self.answered = Some(self.header_began);
        }
    }

    /// Answers one request, behind whose header `rest` was read.
    async fn answer_request(&mut self, state: &Arc<State>, header: &Header<'_>, rest: &[u8]) -> Next {
        let config = &state.config;
        let content_length = match header.framing {
            Some(Framing::Length(length)) => Some(length),
            Some(Framing::Chunked) | None => None,
        };
        let request = ReceivedRequest {
            method: header.method,
            path: header.path,
            fields: header.framing.map(|_| (&header.fields, content_length)),
            peer: self.peer.address,
            arrived: self.arrived,
            began: self.arrived.max(self.header_began),
        };
        let mut body = Http1Body {
            stream: &mut self.stream,
            out: &mut self.out,
            buffered: rest,
            whole: &mut self.body,
            framing: header.framing,
            expect_continue: header.fields.expect_continue,
            max_body: config.server.max_body,
            timeout: config.server.body_timeout,
            state: BodyState::Untouched,
        };
        let mut disconnected = false;
        let on_disconnect = || {
            disconnected = true;
            self.permit.detach(1);
        };
        let answer = self.edge.answer(state, &request, &mut body, self.reset_watch.reset(), on_disconnect).await;
        let next = if disconnected { Next::Disconnected } else { next(body, header) };
        let more_was_read = match &next {
            Next::Request { skip, surplus } => !surplus.is_empty() || rest.len() > skip - header.length,
            Next::Drain(_) | Next::Close => false,
            Next::Disconnected => return next,
        };
        self.header_began = answer.at.moment;
        let may_continue = next != Next::Close && header.keep_alive && !answer.panicked();
        let keep = may_continue && !self.is_last(more_was_read);
        self.answered_early = next == Next::Close;
        self.close_requested = !header.keep_alive && matches!(next, Next::Request { .. }) && !more_was_read;
        let connection = match (keep, header.is_http_11) {
            (false, _) => ConnectionField::Close,
            (true, true) => ConnectionField::Omitted,
            (true, false) => ConnectionField::KeepAlive,
        };
        answer.write_http1(config, connection, header.method == b"HEAD", &mut self.out);
        if keep { next } else { Next::Close }
    }

    /// Whether this answer is the connection's last because the process drains. Requests that were read already
    /// (`more_was_read`) were sent before the caller could know, so they are answered first, until idle connections are
    /// closed.
    fn is_last(&self, more_was_read: bool) -> bool {
        let drain = &self.edge.drain;
        drain.has_begun() && (!more_was_read || drain.closes_idle())
    }

    /// Refuses what is not a request; the connection is closed after it.
    fn refuse(&mut self, config: &Config, fault: Fault) {
        let answer = self.edge.refuse(config, fault, self.peer.address, self.arrived);
        answer.write_http1(config, ConnectionField::Close, false, &mut self.out);
        self.answered_early = true;
    }

    /// Refuses a peer that sent no request at all, and closes the connection.
    pub(super) async fn refuse_and_close(mut self, fault: Fault) {
        let config = self.edge.gateway.state().config.clone();
        self.refuse(&config, fault);
        self.close().await;
    }

    /// Sends the gathered answers. Returns whether the peer took them.
    async fn send(&mut self) -> bool {
        let sent = self.out.is_empty() || self.stream.write(&mut self.out).await.is_ok();
        self.out.clear();
        sent
    }

    /// Whether nothing of a request was read yet.
    fn is_idle(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// Waits for more of the next request until its deadline. Returns whether more came.
    async fn read_more(&mut self) -> bool {
        let (header_timeout, idle_timeout) = {
            let state = self.edge.gateway.state();
            (state.config.server.header_timeout, state.config.server.idle_timeout)
        };
        let idle = self.is_idle();
        self.buffer.drain(..self.start);
        self.start = 0;
        let (begins_header, deadline) = match self.answered {
            Some(answered) if idle => (true, answered + idle_timeout),
            Some(_) | None => (false, self.header_began + header_timeout),
        };
        let read = if idle {
            self.out.give_back();
            self.body = Vec::new();
            self.stream.read_when_idle(&mut self.buffer, deadline).await
        } else {
            if self.buffer.capacity() - self.buffer.len() < spare_buffers::CAPACITY / 4 {
                self.buffer.reserve(spare_buffers::CAPACITY);
            }
            self.stream.read(&mut self.buffer, u64::MAX, deadline).await
        };
        match read {
            ReadResult::Bytes(_) => {
                self.arrived = Instant::now();
                if begins_header {
                    self.header_began = self.arrived;
                }
                true
            }
            ReadResult::TimedOut if !idle => {
                let config = self.edge.gateway.state().config.clone();
                self.refuse(&config, Fault::TooSlow);
                false
            }
            ReadResult::TimedOut | ReadResult::End | ReadResult::Broken => false,
        }
    }

    /// Sends what is due and closes the connection so that it arrives. The caller that asked for the close sends no more
    /// (RFC 9112, 9.6), so its end need not be awaited once it has the answer.
    async fn close(mut self) {
        let has_answers = !self.out.is_empty();
        let sent = !has_answers || self.stream.write_last(&mut self.out).await.is_ok();
        match (sent, has_answers) {
            (true, true) if self.close_requested && self.stream.is_settled() => {}
            (true, true) => self.stream.close(self.answered_early).await,
            (true, false) => self.stream.close_idle().await,
            (false, _) => {} // the peer has not taken it in time, and the connection is reset
        }
    }
}

/// What follows a request, as far as its body decides it.
fn next(body: Http1Body<'_>, header: &Header<'_>) -> Next {
    match (body.state, body.framing) {
        (BodyState::Read { of_buffered, surplus }, _) => Next::Request { skip: header.length + of_buffered, surplus },
        (BodyState::Unusable, _) | (BodyState::Untouched, None | Some(Framing::Chunked)) => Next::Close,
        (BodyState::Broken, _) => Next::Disconnected,
        (BodyState::Untouched, Some(Framing::Length(length))) => {
            match length.saturating_sub(body.buffered.len() as u64) {
                0 => Next::Request { skip: header.length + length as usize, surplus: Vec::new() },
                // A caller that waits for a 100 may or may not send its body after a refusal, so the connection ends.
                left if left <= MAX_DRAIN && !header.fields.expect_continue => Next::Drain(left),
                _ => Next::Close,
            }
        }
    }
}
