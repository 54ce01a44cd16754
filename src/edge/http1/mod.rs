//! One connection of HTTP/1.1, from its first byte to its close: reads requests, has the gateway answer each, gathers
//! the answers to pipelined requests into one write, and decides whether the connection continues. It sets the
//! deadlines for headers and for idleness. After an early answer the connection is drained or closed, so that the next
//! request never starts inside the last one's body.

mod body;
mod header;
mod pass;

use std::convert::Infallible;
use std::io;
use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::Guard;
use pingora::server::ShutdownWatch;
use tokio::time::Instant;

use super::Edge;
use super::accept::Peer;
use super::exchange::ReceivedRequest;
use super::timed_stream::{DRAIN_TIME, TimedStream};
use super::transport::Transport;
use crate::config::is_trusted;
use crate::gateway::State;
use crate::wire::Fault;
use body::{Http1Body, Next};
use header::{Header, Parsed, parse, read_minor_version_as_1};
use pass::HandedOver;

/// Bytes of answers to pipelined requests that are gathered before they are sent: a caller who takes none keeps so many in
/// memory, and a little more.
const MAX_GATHERED: usize = 16 * 1024;

/// Empty lines that are skipped before a request. Some clients send one (RFC 9112, 2.2); without a bound a peer could send them
/// for ever, in place of any request.
const MAX_EMPTY_LINES: usize = 100;

/// The value of `Connection` in a connection's last answer.
const CLOSE: &str = "close";

/// One HTTP/1.1 connection.
pub(super) struct Connection<'e> {
    edge: &'e Edge,
    stream: TimedStream,
    peer: Peer,
    /// Has changed once every answer is to be the last of its connection.
    stop: ShutdownWatch,
    /// Bytes read; those before `start` are processed.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes behind `start` that are the beginning of a header.
    searched: usize,
    /// Empty lines skipped since the last request.
    empty_lines: usize,
    /// Answers that are not sent yet.
    out: Vec<u8>,
    /// Memory for a body that did not come with its header.
    body: Vec<u8>,
    /// From when the deadline of the header that is awaited or read counts: the accept, its first byte, or the end of the
    /// request before it if it came with that one. The turn of its request begins no earlier.
    header_began: Instant,
    /// When the last bytes between requests came, from which the access log counts.
    arrived: Instant,
    /// When the last request was answered, from which idleness counts.
    answered: Option<Instant>,
    /// The request that is to be passed on next.
    handed_over: Option<HandedOver>,
}

/// The connection ends, once its last answer is sent.
struct Over;

impl<'e> Connection<'e> {
    pub(super) fn new(edge: &'e Edge, transport: Transport, peer: Peer, stop: ShutdownWatch) -> Self {
        let write_timeout = edge.gateway.state().config.server.write_timeout;
        Connection {
            edge,
            stream: TimedStream::new(transport, write_timeout),
            peer,
            stop,
            buffer: Vec::new(),
            start: 0,
            searched: 0,
            empty_lines: 0,
            out: Vec::new(),
            body: Vec::new(),
            header_began: peer.accepted_at,
            arrived: peer.accepted_at,
            answered: None,
            handed_over: None,
        }
    }

    /// Answers requests until one side ends the connection. Once `over` completes, an idle connection is closed.
    pub(super) async fn run(mut self, mut over: Pin<&mut impl Future<Output = ()>>) {
        loop {
            let Err(Over) = self.serve(&mut over).await;
            match self.handed_over.take() {
                Some(request) => match Box::pin(self.pass(request)).await {
                    Some(connection) => self = connection,
                    None => return,
                },
                None => return Box::pin(self.close()).await,
            }
        }
    }

    /// Refuses a peer that sent no request at all, and closes the connection.
    pub(super) async fn refuse_and_close(mut self, fault: Fault) {
        self.refuse(fault);
        self.close().await;
    }
}

