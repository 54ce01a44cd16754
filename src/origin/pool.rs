use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;

/// The most of an upstream's header that is taken; nginx takes 4 to 8 KiB by default.
const MAX_ANSWER_HEADER: usize = 16 * 1024;

/// Fields in an upstream's header that are taken.
const MAX_ANSWER_FIELDS: usize = 100;

/// One HTTP/1.1 connection to an upstream, between two requests.
pub(super) type Connection = SendRequest<Full<Bytes>>;

/// Kept-alive connections to one upstream, the one used last first, so that few stay warm and the
/// rest grow cold and are closed by the upstream.
#[derive(Debug)]
pub(super) struct Pool {
    authority: String,
    connect_timeout: Duration,
    /// No more are kept than may be in use at once.
    max_idle: usize,
    idle: Mutex<Vec<Connection>>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectError {
    TimedOut,
    Failed(io::Error),
}

impl Pool {
    pub(super) fn new(authority: String, connect_timeout: Duration, max_idle: usize) -> Self {
        Pool { authority, connect_timeout, max_idle, idle: Mutex::new(Vec::new()) }
    }

    /// A connection kept from before that is still alive, as far as is known.
    pub(super) fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        loop {
            let connection = idle.pop()?;
            if !connection.is_closed() {
                return Some(connection);
            }
        }
    }

    /// A new connection.
    pub(super) async fn connect(&self) -> Result<Connection, ConnectError> {
        let stream = tokio::time::timeout(self.connect_timeout, TcpStream::connect(&self.authority)).await;
        let stream = stream.map_err(|_| ConnectError::TimedOut)?.map_err(ConnectError::Failed)?;
        stream.set_nodelay(true).map_err(ConnectError::Failed)?;
        let mut builder = http1::Builder::new();
        builder.max_headers(MAX_ANSWER_FIELDS).max_header_size(MAX_ANSWER_HEADER);
        let handshake = builder.handshake(TokioIo::new(stream)).await;
        let (connection, driver) = handshake.map_err(|e| ConnectError::Failed(io::Error::other(e)))?;
        // One task a connection, not a request. How it ends is told to whoever uses the connection.
        tokio::spawn(async move {
            let _ = driver.await;
        });
        Ok(connection)
    }

    /// Takes a connection back whose last answer was read whole.
    pub(super) fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() >= self.max_idle {
            idle.retain(|c| !c.is_closed());
        }
        if idle.len() < self.max_idle && !connection.is_closed() {
            idle.push(connection);
        }
    }
}
