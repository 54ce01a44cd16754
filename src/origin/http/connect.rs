//! Opens a connection to an upstream: TCP, TLS where the upstream has it, and hyper's HTTP/1.1 client, all under
//! `connect_timeout`. When this fails, nothing of a request has been sent, so any request may go to another upstream,
//! `setPoints` too. The size of an answer's header is bounded here.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::pool::Connection;
use super::tls::Secure;
use crate::wire::Fault;

/// What 21 says where the origin did not say when to come back.
pub(super) const TRY_AGAIN_IN: u64 = 1;

/// The most of an upstream's header that is taken; nginx takes 4 to 8 KiB by default.
const MAX_ANSWER_HEADER: usize = 16 * 1024;

/// Fields in an upstream's header that are taken.
const MAX_ANSWER_FIELDS: usize = 100;

/// Why there is no connection. Nothing of a request went out.
#[derive(Debug)]
pub(super) enum ConnectError {
    TimedOut,
    Failed(io::Error),
}

/// A new connection, TLS included where the upstream is reached by it.
pub(super) async fn connect(
    address: SocketAddr,
    secure: Option<&Secure>,
    timeout: Duration,
) -> Result<Connection, ConnectError> {
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        match secure {
            Some(secure) => handshake(secure.wrap(stream).await?).await,
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
    // One task a connection, not a request. How it ends is told to whoever uses the connection.
    tokio::spawn(async move {
        let _ = driver.await;
    });
    Ok(connection)
}

impl ConnectError {
    /// What the caller is told where no other upstream could be reached either.
    pub(super) fn fault(&self) -> Fault {
        match self {
            ConnectError::TimedOut => Fault::OriginTimeout,
            ConnectError::Failed(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Fault::Unavailable { retry_after: TRY_AGAIN_IN }
            }
            ConnectError::Failed(_) => Fault::NoUsableAnswer,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::TimedOut => f.write_str("connecting took longer than origin.connect_timeout"),
            ConnectError::Failed(error) => write!(f, "it cannot be reached: {error}"),
        }
    }
}
