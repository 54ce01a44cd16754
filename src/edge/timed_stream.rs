//! Reads and writes on one connection under deadlines, with one timer that is reset instead of being made for each
//! wait. A write has `write_timeout` for each 64 KiB, so that a slow peer gets a long answer and the connection of a peer that
//! takes nothing is reset. Closing is half-close and then a bounded drain, since a close with unread bytes sends a reset
//! that may destroy the last answer; then what was sent is waited for, within the bounds of a write. HTTP/2 uses it to close a
//! connection.

use std::future::poll_fn;
use std::io::{self, Write};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep_until, timeout, timeout_at};
use tokio_rustls::rustls::ProtocolVersion;

use super::spare_buffers;
use super::transport::{Transport, socket_mut};
use super::write_buffer::WriteBuffer;

/// Bytes read and discarded after an early answer, so that the answer arrives instead of a reset (contract section 1,
/// "Framing").
pub(super) const MAX_DRAIN: u64 = 64 * 1024;

/// The time that this may take.
pub(super) const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Bytes that a peer must take within `write_timeout`.
pub(super) const WRITE_PART: usize = 64 * 1024;

/// The most bytes of a TLS record (RFC 8446, 5.1).
const MAX_RECORD: usize = 16 * 1024;

/// Bytes read at once when they are discarded.
const DISCARD_BUFFER: usize = 4096;

pub(super) struct TimedStream {
    transport: Transport,
    /// Made at the first wait.
    timer: Option<Pin<Box<Sleep>>>,
    write_timeout: Duration,
    /// A write has failed or timed out: nothing more is sent.
    has_failed: bool,
}

/// How a wait for bytes ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadResult {
    Bytes(usize),
    /// The peer will send no more.
    End,
    TimedOut,
    Broken,
}

impl TimedStream {
    pub(super) fn new(transport: Transport, write_timeout: Duration) -> Self {
        TimedStream { transport, timer: None, write_timeout, has_failed: false }
    }

    /// Reads what has come, at most `limit` bytes and `buffer`'s spare capacity, and waits for it until `deadline`.
    pub(super) async fn read(&mut self, buffer: &mut Vec<u8>, limit: u64, deadline: Instant) -> ReadResult {
        let TimedStream { transport, timer, .. } = self;
        read_until(async { transport.take(limit).read_buf(buffer).await }, timer, deadline).await
    }

    /// As [`TimedStream::read`], into an empty buffer that has memory only once something has come.
    pub(super) async fn read_when_idle(&mut self, buffer: &mut Vec<u8>, deadline: Instant) -> ReadResult {
        let TimedStream { transport, timer, .. } = self;
        let read = poll_fn(|context| {
            if buffer.capacity() == 0 {
                *buffer = spare_buffers::take();
            }
            let read = pin!(transport.read_buf(buffer)).poll(context);
            if read.is_pending() {
                spare_buffers::give_back(buffer);
                if renegotiates(transport) {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                }
            }
            read
        });
        read_until(read, timer, deadline).await
    }

    /// Writes and flushes everything, in one write if the peer takes it.
    pub(super) async fn write(&mut self, output: &mut WriteBuffer) -> io::Result<()> {
        while !output.is_empty() {
            self.write_part(output).await?;
        }
        Ok(())
    }

    /// Writes the last bytes of the connection. Through TLS the close_notify goes out in the same segment, if they are
    /// not many.
    pub(super) async fn write_last(&mut self, output: &mut WriteBuffer) -> io::Result<()> {
        if let Transport::Right(stream) = &mut self.transport
            && let Some(slice) = output.single_slice(MAX_RECORD)
            && slice.len() == output.len()
        {
            let (_, tls) = stream.get_mut();
            let taken = tls.writer().write(slice)?;
            output.advance(taken);
            if output.is_empty() {
                tls.send_close_notify();
                return self.write_part(output).await;
            }
        }
        self.write(output).await
    }

