//! The idle HTTP/1.1 connections to one upstream address. The one that was used last is taken first, so that the others
//! become idle and the upstream closes them. A connection that looks alive may still be dead: the caller finds that out
//! when it sends. The lock is never held across a wait or while connections are closed.

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;

/// One HTTP/1.1 connection to an upstream, between two requests.
pub(super) type Connection = SendRequest<Full<Bytes>>;

/// Kept-alive connections to one upstream, the one used last first, so that few stay warm and the
/// rest grow cold and are closed by the upstream.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Vec<Connection>>);

impl Pool {
    /// A connection kept from before that is still alive, as far as is known.
    pub(super) fn kept(&self) -> Option<Connection> {
        let mut idle = self.0.lock();
        loop {
            let connection = idle.pop()?;
            if !connection.is_closed() {
                return Some(connection);
            }
        }
    }

    /// Takes a connection back whose last answer was read whole. No more than `most` are kept.
    pub(super) fn keep(&self, connection: Connection, most: usize) {
        let mut idle = self.0.lock();
        if idle.len() >= most {
            idle.retain(|c| !c.is_closed());
        }
        if idle.len() < most && !connection.is_closed() {
            idle.push(connection);
        }
    }

    /// Closes what is kept.
    pub(super) fn clear(&self) {
        let closed = std::mem::take(&mut *self.0.lock());
        drop(closed); // aside of the lock
    }
}
