//! Reads a request's body on HTTP/1.1. Nothing is read, and no `100 Continue` is sent, before the gateway asks for the
//! body, which it does only after it has accepted the key. The reader never takes a byte of the next request for one of
//! the body: it reports what became of the body's bytes, and only after one that was read or drained whole does the
//! connection go on. Every wait for bytes is under `body_timeout`.

use std::io;
use std::time::Duration;

use tokio::time::Instant;

use super::chunked::{Chunked, Progress};
use super::head::Framing;
use super::line::{Got, Line};
use super::output::Output;
use crate::gateway::Body;
use crate::wire::Fault;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A request's body on an HTTP/1.1 connection: what came with the header, then what is still to
/// be read.
pub(super) struct Incoming<'c> {
    pub(super) line: &'c mut Line,
    /// Answers to earlier requests that are not sent yet; sent before this body is waited for.
    pub(super) out: &'c mut Output,
    /// What came behind the header.
    pub(super) buffered: &'c [u8],
    /// Where a body is put together that did not come with its header.
    pub(super) spill: &'c mut Vec<u8>,
    pub(super) framing: Framing,
    pub(super) expect_continue: bool,
    pub(super) max_body: usize,
    pub(super) timeout: Duration,
    pub(super) fate: Fate,
}

/// What became of the body's bytes on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Not asked for.
    Untouched,
    /// Read whole. This many of the `buffered` bytes were its own, and what was read beyond it
    /// stands behind the body in `spill`, from here on.
    Whole { of_buffered: usize, spill_surplus_at: Option<usize> },
    /// Cut short, malformed, too large or late: nothing sensible can follow on this connection.
    Lost,
    /// The connection itself is gone.
    Gone,
}

impl Body for Incoming<'_> {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        self.fate = Fate::Lost; // until it is read whole, and if this future is dropped
        match self.framing {
            Framing::Length(length) => match usize::try_from(length) {
                Ok(length) if length <= self.max_body => self.sized(length).await,
                Ok(_) | Err(_) => Err(Fault::BodyTooLarge),
            },
            Framing::Chunked => self.chunked().await,
        }
    }

    async fn will_wait(&mut self) {
        // A peer that does not take them is noticed when its own answer is written.
        let _ = self.send_due().await;
    }
}

impl Incoming<'_> {
    /// How many bytes of an untouched body are still to come, where that is known.
    pub(super) fn still_to_come(&self) -> Option<u64> {
        match self.framing {
            Framing::Length(length) => Some(length.saturating_sub(self.buffered.len() as u64)),
            Framing::Chunked => None,
        }
    }

    async fn sized(&mut self, length: usize) -> Result<&[u8], Fault> {
        if let Some(body) = self.buffered.get(..length) {
            self.fate = Fate::Whole { of_buffered: length, spill_surplus_at: None };
            return Ok(body);
        }
        self.spill.clear();
        self.spill.reserve(length);
        self.spill.extend_from_slice(self.buffered);
        let until = self.before_waiting().await?;
        while self.spill.len() < length {
            let missing = (length - self.spill.len()) as u64;
            let got = self.line.read_up_to(self.spill, missing, until).await;
            self.judge(got)?;
        }
        self.fate = Fate::Whole { of_buffered: self.buffered.len(), spill_surplus_at: None };
        Ok(self.spill)
    }

    async fn chunked(&mut self) -> Result<&[u8], Fault> {
        let mut decoder = Chunked::default();
        self.spill.clear();
        match decoder.feed(self.buffered, self.spill, self.max_body) {
            Progress::Done(used) => {
                self.fate = Fate::Whole { of_buffered: used, spill_surplus_at: None };
                return Ok(self.spill);
            }
            Progress::More => {}
            Progress::TooLarge => return Err(Fault::BodyTooLarge),
            Progress::Malformed => return Err(Fault::Malformed),
        }
        let until = self.before_waiting().await?;
        let mut piece = Vec::with_capacity(2048);
        loop {
            piece.clear();
            let got = self.line.read(&mut piece, until).await;
            self.judge(got)?;
            match decoder.feed(&piece, self.spill, self.max_body) {
                Progress::Done(used) => {
                    let end = self.spill.len();
                    self.spill.extend_from_slice(&piece[used..]);
                    let of_buffered = self.buffered.len();
                    self.fate = Fate::Whole { of_buffered, spill_surplus_at: Some(end) };
                    return Ok(&self.spill[..end]);
                }
                Progress::More => {}
                Progress::TooLarge => return Err(Fault::BodyTooLarge),
                Progress::Malformed => return Err(Fault::Malformed),
            }
        }
    }

    /// Before the first wait for the body: sends what is due, the 100 among it (only here, so
    /// only after the key was accepted), and sets the body's deadline.
    async fn before_waiting(&mut self) -> Result<Instant, Fault> {
        if self.expect_continue && self.buffered.is_empty() {
            self.out.bytes().extend_from_slice(CONTINUE);
        }
        if self.send_due().await.is_err() {
            self.fate = Fate::Gone;
            return Err(Fault::Malformed);
        }
        Ok(Instant::now() + self.timeout)
    }

    /// Sends the answers to earlier requests.
    async fn send_due(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let sent = self.line.write(self.out).await;
        self.out.clear();
        sent
    }

    fn judge(&mut self, got: Got) -> Result<(), Fault> {
        match got {
            Got::Bytes(_) => Ok(()),
            Got::TimedOut => Err(Fault::TooSlow),
            // Ended short of its length: performs nothing. Half a connection may still take the 16.
            Got::End => Err(Fault::Malformed),
            Got::Broken => {
                self.fate = Fate::Gone;
                Err(Fault::Malformed)
            }
        }
    }
}
