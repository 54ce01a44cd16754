//! Accepts connections and serves HTTP/1.1 on them, with a bound on how many there are and on how long each may take,
//! so that nobody can hold the listener for good.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONNECTION;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use memchr::memchr;
use parking_lot::Mutex;
use rustix::net::sockopt::{set_socket_linger, set_tcp_user_timeout};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::authorize::read_body;

/// Connections at once: a few admins, a bot and a collector of metrics need a tenth. One more is closed when it comes.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// For a header, and for TLS before the first one. Whoever sends more slowly is no admin.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may stay open without a request, and without a byte of an answer being taken.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection may last, so that none is kept for good by a request now and then.
const MAX_AGE: Duration = Duration::from_secs(600);

/// How long the last request of a connection may take after [`MAX_AGE`], or after a stop.
const LAST_REQUEST: Duration = Duration::from_secs(45);

/// How long a new connection may stay open after a stop until its first request comes, which is on its way.
const FIRST_REQUEST: Duration = Duration::from_millis(500);

/// The most bytes of a header and of what is buffered with it.
const MAX_BUFFER: usize = 32 * 1024;

/// Fields of a header: as many as callers may send.
const MAX_FIELDS: usize = 100;

/// What plain HTTP is answered on a port that speaks TLS.
const PLAIN_HTTP: &str = "This port speaks TLS: use https instead of http.\n";

/// How long to wait after a connection could not be accepted, for example at the limit of open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The address that a request came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Serves until `stop`.
pub(super) async fn serve(listener: TcpListener, router: Router, tls: Option<TlsAcceptor>, stop: CancellationToken) {
    let scheme = if tls.is_some() { "https" } else { "http" };
    match listener.local_addr() {
        Ok(address) => tracing::info!(url = format!("{scheme}://{address}"), "admin listener ready"),
        Err(error) => tracing::error!(%error, "the admin listener has no address"),
    }
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "the admin listener cannot accept a connection");
                sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else { continue }; // closes it
        let (router, tls, stop) = (router.clone(), tls.clone(), stop.clone());
        tokio::spawn(async move {
            // An error is the caller's: it has gone, did not speak HTTP, or took too long.
            let _ = serve_and_close(stream, Peer(peer), router, tls, stop).await;
            drop(permit);
        });
    }
    drop(listener);
    // The connections end by themselves.
    let _ = timeout(LAST_REQUEST, permits.acquire_many(MAX_CONNECTIONS as u32)).await;
}

/// Serves a connection to its end. What its caller does not take stays in the kernel no longer than it would here: the kernel
/// resets a connection of which nothing was taken for [`IDLE_TIMEOUT`], also after its close, and one that took too long is
/// reset at once.
async fn serve_and_close(
    stream: TcpStream,
    peer: Peer,
    router: Router,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
) -> io::Result<()> {
    set_tcp_user_timeout(&stream, IDLE_TIMEOUT.as_millis() as u32)?;
    let socket = stream.as_fd().try_clone_to_owned()?;
    let served = handshake_and_serve(stream, peer, router, tls, stop).await;
    if served.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        set_socket_linger(&socket, Some(Duration::ZERO))?;
    }
    served
}

async fn handshake_and_serve(
    stream: TcpStream,
    peer: Peer,
    router: Router,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match tls {
        None => serve_connection(stream, peer, router, stop).await?,
        Some(tls) => {
            let deadline = Instant::now() + HEADER_TIMEOUT;
            let mut first = [0];
            let read = timeout_at(deadline, stream.peek(&mut first)).await??;
            // No TLS record begins with a letter (RFC 8446, 5.1), and each method in use does.
            if read > 0 && first[0].is_ascii_alphabetic() {
                let refuse = async |request: Request| {
                    // A connection that is closed with unread data may lose its answer.
                    let _ = read_body(request.into_body()).await;
                    (StatusCode::BAD_REQUEST, [(CONNECTION, "close")], PLAIN_HTTP)
                };
                serve_connection(stream, peer, Router::new().fallback(refuse), stop).await?;
            } else {
                let stream = timeout_at(deadline, tls.accept(stream)).await??;
                serve_connection(stream, peer, router, stop).await?;
            }
        }
    }
    Ok(())
}

