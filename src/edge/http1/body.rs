//! Reads a request's body on HTTP/1.1. Nothing is read, and no `100 Continue` is sent, before the gateway asks for the
//! body, which it does only after it has accepted the key. The reader never takes a byte of the next request for one of
//! the body: `Next` says where that begins, and the connection continues only after a body that was
//! read or drained whole. Every wait for bytes is under `body_timeout`.

use std::io;

use tokio::time::Instant;

use super::header::Header;
use crate::config::Server;
use crate::edge::timed_stream::{MAX_DRAIN, TimedStream};
use crate::gateway::Body;
use crate::wire::{Chunked, Fault, Framing};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Bytes of framing that a chunked body may have besides its data. A normal body has a few dozen. Without a bound, a body
/// of one-byte chunks would cost far more to read than its length.
const MAX_FRAMING: usize = 4096;

/// Bytes of a chunked body read at once.
const CHUNKED_READ: u64 = 2048;

/// A request's body on an HTTP/1.1 connection.
pub(super) struct Http1Body<'c> {
    pub(super) stream: &'c mut TimedStream,
    /// Answers to earlier requests, sent before this body is waited for.
    pub(super) out: &'c mut Vec<u8>,
    pub(super) header: &'c Header<'c>,
    /// What was read behind the header.
    pub(super) buffered: &'c [u8],
    /// Holds a body that did not come with its header in one piece.
    pub(super) whole: &'c mut Vec<u8>,
    pub(super) server: &'c Server,
    /// What follows, as far as the body decides it. `None`: it was cut short, malformed, too large or late, or is of unknown
    /// length, so the connection cannot continue.
    pub(super) next: Option<Next>,
}

/// What follows a request on its connection.
#[derive(Debug)]
pub(super) enum Next {
    /// The next request, `skip` bytes later, and then in `surplus`, which was read behind the body.
    Request { skip: usize, surplus: Vec<u8> },
    /// The next request, after this many bytes of the body are drained.
    Drain(u64),
}

impl Next {
    /// What follows a request whose body is not read.
    pub(super) fn unread(header: &Header<'_>, rest: &[u8]) -> Option<Next> {
        let length = header.framing?.length()?;
        match length.saturating_sub(rest.len() as u64) {
            0 => Some(Next::Request { skip: header.length + length as usize, surplus: Vec::new() }),
            // A caller that waits for a 100 may or may not send its body after a refusal, so the connection ends.
            left if left <= MAX_DRAIN && !header.fields.expect_continue => Some(Next::Drain(left)),
            _ => None,
        }
    }
}

impl Body for Http1Body<'_> {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        self.next = None; // until it is read whole, and if this future is dropped
        match self.header.framing {
            Some(Framing::Length(length)) => match usize::try_from(length) {
                Ok(length) if length <= self.server.max_body => self.sized(length).await,
                Ok(_) | Err(_) => Err(Fault::BodyTooLarge),
            },
            Some(Framing::Chunked) => self.chunked().await,
            None => Err(Fault::Malformed),
        }
    }
}

impl Http1Body<'_> {
    /// It was read whole. So many of the `buffered` bytes belonged to it, and `surplus` was read behind its end.
    fn was_read(&mut self, of_buffered: usize, surplus: Vec<u8>) {
        self.next = Some(Next::Request { skip: self.header.length + of_buffered, surplus });
    }

    async fn sized(&mut self, length: usize) -> Result<&[u8], Fault> {
        if let Some(body) = self.buffered.get(..length) {
            self.was_read(length, Vec::new());
            return Ok(body);
        }
        self.whole.clear();
        self.whole.extend_from_slice(self.buffered);
        let deadline = self.before_waiting().await?;
        while self.whole.len() < length {
            let missing = (length - self.whole.len()) as u64;
            is_more(self.stream.read(self.whole, missing, deadline).await)?;
        }
        self.was_read(self.buffered.len(), Vec::new());
        Ok(self.whole)
    }

    async fn chunked(&mut self) -> Result<&[u8], Fault> {
        let mut decoder = Chunked::new(MAX_FRAMING);
        self.whole.clear();
        if let Some(used) = decoder.feed(self.buffered, self.whole, self.server.max_body)? {
            self.was_read(used, Vec::new());
            return Ok(self.whole);
        }
        let deadline = self.before_waiting().await?;
        let mut piece = Vec::new();
        loop {
            piece.clear();
            is_more(self.stream.read(&mut piece, CHUNKED_READ, deadline).await)?;
            if let Some(used) = decoder.feed(&piece, self.whole, self.server.max_body)? {
                self.was_read(self.buffered.len(), piece.split_off(used));
                return Ok(self.whole);
            }
        }
    }

    /// Sends what is due before the first wait for the body, and returns the body's deadline. The `100` is sent here,
    /// so only after the key was accepted.
    async fn before_waiting(&mut self) -> Result<Instant, Fault> {
        if self.header.fields.expect_continue && self.buffered.is_empty() {
            self.out.extend_from_slice(CONTINUE);
        }
        self.stream.write(self.out).await.map_err(|_| Fault::Malformed)?;
        self.out.clear();
        Ok(Instant::now() + self.server.body_timeout)
    }
}

/// Whether more of the body came. One that ends short of its length performs nothing; the peer may still read the 16.
fn is_more(read: io::Result<usize>) -> Result<(), Fault> {
    match read {
        Ok(1..) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(Fault::TooSlow),
        Ok(0) | Err(_) => Err(Fault::Malformed),
    }
}
