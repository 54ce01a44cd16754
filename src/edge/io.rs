//! The transport of an HTTP/2 connection, under the two bounds that neither Pingora nor the `h2`
//! crate has: how many bytes a peer may send for which nothing is answered, and how long it may leave what was written
//! to it. It looks at no byte. A write that takes too long resets the connection; of too many bytes it only tells, and
//! `http2` ends the connection.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use pingora::protocols::l4::stream::Stream;
use pingora::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, BufWriter, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::timed_stream::WRITE_PART;
use super::transport::{Transport, set_reset};
use crate::config::Server;

/// The bytes for which nothing is answered are so many of the largest requests.
const REQUESTS_UNANSWERED: usize = 100;

/// And never less than this, so that a client with large frames has room where requests are small.
const MIN_UNANSWERED: usize = 1024 * 1024;

/// A transport under its bounds, shared by the connection, which reads and writes, and by its requests.
#[derive(Clone, Debug)]
pub(super) struct Bounded(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// `None` once the connection is over, or was reset.
    transport: Option<BufWriter<Transport>>,
    /// Bytes read since an answer was sent or a request took bytes of its body, and the most of them.
    unanswered: usize,
    max_unanswered: usize,
    /// The peer sends nothing more. The `h2` crate is not told: it would drop the answers under way.
    is_half_closed: bool,
    write_timeout: Duration,
    /// Ends a write that has to wait; `None`: none does.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Bytes that the peer took meanwhile.
    taken: usize,
    /// Where the transport is lent for one request.
    lent: Option<Lent>,
}

/// What of the connection belongs to one request.
#[derive(Debug)]
struct Lent {
    /// Bytes of the request that are still to come; `None`: nobody knows.
    to_come: Option<u64>,
    /// What came behind it.
    surplus: Vec<u8>,
}

/// Bytes that may come behind a request that is under way. They are read so that the peer's end is seen.
const MAX_SURPLUS: usize = 16 * 1024;

/// Bytes that are written to a lent transport at once, so that a small answer is one write with its header; as many as
/// Pingora has on its own connections. What writes HTTP/2 has a buffer of its own.
const LENT_BUFFER: usize = 1460;

impl Bounded {
    pub(super) fn new(transport: Transport, server: &Server) -> Self {
        let largest_request = server.max_header.saturating_add(server.max_body);
        let max_unanswered = largest_request.saturating_mul(REQUESTS_UNANSWERED).max(MIN_UNANSWERED);
        Bounded::with(transport, server.write_timeout, max_unanswered, None)
    }

    /// Lends an HTTP/1.1 connection for one request, of which so many bytes are still to come, and behind which `surplus` has.
    /// Whoever reads gets the bytes of that request and no others.
    pub(super) fn for_one_request(
        transport: Transport,
        write_timeout: Duration,
        to_come: Option<u64>,
        surplus: Vec<u8>,
    ) -> Self {
        Bounded::with(transport, write_timeout, usize::MAX, Some(Lent { to_come, surplus }))
    }

    /// The same as Pingora has it.
    pub(super) fn stream(&self) -> Stream {
        VirtualSocketStream::new(Box::new(self.clone())).into()
    }

    fn with(transport: Transport, write_timeout: Duration, max_unanswered: usize, lent: Option<Lent>) -> Self {
        let buffer = if lent.is_some() { LENT_BUFFER } else { 0 };
        Bounded(Arc::new(Mutex::new(Inner {
            transport: Some(BufWriter::with_capacity(buffer, transport)),
            unanswered: 0,
            max_unanswered,
            is_half_closed: false,
            write_timeout,
            stalled: None,
            taken: 0,
            lent,
        })))
    }

    /// What came behind that request.
    pub(super) fn take_surplus(&self) -> Vec<u8> {
        self.0.lock().lent.take().map(|lent| lent.surplus).unwrap_or_default()
    }

    /// Records that an answer was sent, or that a request took bytes of its body.
    pub(super) fn made_progress(&self) {
        self.0.lock().unanswered = 0;
    }

    /// Whether too many bytes came for which nothing was answered. Nothing is read any more then.
    pub(super) fn is_flooded(&self) -> bool {
        self.0.lock().is_flooded()
    }

    /// Completes where the peer sends nothing more and has everything that was written. To be polled after a read or write.
    pub(super) async fn over(&self) {
        let is_over = |inner: &Inner| inner.is_half_closed && inner.stalled.is_none();
        poll_fn(|_| if is_over(&self.0.lock()) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// The transport itself, once the connection is over.
    pub(super) fn take(&self) -> Option<Transport> {
        self.0.lock().transport.take().map(BufWriter::into_inner)
    }
}

impl Inner {
    fn is_flooded(&self) -> bool {
        self.unanswered > self.max_unanswered
    }

    fn transport(&mut self) -> io::Result<Pin<&mut BufWriter<Transport>>> {
        self.transport.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Reads bytes of the one request. Once it has all of them, it waits, until the peer ends the connection.
    fn read_lent(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (Some(transport), Some(lent)) = (&mut self.transport, &mut self.lent) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let Some(to_come) = &mut lent.to_come else { return Pin::new(transport).poll_read(cx, buffer) };
        if *to_come > 0 {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut transport.take(*to_come)).poll_read(cx, buffer))?;
            *to_come -= (buffer.filled().len() - before) as u64;
            return Poll::Ready(Ok(()));
        }
        while lent.surplus.len() < MAX_SURPLUS {
            if ready!(pin!(transport.read_buf(&mut lent.surplus)).poll(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    /// The outcome of a write or flush, after which the peer has taken `taken` bytes more. It has `write_timeout` for
    /// each [`WRITE_PART`], so that single bytes do not extend it.
    fn wrote<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
        taken: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        match &polled {
            Poll::Pending => {
                let write_timeout = self.write_timeout;
                let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep(write_timeout)));
                ready!(timer.as_mut().poll(cx));
                // What the peer has not taken must not stay in the kernel either.
                if let Some(transport) = self.transport.take() {
                    set_reset(transport.get_ref());
                }
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            Poll::Ready(Ok(done)) if self.stalled.is_some() => {
                self.taken += taken(done);
                if self.taken >= WRITE_PART {
                    (self.stalled, self.taken) = (None, 0);
                }
            }
            Poll::Ready(_) => {}
        }
        polled
    }
}

impl AsyncRead for Bounded {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.lock();
        if inner.lent.is_some() {
            return inner.read_lent(cx, buffer);
        }
        if inner.is_flooded() || inner.is_half_closed {
            return Poll::Pending; // `http2` ends the connection
        }
        let before = buffer.filled().len();
        match ready!(inner.transport()?.poll_read(cx, buffer)) {
            // The end of the stream, with TLS's word for it or without.
            Ok(()) if buffer.filled().len() == before => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            read => {
                inner.unanswered += buffer.filled().len() - before;
                return Poll::Ready(read);
            }
        }
        inner.is_half_closed = true;
        Poll::Pending
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.lock();
        let written = inner.transport()?.poll_write(cx, bytes);
        inner.wrote(cx, written, |taken| *taken)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.lock();
        let flushed = inner.transport()?.poll_flush(cx);
        inner.wrote(cx, flushed, |()| WRITE_PART) // nothing is left to take after a flush
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().transport()?.poll_shutdown(cx)
    }
}

impl VirtualSocket for Bounded {
    fn set_socket_option(&self, _: VirtualSockOpt) -> io::Result<()> {
        Ok(())
    }
}