impl Connection<'_> {
    async fn serve(&mut self, over: &mut Pin<&mut impl Future<Output = ()>>) -> Result<Infallible, Over> {
        if !self.buffer.is_empty() {
            Box::pin(self.answer_buffered()).await?; // came behind a request that was passed on
        }
        loop {
            self.read_more(over).await?;
            // Boxed, so that an idle connection needs no memory for answers.
            Box::pin(self.answer_buffered()).await?;
        }
    }

    /// Waits for more of the next request until its deadline.
    async fn read_more(&mut self, over: &mut Pin<&mut impl Future<Output = ()>>) -> Result<(), Over> {
        let (header_timeout, idle_timeout) = {
            let state = self.edge.gateway.state();
            (state.config.server.header_timeout, state.config.server.idle_timeout)
        };
        self.buffer.drain(..take(&mut self.start));
        let is_idle = self.buffer.is_empty();
        if is_idle {
            (self.buffer, self.out, self.body) = (Vec::new(), Vec::new(), Vec::new());
        }
        let (begins_header, deadline) = match self.answered {
            Some(answered) if is_idle => (true, answered + idle_timeout),
            Some(_) | None => (false, self.header_began + header_timeout),
        };
        let read = tokio::select! {
            biased;
            read = self.stream.read(&mut self.buffer, u64::MAX, deadline) => read,
            () = over, if is_idle => return Err(Over),
        };
        match read {
            Ok(1..) => {
                self.arrived = Instant::now();
                if begins_header {
                    self.header_began = self.arrived;
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !is_idle => Err(self.refuse(Fault::TooSlow)),
            Ok(0) | Err(_) => Err(Over),
        }
    }

    /// Answers every whole request that was read, and sends the answers.
    async fn answer_buffered(&mut self) -> Result<(), Over> {
        let mut answers = 0;
        loop {
            while self.buffer[self.start..].starts_with(b"\r\n") {
                self.start += 2;
                self.searched = 0;
                self.empty_lines += 1;
            }
            if self.empty_lines > MAX_EMPTY_LINES {
                return Err(self.refuse(Fault::Malformed));
            }
            let state = self.edge.gateway.state();
            let server = &state.config.server;
            let from_trusted_proxy = is_trusted(self.peer.address, &server.trusted_proxies);
            // Taken out of `self`, so that the header can borrow from it while the rest of `self` is used.
            let mut buffer = take(&mut self.buffer);
            read_minor_version_as_1(&mut buffer[self.start..]);
            let (unread, searched) = (&buffer[self.start..], take(&mut self.searched));
            let next = match parse(unread, searched, server.max_header, from_trusted_proxy) {
                Parsed::Partial => {
                    self.searched = unread.len();
                    self.buffer = buffer;
                    break;
                }
                Parsed::Malformed => return Err(self.refuse(Fault::Malformed)),
                Parsed::Whole(header) => self.answer_request(state, &header, unread).await?,
            };
            (self.buffer, self.empty_lines) = (buffer, 0);
            self.go_on(next).await?;
            if self.out.len() > MAX_GATHERED {
                self.send().await?;
                self.header_began = Instant::now();
            }
            answers += 1;
        }
        self.send().await?;
        if answers > 1 {
            tokio::task::yield_now().await; // another connection's turn: this one may have sent more requests already
        }
        Ok(())
    }

    /// Goes on to the next request.
    async fn go_on(&mut self, next: Next) -> Result<(), Over> {
        match next {
            Next::Request { skip, surplus } => {
                self.start += skip;
                if !surplus.is_empty() {
                    // Each body may bring the next header, and the buffer would grow for as long as they do.
                    self.buffer.drain(..take(&mut self.start));
                    self.buffer.extend_from_slice(&surplus);
                }
            }
            Next::Drain(bytes) => {
                self.start = self.buffer.len();
                self.send().await?;
                if !self.stream.drain(bytes, Instant::now() + DRAIN_TIME).await {
                    return Err(Over);
                }
                self.header_began = Instant::now();
            }
        }
        Ok(())
    }

    /// Answers one request, with whose header `unread` begins.
    async fn answer_request(
        &mut self,
        state: Guard<Arc<State>>,
        header: &Header<'_>,
        unread: &[u8],
    ) -> Result<Next, Over> {
        let rest = &unread[header.length..];
        let config = &state.config;
        let request = ReceivedRequest {
            method: header.method,
            target: header.target,
            path: header.path,
            fields: header.framing.map(|framing| (&header.fields, framing.length())),
            peer: self.peer.address,
            arrived: self.arrived,
            began: self.arrived.max(self.header_began),
        };
        let mut body = Http1Body {
            stream: &mut self.stream,
            out: &mut self.out,
            header,
            buffered: rest,
            whole: &mut self.body,
            server: &config.server,
            next: Next::unread(header, rest),
        };
        // A caller that hangs up is not watched for.
        let answer = match self.edge.answer(&state, &request, &mut body, std::future::pending()).await {
            Ok(answer) => answer,
            Err(passed) => {
                self.handed_over = Some(HandedOver::new(passed, header, unread));
                return Err(Over);
            }
        };
        let next = body.next.ok_or(Over);
        let more_was_read = matches!(&next, Ok(Next::Request { skip, surplus })
            if !surplus.is_empty() || rest.len() > skip - header.length);
        self.header_began = answer.at;
        self.answered = Some(answer.at);
        let next = match next {
            Ok(_) if answer.panicked() || !header.keep_alive || self.is_last(more_was_read) => Err(Over),
            next => next,
        };
        let connection = match (&next, header.is_http_11) {
            (Err(_), _) => Some(CLOSE),
            (Ok(_), true) => None,
            (Ok(_), false) => Some("keep-alive"), // for HTTP/1.0
        };
        let long = answer.write_http1(config, connection, header.method == b"HEAD", &mut self.out);
        drop(answer);
        drop(state); // before the peer is waited for: a state holds a whole key table
        if let Some(text) = long {
            self.send().await?;
            self.stream.write(text.as_bytes()).await.map_err(|_| Over)?;
            self.header_began = Instant::now();
        }
        next
    }

    /// Whether this answer is the connection's last because the process drains. Requests that were read already
    /// (`more_was_read`) were sent before the caller could know, so they are answered first, until idle connections are
    /// closed.
    fn is_last(&self, more_was_read: bool) -> bool {
        let drains = !matches!(self.stop.has_changed(), Ok(false));
        drains && (!more_was_read || *self.edge.closes_idle.borrow())
    }

    /// Refuses what is not a request; the connection is closed after it.
    fn refuse(&mut self, fault: Fault) -> Over {
        let state = self.edge.gateway.state();
        let answer = self.edge.refuse(&state.config, fault, self.peer.address, self.arrived);
        answer.write_http1(&state.config, Some(CLOSE), false, &mut self.out);
        Over
    }

    /// Sends the gathered answers.
    async fn send(&mut self) -> Result<(), Over> {
        let sent = self.stream.write(&self.out).await;
        self.out.clear();
        sent.map_err(|_| Over)
    }

    /// Sends what is due and closes the connection so that it arrives.
    async fn close(mut self) {
        // A peer that has not taken it in time has its connection reset.
        if self.send().await.is_ok() {
            self.stream.close().await;
        }
    }
}
