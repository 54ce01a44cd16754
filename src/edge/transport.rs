//! The byte stream of one connection, either plain or through TLS, as one type, and what is known of the connection
//! besides its bytes: whether HTTP/2 was negotiated, and its socket. It has no deadlines: `timed_stream` and
//! `io` add those.

use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::socket::Socket;
use super::tls::HTTP_2;

/// Plain on the left, TLS on the right.
pub(super) type Transport = Either<Socket, Box<TlsStream<Socket>>>;

/// Whether HTTP/2 was negotiated, which only TLS does.
pub(super) fn is_http_2(transport: &Transport) -> bool {
    matches!(transport, Either::Right(stream) if stream.get_ref().1.alpn_protocol() == Some(HTTP_2))
}

pub(super) fn socket(transport: &Transport) -> &Socket {
    match transport {
        Either::Left(socket) => socket,
        Either::Right(stream) => stream.get_ref().0,
    }
}

pub(super) fn socket_mut(transport: &mut Transport) -> &mut Socket {
    match transport {
        Either::Left(socket) => socket,
        Either::Right(stream) => stream.get_mut().0,
    }
}
