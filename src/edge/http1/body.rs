//! Reads a request's body on HTTP/1.1. Nothing is read, and no `100 Continue` is sent, before the gateway asks for the
//! body, which it does only after it has accepted the key. The reader never takes a byte of the next request for one of
//! the body: `BodyState` says what became of the body's bytes, and the connection continues only after a body that was
//! read or drained whole. Every wait for bytes is under `body_timeout`.

use std::io;
use std::time::Duration;

use tokio::time::Instant;

use crate::edge::timed_stream::{ReadResult, TimedStream};
use crate::edge::write_buffer::WriteBuffer;
use crate::gateway::Body;
use crate::wire::{Chunked, Fault, Framing};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Bytes of framing that a chunked body may have besides its data. A normal body has a few dozen. Without a bound, a body
/// of one-byte chunks would cost far more to read than its length.
const MAX_FRAMING: usize = 4096;

/// Bytes of a chunked body read at once.
const CHUNKED_READ: usize = 2048;

/// A request's body on an HTTP/1.1 connection.
pub(super) struct Http1Body<'c> {
    pub(super) stream: &'c mut TimedStream,
    /// Answers to earlier requests, sent before this body is waited for.
    pub(super) out: &'c mut WriteBuffer,
    /// What was read behind the header.
    pub(super) buffered: &'c [u8],
    /// Holds a body that did not come with its header in one piece.
    pub(super) whole: &'c mut Vec<u8>,
    /// `None`: the header was refused, so the body is never read.
    pub(super) framing: Option<Framing>,
    pub(super) expect_continue: bool,
    pub(super) max_body: usize,
    pub(super) timeout: Duration,
    pub(super) state: BodyState,
}

/// What became of the body's bytes on the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyState {
    /// Nothing of it was read.
    Untouched,
    /// Read whole. This many of the `buffered` bytes belonged to it, and `surplus` was read behind its end.
    Read { of_buffered: usize, surplus: Vec<u8> },
    /// Cut short, malformed, too large or late: the connection cannot continue.
    Unusable,
    /// The connection is broken.
    Broken,
}

impl Body for Http1Body<'_> {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        self.state = BodyState::Unusable; // until it is read whole, and if this future is dropped
        match self.framing {
            Some(Framing::Length(length)) => match usize::try_from(length) {
                Ok(length) if length <= self.max_body => self.sized(length).await,
                Ok(_) | Err(_) => Err(Fault::BodyTooLarge),
            },
            Some(Framing::Chunked) => self.chunked().await,
            None => Err(Fault::Malformed),
        }
    }

    async fn flush_answers(&mut self) -> Result<(), Fault> {
        if self.send_earlier_answers().await.is_err() {
            // A part of them may be sent, and what follows must not be taken for the rest.
            self.state = BodyState::Broken;
            return Err(Fault::Malformed);
        }
        Ok(())
    }
}

impl Http1Body<'_> {
    async fn sized(&mut self, length: usize) -> Result<&[u8], Fault> {
        if let Some(body) = self.buffered.get(..length) {
            self.state = BodyState::Read { of_buffered: length, surplus: Vec::new() };
            return Ok(body);
        }
        self.whole.clear();
        self.whole.reserve(length);
        self.whole.extend_from_slice(self.buffered);
        let deadline = self.before_waiting().await?;
        while self.whole.len() < length {
            let missing = (length - self.whole.len()) as u64;
            let read = self.stream.read(self.whole, missing, deadline).await;
            self.check(read)?;
        }
        self.state = BodyState::Read { of_buffered: self.buffered.len(), surplus: Vec::new() };
        Ok(self.whole)
    }

    async fn chunked(&mut self) -> Result<&[u8], Fault> {
        let mut decoder = Chunked::new(MAX_FRAMING);
        self.whole.clear();
        if let Some(used) = decoder.feed(self.buffered, self.whole, self.max_body)? {
            self.state = BodyState::Read { of_buffered: used, surplus: Vec::new() };
            return Ok(self.whole);
        }
        let deadline = self.before_waiting().await?;
        let mut piece = Vec::with_capacity(CHUNKED_READ);
        loop {
            piece.clear();
            let read = self.stream.read(&mut piece, CHUNKED_READ as u64, deadline).await;
            self.check(read)?;
            if let Some(used) = decoder.feed(&piece, self.whole, self.max_body)? {
                self.state = BodyState::Read { of_buffered: self.buffered.len(), surplus: piece.split_off(used) };
                return Ok(self.whole);
            }
        }
    }

    /// Sends what is due before the first wait for the body, and returns the body's deadline. The `100` is sent here,
    /// so only after the key was accepted.
    async fn before_waiting(&mut self) -> Result<Instant, Fault> {
        if self.expect_continue && self.buffered.is_empty() {
            self.out.bytes().extend_from_slice(CONTINUE);
        }
        self.flush_answers().await?;
        Ok(Instant::now() + self.timeout)
    }

    async fn send_earlier_answers(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let sent = self.stream.write(self.out).await;
        self.out.clear();
        sent
    }

    fn check(&mut self, read: ReadResult) -> Result<(), Fault> {
        match read {
            ReadResult::Bytes(_) => Ok(()),
            ReadResult::TimedOut => Err(Fault::TooSlow),
            // A body that ends short of its length performs nothing. The peer may still read the 16.
            ReadResult::End => Err(Fault::Malformed),
            ReadResult::Broken => {
                self.state = BodyState::Broken;
                Err(Fault::Malformed)
            }
        }
    }
}
