//! The socket of one connection, over TCP or a Unix socket. A TCP socket is registered with the runtime only when a read
//! or a write has to wait. So a connection whose request has come already, and which is closed after the answer, is
//! never registered, which saves two system calls and a wake-up.
//!
//! What a peer does not take would stay in the kernel after the close, for minutes and outside every bound. So once a write had
//! to wait, a close resets the connection, also the one at the end of the process, until the peer has taken everything.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pingora::protocols::l4::ext::{TCP_INFO, get_tcp_info};
use rustix::io::ioctl_fionread;
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::coop::poll_proceed;
use tokio::time::{Instant, sleep};
use tokio_util::either::Either;

use super::timed_stream::WRITE_PART;

/// How often the kernel is asked what the peer has taken.
const INTERVAL: Duration = Duration::from_millis(50);

/// The state of a TCP connection that was reset (`TCP_CLOSE` in the kernel). After a FIN alone it is `TCP_CLOSE_WAIT`.
pub(super) const CLOSED: u8 = 7;

#[derive(Debug)]
pub(super) struct Socket {
    stream: Stream,
    /// Whether a close resets the connection. Never so of a Unix socket, which has no resets.
    resets: bool,
}

#[derive(Debug)]
enum Stream {
    /// TCP. `None`: it could not be registered, and is closed.
    Unregistered(Option<std::net::TcpStream>),
    Registered(Either<TcpStream, UnixStream>),
}

impl Socket {
    /// A connected socket that does not block.
    ///
    /// # Errors
    /// Where a Unix socket cannot be registered.
    pub(super) fn new(socket: OwnedFd, is_unix: bool) -> io::Result<Self> {
        let stream = match is_unix {
            true => Stream::Registered(Either::Right(UnixStream::from_std(socket.into())?)),
            false => Stream::Unregistered(Some(socket.into())),
        };
        Ok(Socket { stream, resets: false })
    }

    /// Waits for the first byte, and leaves it to be read. Only of TCP.
    pub(super) async fn peek(&mut self) -> io::Result<u8> {
        let mut first = [0];
        match self.registered()?.get_mut() {
            Either::Left(socket) if socket.peek(&mut first).await? > 0 => Ok(first[0]),
            Either::Left(_) | Either::Right(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Whether the peer's kernel has everything that was sent, and everything that it sent was read; a close sends no reset
    /// then. Only of TCP: `false` for a Unix socket.
    pub(super) fn is_settled(&mut self) -> bool {
        let Some(socket) = self.tcp() else { return false };
        let settled = ioctl_fionread(socket).is_ok_and(|unread| unread == 0)
            && get_tcp_info(socket.as_raw_fd()).is_ok_and(|tcp| is_taken(&tcp));
        if settled {
            self.set_reset(false);
        }
        settled
    }

    /// Makes a close from now on reset the connection, and discard what the peer has not taken; or end it in order.
    pub(super) fn set_reset(&mut self, resets: bool) {
        if self.resets != resets
            && let Some(socket) = self.tcp()
        {
            // Fails of no socket that is open.
            let _ = set_socket_linger(socket, resets.then_some(Duration::ZERO));
            self.resets = resets;
        }
    }

    /// Waits until the peer's kernel has everything that was sent, until `deadline`. `each` moves that whenever the peer
    /// takes some of it, since a window opens in steps; in sum once for each [`WRITE_PART`] that was left. Whether it has
    /// everything: a close ends the connection in order then, and else resets it.
    pub(super) async fn is_taken_by(&mut self, mut deadline: Instant, each: Option<Duration>) -> bool {
        let (mut taken, mut last) = (None, deadline);
        loop {
            let Some(tcp) = self.tcp().and_then(|socket| get_tcp_info(socket.as_raw_fd()).ok()) else { return true };
            if is_taken(&tcp) {
                self.set_reset(false);
                return true;
            }
            self.set_reset(true);
            if let Some(each) = each {
                match taken.replace(tcp.tcpi_bytes_acked) {
                    None => last += each * left(&tcp).div_ceil(WRITE_PART as u32),
                    Some(before) if before < tcp.tcpi_bytes_acked => deadline = last.min(Instant::now() + each),
                    Some(_) => {}
                }
            }
            if Instant::now() >= deadline {
                return false;
            }
            sleep(INTERVAL).await;
        }
    }

    /// `None`: a Unix socket, or closed.
    pub(super) fn tcp(&self) -> Option<BorrowedFd<'_>> {
        match &self.stream {
            Stream::Unregistered(socket) => socket.as_ref().map(|socket| socket.as_fd()),
            Stream::Registered(Either::Left(socket)) => Some(socket.as_fd()),
            Stream::Registered(Either::Right(_)) => None,
        }
    }

    /// Attempts `operation` if the socket is not registered. `None`: the registered socket is to be polled.
    fn attempt(
        &mut self,
        cx: &mut Context<'_>,
        operation: impl FnOnce(&mut std::net::TcpStream) -> io::Result<usize>,
    ) -> Poll<Option<io::Result<usize>>> {
        let Stream::Unregistered(Some(socket)) = &mut self.stream else { return Poll::Ready(None) };
        let budget = ready!(poll_proceed(cx));
        let done = operation(socket);
        if done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return Poll::Ready(None);
        }
        budget.made_progress();
        Poll::Ready(Some(done))
    }

    /// The outcome of a write. Where it has to wait, a close resets the connection.
    fn wrote(&mut self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if polled.is_pending() {
            self.set_reset(true);
        }
        polled
    }

    /// The registered socket; registers it with this thread's runtime if it is not.
    fn registered(&mut self) -> io::Result<Pin<&mut Either<TcpStream, UnixStream>>> {
        if let Stream::Unregistered(socket) = &mut self.stream {
            let socket = socket.take().ok_or(io::ErrorKind::NotConnected)?;
            self.stream = Stream::Registered(Either::Left(TcpStream::from_std(socket)?));
        }
        match &mut self.stream {
            Stream::Registered(socket) => Ok(Pin::new(socket)),
            Stream::Unregistered(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// Whether the peer's kernel has everything that was sent, or nobody is there to take it.
fn is_taken(tcp: &TCP_INFO) -> bool {
    tcp.tcpi_unacked == 0 && tcp.tcpi_notsent_bytes == 0 || tcp.tcpi_state == CLOSED
}

/// Bytes that the peer's kernel does not have, at most.
fn left(tcp: &TCP_INFO) -> u32 {
    tcp.tcpi_notsent_bytes.saturating_add(tcp.tcpi_unacked.saturating_mul(tcp.tcpi_snd_mss))
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match ready!(self.attempt(cx, |socket| socket.read(buffer.initialize_unfilled()))) {
            Some(read) => Poll::Ready(read.map(|n| buffer.advance(n))),
            None => self.registered()?.poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match ready!(self.attempt(cx, |socket| socket.write(bytes))) {
            Some(written) => Poll::Ready(written),
            None => {
                let polled = self.registered()?.poll_write(cx, bytes);
                self.wrote(polled)
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match ready!(self.attempt(cx, |socket| socket.write_vectored(slices))) {
            Some(written) => Poll::Ready(written),
            None => {
                let polled = self.registered()?.poll_write_vectored(cx, slices);
                self.wrote(polled)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // nothing is buffered
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Unregistered(Some(socket)) => Poll::Ready(socket.shutdown(Shutdown::Write)),
            Stream::Unregistered(None) | Stream::Registered(_) => self.registered()?.poll_shutdown(cx),
        }
    }
}