/// # Errors
/// `TimedOut` if it has taken too long.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: Peer,
    router: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let activity = Arc::new(ConnectionActivity::new());
    let of_requests = activity.clone();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        let activity = of_requests.clone();
        activity.request_begins();
        request.extensions_mut().insert(peer);
        let answer = TowerToHyperService::new(router.clone()).call(request);
        async move {
            let answer = answer.await;
            activity.request_ends();
            answer
        }
    });
    let io = TokioIo::new(Watched { stream: BufReader::new(stream), activity: activity.clone() });
    let mut http = http1::Builder::new();
    // The header's time is watched here: hyper's would also limit the wait for the next request.
    http.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MAX_BUFFER).max_headers(MAX_FIELDS);
    // A caller that closes its own direction waits for its answer. Without this, hyper also reads the next header, and
    // starts its time, while an answer is being written.
    http.half_close(true);
    let mut connection = pin!(http.serve_connection(io, service));
    let ends = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(MAX_AGE) => {}
        }
        let _ = timeout(FIRST_REQUEST, activity.requested.cancelled()).await;
    };
    tokio::select! {
        _ = connection.as_mut() => return Ok(()),
        () = activity.timed_out() => return Err(io::ErrorKind::TimedOut.into()),
        () = ends => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = connection => Ok(()),
        () = activity.timed_out() => Err(io::ErrorKind::TimedOut.into()),
        () = sleep(LAST_REQUEST) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// What happens on a connection, as far as its time limits depend on it.
#[derive(Debug)]
struct ConnectionActivity {
    state: Mutex<State>,
    /// Cancelled by the first request.
    requested: CancellationToken,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// When a byte was last read or written.
    last: Instant,
    /// When the header began that is being read.
    header_since: Option<Instant>,
    /// Whether a request is being answered, within time limits of its own.
    is_answering: bool,
}

impl ConnectionActivity {
    fn new() -> Self {
        let now = Instant::now();
        // The first header begins with the connection.
        let state = State { last: now, header_since: Some(now), is_answering: false };
        ConnectionActivity { state: Mutex::new(state), requested: CancellationToken::new() }
    }

    fn request_begins(&self) {
        let mut state = self.state.lock();
        (state.header_since, state.is_answering) = (None, true);
        self.requested.cancel();
    }

    fn request_ends(&self) {
        let mut state = self.state.lock();
        (state.last, state.is_answering) = (Instant::now(), false);
    }

    fn has_read(&self) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        state.last = now;
        if !state.is_answering {
            state.header_since.get_or_insert(now);
        }
    }

    fn is_answering(&self) -> bool {
        self.state.lock().is_answering
    }

    fn has_written(&self) {
        self.state.lock().last = Instant::now();
    }

    /// When the connection has taken too long, as things are.
    fn deadline(&self) -> Instant {
        let state = *self.state.lock();
        match state.header_since {
            Some(since) => since + HEADER_TIMEOUT,
            None if state.is_answering => Instant::now() + IDLE_TIMEOUT,
            None => state.last + IDLE_TIMEOUT,
        }
    }

    /// Waits until the connection has taken too long.
    async fn timed_out(&self) {
        loop {
            let deadline = self.deadline();
            if deadline <= Instant::now() {
                return;
            }
            // A header may begin meanwhile, whose limit is shorter.
            sleep_until(deadline.min(Instant::now() + HEADER_TIMEOUT / 5)).await;
        }
    }
}

/// A stream whose activity is watched.
struct Watched<S> {
    stream: BufReader<S>,
    activity: Arc<ConnectionActivity>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let bytes = ready!(Pin::new(&mut this.stream).poll_fill_buf(cx))?;
        // A header is read line by line, so that the time of the next one begins when hyper asks for it, even if it came
        // in one packet with this one.
        let line = if this.activity.is_answering() { None } else { memchr(b'\n', bytes).map(|end| end + 1) };
        let read = line.unwrap_or(bytes.len()).min(buf.remaining());
        buf.put_slice(&bytes[..read]);
        if read > 0 {
            this.activity.has_read();
            Pin::new(&mut this.stream).consume(read);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.activity.has_written();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
