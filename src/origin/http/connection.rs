//! Connections to an upstream address: opening one (TCP, and TLS where the upstream has it, under `connect_timeout`),
//! one request and its answer on it, and keeping the idle ones. A connection is read by the request that uses it, in no
//! task of its own. It is kept only after an answer that came whole with nothing behind it, and what comes while it is
//! idle makes it unusable. When opening fails, nothing of a request has been sent.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::pin::pin;
use std::thread::{self, ThreadId};
use std::time::Duration;

use bytes::Buf;
use futures_util::FutureExt;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::coop::unconstrained;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::answer::{self, AnswerHeader};
use super::tls::Tls;
use crate::clock::Tick;
use crate::wire::{Chunked, Fault, Framing, MAX_ORIGIN_ANSWER, TOO_LONG};

/// The `Retry-After` of 21, in seconds, where the origin gave none.
pub(super) const RETRY_AFTER: u64 = 1;

/// Bytes read at once, and the capacity of a buffer that an idle connection keeps. Most answers are far shorter.
const READ_BUFFER: usize = 4096;

/// How long a connection stays idle, as nginx's do: what is between here and the upstream may forget it without a word, and
/// a write would wait out its time on it.
pub const IDLE_FOR: Duration = Duration::from_secs(60);

/// Bytes of framing that an answer in chunks may have besides its data: as many as the longest one needs in chunks of
/// one byte. They are not kept.
const MAX_FRAMING: usize = 6 * MAX_ORIGIN_ANSWER;

/// Why a request got no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// There was no connection, so nothing was sent: any request may be sent to another upstream.
    #[error("it could not be reached: {0}")]
    Unsent(io::Error),
    /// The upstream may have the request, and no whole header of an answer came: a read may be sent again.
    #[error("it gave no answer: {0}")]
    Silent(#[from] io::Error),
    /// Its answer is malformed or breaks off. Sending it again does not help.
    #[error("its answer did not come whole: {0}")]
    Broken(String),
}

impl Failed {
    /// What the caller is told. Only 21 says that nothing was sent (contract section 1, "Upstream").
    pub fn fault(&self) -> Fault {
        match self {
            Failed::Unsent(_) => Fault::Unavailable { retry_after: RETRY_AFTER },
            Failed::Silent(error) if error.kind() == io::ErrorKind::TimedOut => Fault::OriginTimeout,
            Failed::Silent(_) | Failed::Broken(_) => Fault::NoUsableAnswer,
        }
    }

    /// Whether it counts against the upstream's health. `was_idle`: on a connection that was kept; many of them close at once
    /// when a healthy upstream restarts.
    pub(super) fn counts(&self, was_idle: bool) -> bool {
        let is_late = matches!(self, Failed::Silent(error) if error.kind() == io::ErrorKind::TimedOut);
        !was_idle || is_late || matches!(self, Failed::Broken(_))
    }

    /// For the access log, and so without anything that the upstream said.
    pub(super) fn kind(&self) -> String {
        match self {
            Failed::Unsent(error) if error.kind() == io::ErrorKind::Other => "TLS failed".to_owned(),
            Failed::Unsent(error) | Failed::Silent(error) => error.kind().to_string(),
            Failed::Broken(_) => "answer not whole".to_owned(),
        }
    }
}

/// Plain on the left, TLS on the right.
type UpstreamStream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Opens a connection, with TLS to a server of this name where it is given.
pub(super) async fn open(address: SocketAddr, tls: Option<(&Tls, &str)>) -> io::Result<UpstreamStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(match tls {
        Some((tls, name)) => Either::Right(Box::new(tls.connect(name, stream).await?)),
        None => Either::Left(stream),
    })
}

/// One HTTP/1.1 connection to an upstream.
pub(super) struct Connection {
    stream: UpstreamStream,
    /// Up to its position it is sent.
    request: Cursor<Vec<u8>>,
    /// Whether all of it is.
    is_sent: bool,
    /// What was read of the answer behind the parts that were used.
    answer: Vec<u8>,
    /// Whether a request was begun whose answer has not come whole.
    is_asking: bool,
    /// Whether it may take another request: the last answer came whole and has left nothing behind.
    may_reuse: bool,
    /// The thread whose runtime watches the socket.
    thread: ThreadId,
    /// Since when it is idle.
    idle_since: Tick,
}

