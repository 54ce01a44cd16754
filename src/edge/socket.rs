//! The socket of one connection, over TCP or a Unix socket. A TCP socket is registered with the runtime only when a read
//! or a write has to wait. So a connection whose request has come already, and which is closed after the answer, is
//! never registered, which saves two system calls and a wake-up.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pingora::protocols::l4::ext::{TCP_INFO, get_tcp_info};
use rustix::io::ioctl_fionread;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::coop::poll_proceed;
use tokio_util::either::Either;

#[derive(Debug)]
pub(super) enum Socket {
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
        match is_unix {
            true => Ok(Socket::Registered(Either::Right(UnixStream::from_std(socket.into())?))),
            false => Ok(Socket::Unregistered(Some(socket.into()))),
        }
    }

    /// Waits for the first byte, and leaves it to be read. Only of TCP.
    pub(super) async fn peek(&mut self) -> io::Result<u8> {
        let mut first = [0];
        match self.registered()?.get_mut() {
            Either::Left(socket) if socket.peek(&mut first).await? > 0 => Ok(first[0]),
            Either::Left(_) | Either::Right(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Whether the peer's kernel has everything that was sent, and everything that it sent was read, so that a close
    /// sends no reset. Only of TCP: `false` for a Unix socket.
    pub(super) fn is_settled(&self) -> bool {
        let Some(socket) = self.tcp() else { return false };
        let is_sent = |tcp: TCP_INFO| tcp.tcpi_unacked == 0 && tcp.tcpi_notsent_bytes == 0;
        ioctl_fionread(socket).is_ok_and(|unread| unread == 0) && get_tcp_info(socket.as_raw_fd()).is_ok_and(is_sent)
    }

    /// `None`: a Unix socket, or closed.
    pub(super) fn tcp(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Socket::Unregistered(socket) => socket.as_ref().map(|socket| socket.as_fd()),
            Socket::Registered(Either::Left(socket)) => Some(socket.as_fd()),
            Socket::Registered(Either::Right(_)) => None,
        }
    }

    /// Attempts `operation` if the socket is not registered. `None`: the registered socket is to be polled.
    fn attempt(
        &mut self,
        cx: &mut Context<'_>,
        operation: impl FnOnce(&mut std::net::TcpStream) -> io::Result<usize>,
    ) -> Poll<Option<io::Result<usize>>> {
        let Socket::Unregistered(Some(socket)) = self else { return Poll::Ready(None) };
        let budget = ready!(poll_proceed(cx));
        let done = operation(socket);
        if done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return Poll::Ready(None);
        }
        budget.made_progress();
        Poll::Ready(Some(done))
    }

    /// The registered socket; registers it with this thread's runtime if it is not.
    fn registered(&mut self) -> io::Result<Pin<&mut Either<TcpStream, UnixStream>>> {
        if let Socket::Unregistered(socket) = self {
            let socket = socket.take().ok_or(io::ErrorKind::NotConnected)?;
            *self = Socket::Registered(Either::Left(TcpStream::from_std(socket)?));
        }
        match self {
            Socket::Registered(socket) => Ok(Pin::new(socket)),
            Socket::Unregistered(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
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
            None => self.registered()?.poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match ready!(self.attempt(cx, |socket| socket.write_vectored(slices))) {
            Some(written) => Poll::Ready(written),
            None => self.registered()?.poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // nothing is buffered
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Socket::Unregistered(Some(socket)) => Poll::Ready(socket.shutdown(Shutdown::Write)),
            Socket::Unregistered(None) | Socket::Registered(_) => self.registered()?.poll_shutdown(cx),
        }
    }
}
