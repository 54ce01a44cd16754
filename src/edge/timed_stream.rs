//! Reads and writes on one connection under deadlines. Waits for reads share one timer, which is reset instead of being
//! made for each. A write has `write_timeout` for each 64 KiB, so that a slow peer gets a long answer and the connection of
//! a peer that takes nothing is reset. Closing is half-close and then a bounded drain, since a close with unread bytes
//! sends a reset that may destroy the last answer. HTTP/2 uses it to close a connection.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout_at};
use tokio_rustls::rustls::ProtocolVersion;

use super::transport::{Transport, set_reset};

/// Bytes read and discarded after an early answer, so that the answer arrives instead of a reset (contract section 1,
/// "Framing").
pub(super) const MAX_DRAIN: u64 = 64 * 1024;

/// The time that this may take.
pub(super) const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Bytes that a peer must take within `write_timeout`.
pub(super) const WRITE_PART: usize = 64 * 1024;

/// Memory that a read takes. A normal request is at most about 600 bytes long, so that several pipelined ones fit.
const READ_BUFFER: usize = 4096;

pub(super) struct TimedStream {
    transport: Transport,
    /// Made at the first wait.
    timer: Option<Pin<Box<Sleep>>>,
    write_timeout: Duration,
    /// A write has failed or timed out: a part may be sent, so nothing may follow.
    has_failed: bool,
}

impl TimedStream {
    pub(super) fn new(transport: Transport, write_timeout: Duration) -> Self {
        TimedStream { transport, timer: None, write_timeout, has_failed: false }
    }

    pub(super) fn into_parts(self) -> (Transport, Duration) {
        (self.transport, self.write_timeout)
    }

    /// Reads what has come, at most `limit` bytes, and waits for it until `deadline`; 0 is the peer's end. While it waits, an
    /// empty buffer has no memory.
    pub(super) async fn read(&mut self, buffer: &mut Vec<u8>, limit: u64, deadline: Instant) -> io::Result<usize> {
        let TimedStream { transport, timer, .. } = self;
        let read = poll_fn(|context| {
            if buffer.capacity() - buffer.len() < READ_BUFFER / 4 {
                buffer.reserve(READ_BUFFER);
            }
            let read = pin!((&mut *transport).take(limit).read_buf(buffer)).poll(context);
            if read.is_pending() {
                if buffer.is_empty() {
                    *buffer = Vec::new();
                }
                if renegotiates(transport) {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                }
            }
            read
        });
        tokio::select! {
            biased;
            read = read => read,
            () = wait_until(timer, deadline) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Writes and flushes everything.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.chunks(WRITE_PART) {
            if self.has_failed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let written = tokio::select! {
                biased;
                written = async {
                    self.transport.write_all(part).await?;
                    self.transport.flush().await
                } => written,
                // First polled when the write has to wait, and the deadline counts from there.
                () = async { sleep(self.write_timeout).await } => Err(io::ErrorKind::TimedOut.into()),
            };
            if written.is_err() {
                self.has_failed = true;
                set_reset(&self.transport);
                return written;
            }
        }
        Ok(())
    }

    /// Closes the connection so that the last answer arrives.
    pub(super) async fn close(mut self) {
        let deadline = Instant::now() + DRAIN_TIME;
        if !self.has_failed {
            let _ = timeout_at(deadline, self.transport.shutdown()).await; // the peer may be gone
        }
        self.drain(MAX_DRAIN, deadline).await;
    }

    /// Reads and discards `limit` bytes; whether they all came in time.
    pub(super) async fn drain(&mut self, limit: u64, deadline: Instant) -> bool {
        let (mut left, mut discarded) = (limit, Vec::new());
        while left > 0 && !self.has_failed {
            discarded.clear();
            let Ok(read @ 1..) = self.read(&mut discarded, left, deadline).await else { return false };
            left -= read as u64;
        }
        !self.has_failed
    }
}

/// Whether the peer asks for another handshake of TLS 1.2: TLS itself has something to send then, the refusal.
fn renegotiates(transport: &Transport) -> bool {
    let Transport::Right(stream) = transport else { return false };
    let session = stream.get_ref().1;
    session.wants_write() && session.protocol_version() == Some(ProtocolVersion::TLSv1_2)
}

/// Waits until `deadline`. The timer is reset only if it would fire too late; one that fires early is set again. So a
/// busy connection pays for its timer about once per `idle_timeout`.
pub(super) async fn wait_until(timer: &mut Option<Pin<Box<Sleep>>>, deadline: Instant) {
    let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
    if timer.deadline() > deadline || timer.is_elapsed() {
        timer.as_mut().reset(deadline);
    }
    loop {
        timer.as_mut().await;
        if Instant::now() >= deadline {
            return;
        }
        timer.as_mut().reset(deadline);
    }
}
