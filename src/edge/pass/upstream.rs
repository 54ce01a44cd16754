//! Connections to https upstreams: TLS is our own, with the roots and the certificate that operations use, and Pingora gets
//! what is inside. It keeps none of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use pingora::connectors::L4Connect;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::protocols::l4::stream::Stream;
use pingora::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora::{Error, ErrorType, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::origin::Target;

/// Opens connections with TLS to one upstream.
#[derive(Debug)]
pub(super) struct TlsConnector(pub(super) Target);

#[async_trait]
impl L4Connect for TlsConnector {
    async fn connect(&self, _: &SocketAddr) -> Result<Stream> {
        let opened = self.0.connect().await.map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::TimedOut => ErrorType::ConnectTimedout,
                io::ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
                _ => ErrorType::TLSHandshakeFailure,
            };
            Error::because(kind, "with TLS", error)
        })?;
        Ok(VirtualSocketStream::new(Box::new(Tls(opened))).into())
    }
}

#[derive(Debug)]
struct Tls(Box<TlsStream<TcpStream>>);

impl VirtualSocket for Tls {
    fn set_socket_option(&self, _: VirtualSockOpt) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Tls {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Tls {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
