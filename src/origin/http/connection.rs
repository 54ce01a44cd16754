//! Connections to an upstream address: opening one (TCP, TLS where the upstream has it, and hyper's HTTP/1.1 client,
//! all under `connect_timeout`), and keeping the idle ones. When opening fails, nothing of a request has been sent, so
//! any request may go to another upstream, `setPoints` too. The size of an answer's header is bounded here.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::tls::ServerTls;
use crate::wire::Fault;

/// The `Retry-After` of 21, in seconds, where the origin gave none.
pub(super) const RETRY_AFTER: u64 = 1;

/// Largest header of an upstream's answer; nginx accepts 4 to 8 KiB by default.
const MAX_ANSWER_HEADER: usize = 16 * 1024;

/// The most fields in the header of an upstream's answer.
const MAX_ANSWER_FIELDS: usize = 100;

/// One HTTP/1.1 connection to an upstream, between two requests.
pub(super) type Connection = SendRequest<Full<Bytes>>;

/// Why there is no connection. Nothing of a request was sent.
#[derive(Debug)]
pub(super) enum ConnectError {
    TimedOut,
    Failed(io::Error),
    /// It was closed before a request could be sent.
    Closed,
}

/// Opens a connection, with TLS where `tls` is given.
pub(super) async fn connect(
    address: SocketAddr,
    tls: Option<&ServerTls>,
    timeout: Duration,
) -> Result<Connection, ConnectError> {
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        match tls {
            Some(tls) => handshake(tls.connect(stream).await?).await,
            None => handshake(stream).await,
        }
    };
    match tokio::time::timeout(timeout, connecting).await {
        Ok(connected) => connected.map_err(ConnectError::Failed),
        Err(_) => Err(ConnectError::TimedOut),
    }
}

async fn handshake<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> io::Result<Connection> {
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_ANSWER_FIELDS).max_header_size(MAX_ANSWER_HEADER);
    let (connection, driver) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // One task for each connection, not for each request. Its error also reaches the request that uses the connection.
    tokio::spawn(async move {
        let _ = driver.await;
    });
    Ok(connection)
}

impl ConnectError {
    /// The answer to the caller where no other upstream could be reached either.
    pub(super) fn fault(&self) -> Fault {
        match self {
            ConnectError::TimedOut => Fault::OriginTimeout,
            ConnectError::Failed(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Fault::Unavailable { retry_after: RETRY_AFTER }
            }
            ConnectError::Failed(_) | ConnectError::Closed => Fault::NoUsableAnswer,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::TimedOut => f.write_str("connecting took longer than origin.connect_timeout"),
            ConnectError::Failed(error) => write!(f, "it cannot be reached: {error}"),
            ConnectError::Closed => f.write_str("it closes connections at once"),
        }
    }
}

/// The idle connections to one upstream address. The one that was used last is taken first, so that the others stay
/// idle and the upstream closes them. A connection that looks open may still be dead, which only sending on it shows.
/// The lock is never held across a wait or while connections are closed.
#[derive(Debug, Default)]
pub(super) struct IdleConnections(Mutex<Vec<Connection>>);

impl IdleConnections {
    /// An idle connection that is still open, as far as is known.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut idle = self.0.lock();
        loop {
            let connection = idle.pop()?;
            if !connection.is_closed() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose last answer was read whole, unless `max` are kept already.
    pub(super) fn put(&self, connection: Connection, max: usize) {
        let mut idle = self.0.lock();
        if idle.len() >= max {
            idle.retain(|c| !c.is_closed());
        }
        if idle.len() < max && !connection.is_closed() {
            idle.push(connection);
        }
    }

    /// Closes all of them.
    pub(super) fn clear(&self) {
        let closed = std::mem::take(&mut *self.0.lock());
        drop(closed); // after the lock is released
    }
}
