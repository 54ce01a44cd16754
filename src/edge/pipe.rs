//! The byte stream of one connection, either plain or through TLS, as one type, and what is known of the connection
//! beside its bytes: whether HTTP/2 was agreed on, and its socket. It has no deadlines: `line` and `http2/frames` add
//! those.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pingora::protocols::{SocketDigest, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::tls::HTTP_2;

/// What a connection's bytes go through, in the clear or in TLS.
#[derive(Debug)]
pub(super) enum Pipe {
    Plain(Stream),
    Tls(Box<TlsStream<Stream>>),
}

impl Pipe {
    /// Whether HTTP/2 was agreed on, which is within TLS alone.
    pub(super) fn speaks_http_2(&self) -> bool {
        matches!(self, Pipe::Tls(stream) if stream.get_ref().1.alpn_protocol() == Some(HTTP_2))
    }

    /// What the kernel knows of the connection, for as long as the pipe is there.
    pub(super) fn socket(&self) -> Option<Arc<SocketDigest>> {
        match self {
            Pipe::Plain(stream) => stream.get_socket_digest(),
            Pipe::Tls(stream) => stream.get_ref().0.get_socket_digest(),
        }
    }
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Pipe::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Pipe::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Pipe::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Pipe::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Pipe::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Pipe::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Pipe::Plain(stream) => stream.is_write_vectored(),
            Pipe::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Pipe::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Pipe::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Pipe::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Pipe::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
