//! The byte stream of one connection, either plain or through TLS, as one type, and what is known of the connection
//! besides its bytes: whether HTTP/2 was negotiated, and its TCP socket. It has no deadlines: `timed_stream` and `io` add
//! those.
//!
//! What a peer does not take stays in the kernel, also after the close. The kernel itself ends a TCP connection whose peer
//! has taken nothing for its "user timeout".

use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;
use tokio_util::either::Either;

use super::tls::HTTP_2;

/// TCP on the left, a Unix socket on the right.
pub(super) type Socket = Either<TcpStream, UnixStream>;

/// Plain on the left, TLS on the right, which is over TCP.
pub(super) type Transport = Either<Socket, Box<TlsStream<TcpStream>>>;

/// Whether HTTP/2 was negotiated, which only TLS does.
pub(super) fn is_http_2(transport: &Transport) -> bool {
    matches!(transport, Either::Right(stream) if stream.get_ref().1.alpn_protocol() == Some(HTTP_2))
}

/// `None`: a Unix socket.
fn tcp(transport: &Transport) -> Option<&TcpStream> {
    match transport {
        Either::Left(Either::Left(socket)) => Some(socket),
        Either::Left(Either::Right(_)) => None,
        Either::Right(stream) => Some(stream.get_ref().0),
    }
}

/// Makes the kernel reset the connection, now or after the close, once the peer has taken nothing for so long.
pub(super) fn set_user_timeout(transport: &Transport, timeout: Duration) {
    if let Some(socket) = tcp(transport) {
        let _ = SockRef::from(socket).set_tcp_user_timeout(Some(timeout)); // fails of no TCP socket that is open
    }
}

/// Makes the close reset the connection, so that what the peer has not taken is discarded.
pub(super) fn set_reset(transport: &Transport) {
    if let Some(socket) = tcp(transport) {
        let _ = socket.set_zero_linger(); // fails of no TCP socket that is open
    }
}