impl Connection {
    /// Opens a connection, with TLS to a server of this name where it is given.
    pub(super) async fn open(address: SocketAddr, tls: Option<(&Tls, &str)>) -> io::Result<Self> {
        let stream = open(address, tls).await?;
        let (request, is_sent, answer, is_asking, may_reuse, idle_since) = Default::default();
        let thread = thread::current().id();
        Ok(Connection { stream, request, is_sent, answer, is_asking, may_reuse, thread, idle_since })
    }

    /// Where the next request is written, before [`Connection::send`].
    pub(super) fn request(&mut self) -> &mut Vec<u8> {
        self.request.set_position(0);
        self.request.get_mut().clear();
        self.request.get_mut()
    }

    /// Sends the request and reads the header of its answer. From the first poll on, the upstream may have the request.
    pub(super) async fn send(&mut self) -> Result<AnswerHeader, Failed> {
        (self.is_sent, self.is_asking, self.may_reuse) = (false, true, false);
        loop {
            self.read_some().await?;
            let parsed = |answer: &[u8]| answer::parse(answer).map_err(Failed::Broken);
            while let Some(header) = parsed(&self.answer)? {
                self.answer.drain(..header.length);
                if !header.is_interim() {
                    return Ok(header);
                }
            }
        }
    }

    /// Reads the body behind the header.
    pub(super) async fn read_body(&mut self, header: &AnswerHeader) -> io::Result<&[u8]> {
        let surplus = match header.framing {
            Some(Framing::Length(length)) => {
                let length = usize::try_from(length).ok().filter(|length| *length <= MAX_ORIGIN_ANSWER);
                let length = length.ok_or(io::Error::other(TOO_LONG))?;
                while self.answer.len() < length {
                    self.read_some().await?;
                }
                let surplus = self.answer.len() - length;
                self.answer.truncate(length);
                surplus
            }
            Some(Framing::Chunked) => self.read_chunks().await?,
            None => {
                while self.read().await? > 0 {
                    if self.answer.len() > MAX_ORIGIN_ANSWER {
                        return Err(io::Error::other(TOO_LONG));
                    }
                }
                0
            }
        };
        self.is_asking = false;
        self.may_reuse = header.keep_alive && self.is_sent && surplus == 0;
        Ok(&self.answer)
    }

    /// Reads a body in chunks and leaves its data in `answer`. Returns how many bytes were read behind it.
    async fn read_chunks(&mut self) -> io::Result<usize> {
        let (mut decoder, mut body) = (Chunked::new(MAX_FRAMING), Vec::new());
        loop {
            match decoder.feed(&self.answer, &mut body, MAX_ORIGIN_ANSWER) {
                Ok(Some(end)) => {
                    let surplus = self.answer.len() - end;
                    self.answer = body;
                    return Ok(surplus);
                }
                Ok(None) => self.answer.clear(),
                Err(Fault::BodyTooLarge) => return Err(io::Error::other(TOO_LONG)),
                Err(_) => return Err(io::Error::other("its chunks are malformed")),
            }
            self.read_some().await?;
        }
    }