    /// Writes and flushes at most [`WRITE_PART`] bytes.
    async fn write_part(&mut self, output: &mut WriteBuffer) -> io::Result<()> {
        let TimedStream { transport, timer, write_timeout, has_failed } = self;
        let write = async {
            let mut left = WRITE_PART;
            while left > 0 && !output.is_empty() {
                let taken = match output.single_slice(left) {
                    Some(slice) => transport.write(slice).await?,
                    None => transport.write_vectored(&output.io_slices(left)).await?,
                };
                if taken == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                output.advance(taken);
                left -= taken;
            }
            transport.flush().await
        };
        // This is first polled when the write has to wait, and the deadline counts from there.
        let timed_out = async {
            wait_until_with(timer, Instant::now() + *write_timeout).await;
        };
        let written = tokio::select! {
            biased;
            written = write => written,
            () = timed_out => Err(io::ErrorKind::TimedOut.into()),
        };
        *has_failed = written.is_err();
        written
    }

    /// Closes the connection so that the last answer arrives. `is_early`: it was sent before its request had come whole, or
    /// because of a bound; it has [`DRAIN_TIME`] then, and else `write_timeout` for each 64 KiB.
    pub(super) async fn close(mut self, is_early: bool) {
        if self.has_failed {
            return;
        }
        let drained_by = Instant::now() + DRAIN_TIME;
        let patience = if is_early { DRAIN_TIME } else { self.write_timeout };
        if !matches!(timeout(patience, self.transport.shutdown()).await, Ok(Ok(()))) {
            return;
        }
        self.drain(MAX_DRAIN, drained_by).await;
        match is_early {
            true => socket_mut(&mut self.transport).is_taken_by(drained_by, None).await,
            false => self.is_taken().await,
        };
    }

    /// Waits until the peer has taken everything that was sent, within the bounds of a write; whether it has.
    async fn is_taken(&mut self) -> bool {
        let deadline = Instant::now() + self.write_timeout;
        socket_mut(&mut self.transport).is_taken_by(deadline, Some(self.write_timeout)).await
    }

    /// Whether a close now would neither cut what was sent nor reset the connection. Only of a plain TCP connection.
    pub(super) fn is_settled(&mut self) -> bool {
        match &mut self.transport {
            Transport::Left(socket) => socket.is_settled(),
            Transport::Right(_) => false,
        }
    }

    /// Closes a connection on which no answer was sent last. Through TLS the peer is sent a close_notify, so that it
    /// can tell the end from a cut (RFC 8446, 6.1).
    pub(super) async fn close_idle(mut self) {
        if !self.has_failed
            && self.is_taken().await
            && let Transport::Right(_) = self.transport
        {
            let deadline = Instant::now() + DRAIN_TIME;
            let _ = timeout_at(deadline, self.transport.shutdown()).await; // the peer may be gone
            socket_mut(&mut self.transport).is_taken_by(deadline, None).await;
        }
    }

    /// Reads and discards `limit` bytes; whether they all came in time.
    pub(super) async fn drain(&mut self, limit: u64, deadline: Instant) -> bool {
        let mut left = limit;
        let mut discarded = Vec::with_capacity(DISCARD_BUFFER);
        while left > 0 {
            discarded.clear();
            let ReadResult::Bytes(n) = self.read(&mut discarded, left, deadline).await else { return false };
            left -= n as u64;
        }
        true
    }
}

/// Whether the peer asks for another handshake of TLS 1.2: TLS itself has something to send then, the refusal.
fn renegotiates(transport: &Transport) -> bool {
    let Transport::Right(stream) = transport else { return false };
    let session = stream.get_ref().1;
    session.wants_write() && session.protocol_version() == Some(ProtocolVersion::TLSv1_2)
}

/// Waits until `deadline` with a timer that is made if there is none.
async fn wait_until_with(timer: &mut Option<Pin<Box<Sleep>>>, deadline: Instant) {
    wait_until(timer.get_or_insert_with(|| Box::pin(sleep_until(deadline))), deadline).await;
}

async fn read_until(
    read: impl Future<Output = io::Result<usize>>,
    timer: &mut Option<Pin<Box<Sleep>>>,
    deadline: Instant,
) -> ReadResult {
    tokio::select! {
        biased;
        read = read => match read {
            Ok(0) => ReadResult::End,
            Ok(n) => ReadResult::Bytes(n),
            Err(_) => ReadResult::Broken,
        },
        () = wait_until_with(timer, deadline) => ReadResult::TimedOut,
    }
}

/// Waits until `deadline`. The timer is reset only if it would fire too late; one that fires early is set again. So a
/// busy connection pays for its timer about once per `idle_timeout`.
pub(super) async fn wait_until(timer: &mut Pin<Box<Sleep>>, deadline: Instant) {
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
