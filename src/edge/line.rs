//! Reads and writes on one connection under a deadline, with one timer that is set anew instead of being made for each
//! wait. A write has `write_timeout` for each 64 KiB, so that a slow peer gets a long answer and a peer that takes
//! nothing is given up. Closing is half-close and then a bounded drain, since a close with unread bytes sends a reset
//! that may destroy the last answer. HTTP/2 uses it to close a connection.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, Sleep};

use super::output::Output;
use super::pipe::Pipe;

/// After an early answer: the most that is read and thrown away, so that the answer arrives
/// instead of a reset (contract section 1, "Framing").
pub(super) const MAX_DRAIN: u64 = 64 * 1024;

/// And how long that may take.
pub(super) const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Bytes that a peer must take within `write_timeout`: for each so many its time begins anew, so that a slow one has
/// a long answer whole, and one that takes next to nothing is not waited for.
pub(super) const LEAST_TAKEN: usize = 64 * 1024;

/// One connection's pipe with its one timer, set anew rather than made anew for each wait.
pub(super) struct Line {
    pipe: Pipe,
    timer: Pin<Box<Sleep>>,
    write_timeout: Duration,
}

/// How a wait for bytes ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Got {
    Bytes(usize),
    /// The peer will send no more.
    End,
    TimedOut,
    Broken,
}

impl Line {
    pub(super) fn new(pipe: Pipe, write_timeout: Duration) -> Self {
        let timer = Box::pin(tokio::time::sleep(Duration::from_secs(60)));
        Line { pipe, timer, write_timeout }
    }

    /// Reads what is there, at most to `buffer`'s capacity, waiting no longer than `until`.
    pub(super) async fn read(&mut self, buffer: &mut Vec<u8>, until: Instant) -> Got {
        let Line { pipe, timer, .. } = self;
        tokio::select! {
            biased;
            read = pipe.read_buf(buffer) => got(read),
            () = expired(timer, until) => Got::TimedOut,
        }
    }

    /// Reads at most `limit` bytes more into `buffer`.
    pub(super) async fn read_up_to(&mut self, buffer: &mut Vec<u8>, limit: u64, until: Instant) -> Got {
        let Line { pipe, timer, .. } = self;
        tokio::select! {
            biased;
            read = async { (&mut *pipe).take(limit).read_buf(buffer).await } => got(read),
            () = expired(timer, until) => Got::TimedOut,
        }
    }

    /// Writes and flushes everything, in one write where the peer takes it.
    pub(super) async fn write(&mut self, output: &mut Output) -> io::Result<()> {
        while !output.is_empty() {
            self.write_part(output).await?;
        }
        Ok(())
    }

    /// Writes and flushes at most [`LEAST_TAKEN`] bytes.
    async fn write_part(&mut self, output: &mut Output) -> io::Result<()> {
        let Line { pipe, timer, write_timeout } = self;
        let write = async {
            let mut left = LEAST_TAKEN;
            while left > 0 && !output.is_empty() {
                let taken = match output.only_piece(left) {
                    Some(piece) => pipe.write(piece).await?,
                    None => pipe.write_vectored(&output.pieces(left)).await?,
                };
                if taken == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                output.advance(taken);
                left -= taken;
            }
            pipe.flush().await
        };
        // The deadline counts from when the write first has to wait, which is when it is polled.
        let late = async {
            expired(timer, Instant::now() + *write_timeout).await;
        };
        tokio::select! {
            biased;
            written = write => written,
            () = late => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Ends the connection so that what was answered arrives: half-close, then read on for a
    /// while, since a close with bytes unread sends a reset that may overtake the answer.
    pub(super) async fn close(mut self) {
        let until = Instant::now() + DRAIN_TIME;
        if tokio::time::timeout_at(until, self.pipe.shutdown()).await.is_err() {
            return;
        }
        self.drain(MAX_DRAIN, until).await;
    }

    /// Ends a connection on which no answer is due. Through TLS the peer is told, so that it knows an end from
    /// a cut (RFC 8446, 6.1); in the clear the close says it.
    pub(super) async fn part(mut self) {
        if let Pipe::Tls(_) = self.pipe {
            let until = Instant::now() + DRAIN_TIME;
            let _ = tokio::time::timeout_at(until, self.pipe.shutdown()).await; // it may be gone
        }
    }

    /// Reads `limit` bytes and throws them away; whether they all came in time.
    pub(super) async fn drain(&mut self, limit: u64, until: Instant) -> bool {
        let mut left = limit;
        let mut scratch = Vec::with_capacity(4096);
        while left > 0 {
            scratch.clear();
            match self.read_up_to(&mut scratch, left, until).await {
                Got::Bytes(n) => left -= n as u64,
                Got::End | Got::TimedOut | Got::Broken => return false,
            }
        }
        true
    }
}

fn got(read: io::Result<usize>) -> Got {
    match read {
        Ok(0) => Got::End,
        Ok(n) => Got::Bytes(n),
        Err(_) => Got::Broken,
    }
}

/// Waits until `until`. The timer is touched only where it would ring too late: one that rings
/// early is set again, so a connection that is busy pays for its timer once an idle time.
pub(super) async fn expired(timer: &mut Pin<Box<Sleep>>, until: Instant) {
    if timer.deadline() > until || timer.is_elapsed() {
        timer.as_mut().reset(until);
    }
    loop {
        timer.as_mut().await;
        if Instant::now() >= until {
            return;
        }
        timer.as_mut().reset(until);
    }
}