    /// As [`Connection::read`], where the end of the connection is no end of an answer.
    async fn read_some(&mut self) -> io::Result<()> {
        match self.read().await? {
            0 => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "it closed the connection")),
            _ => Ok(()),
        }
    }

    /// Reads more of the answer, and sends what is left of the request. Returns how many bytes were read; 0 is the end.
    async fn read(&mut self) -> io::Result<usize> {
        if self.answer.capacity() - self.answer.len() < READ_BUFFER / 4 {
            self.answer.reserve(READ_BUFFER);
        }
        poll_fn(|cx| {
            // An upstream may answer before it has taken the whole request, so a failure shows in the read.
            if !self.is_sent {
                let _ = pin!(self.write()).poll(cx);
            }
            pin!(self.stream.read_buf(&mut self.answer)).poll(cx)
        })
        .await
    }

    /// Writes what is left of the request, in one write if the upstream takes it. It may be dropped and called again.
    async fn write(&mut self) -> io::Result<()> {
        // Not `write_all_buf`, which makes a `writev` of one buffer: that takes the kernel longer than a `send`.
        while self.request.has_remaining() {
            match self.stream.write(self.request.chunk()).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => self.request.advance(written),
            }
        }
        self.stream.flush().await?;
        self.is_sent = true;
        Ok(())
    }

    fn socket(&self) -> &TcpStream {
        match &self.stream {
            Either::Left(socket) => socket,
            Either::Right(stream) => stream.get_ref().0,
        }
    }

    /// Whether it was used lately, is open, and nothing has come on it, as far as the runtime knows: that asks the kernel
    /// nothing, and learns of the last moment's events later.
    fn is_quiet(&mut self, now: Tick) -> bool {
        now.since(self.idle_since) < IDLE_FOR && unconstrained(self.stream.read(&mut [0])).now_or_never().is_none()
    }

    /// Whether it is open and nothing has come on it, as far as the kernel knows. What that has of TLS may be no data, but
    /// session tickets for example.
    fn is_open(&self) -> bool {
        let come = recv(self.socket(), &mut [0u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(come, Err(Errno::AGAIN)) || matches!(self.stream, Either::Right(_)) && matches!(come, Ok((1.., _)))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_asking {
            // A time-out has passed, or the answer is not usable. Nothing of the request stays in the kernel, and the
            // upstream learns that nobody reads its answer. This fails if the connection is broken already.
            let _ = set_socket_linger(self.socket(), Some(Duration::ZERO));
        } else if let Either::Right(_) = self.stream {
            // A peer can tell the end from a cut (RFC 8446, 6.1). If this cannot be sent at once, it is not.
            let _ = unconstrained(self.stream.shutdown()).now_or_never();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection(…)") // the request has a key in it
    }
}

/// The idle connections to one upstream address. Of those that this thread watches, or else of all, the one that was
/// used last is taken first, so that the others stay idle and the upstream closes them. A connection that looks open may
/// still be dead, which only sending on it shows. Under the lock the kernel is asked only about one on which something came.
#[derive(Debug, Default)]
pub(super) struct IdleConnections(Mutex<Vec<Connection>>);

impl IdleConnections {
    /// An idle connection that is still open, as far as is known: for a write, which is not sent again, the kernel is asked.
    pub(super) fn take(&self, is_write: bool, now: Tick) -> Option<Connection> {
        let thread = thread::current().id();
        loop {
            let mut connection = {
                let mut idle = self.0.lock();
                let own = idle.iter().rposition(|connection| connection.thread == thread);
                let at = own.or(idle.len().checked_sub(1))?;
                idle.remove(at)
            };
            if connection.is_quiet(now) && (!is_write || connection.is_open()) {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection that may be used again, unless `max` are kept already.
    pub(super) fn put(&self, mut connection: Connection, max: usize, now: Tick) {
        if !connection.may_reuse {
            return;
        }
        connection.answer.clear();
        connection.answer.shrink_to(READ_BUFFER);
        connection.request.get_mut().shrink_to(READ_BUFFER);
        connection.idle_since = now;
        let mut idle = self.0.lock();
        if idle.len() < max {
            idle.push(connection);
        }
    }

    /// Closes those that the upstream has closed, or has sent something on.
    pub(super) fn close_unusable(&self, now: Tick) {
        let unusable: Vec<_> = self.0.lock().extract_if(.., |connection| !connection.is_quiet(now)).collect();
        drop(unusable); // after the lock is released
    }

    /// Closes all of them.
    pub(super) fn clear(&self) {
        let closed = std::mem::take(&mut *self.0.lock());
        drop(closed); // after the lock is released
    }
}

#[cfg(test)]
mod tests;
