//! Accepts connections and serves HTTP/1.1 on them, with a bound on how many there are and on how long each may wait, so
//! that nobody can hold the listener for good.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Connections at once: a few admins, a bot and a collector of metrics need a tenth. One more is closed when it comes.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// How long a connection may take for TLS, and for a header with the wait for it, and may stay open without a byte of an
/// answer being taken.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long connections stay open after a stop: the first request of a new one is on its way.
const LAST_REQUESTS: Duration = Duration::from_millis(500);

/// The most bytes of a header and of what is buffered with it.
const MAX_BUFFER: usize = 32 * 1024;

/// Fields of a header: as many as callers may send.
const MAX_FIELDS: usize = 100;

/// How long to wait after a connection could not be accepted, for example at the limit of open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The address that a request came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Serves until `stop`, and every connection to its end.
pub(super) async fn serve(listener: TcpListener, router: Router, tls: Option<TlsAcceptor>, stop: CancellationToken) {
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
        let (router, tls, stop) = (router.clone().layer(Extension(Peer(peer))), tls.clone(), stop.clone());
        tokio::spawn(async move {
            // An error is the caller's: it has gone, did not speak HTTP, or took too long.
            let _ = handshake_and_serve(stream, router, tls, stop).await;
            drop(permit);
        });
    }
    drop(listener);
    let _ = permits.acquire_many(MAX_CONNECTIONS as u32).await; // they are never closed
}

async fn handshake_and_serve(
    stream: TcpStream,
    router: Router,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    set_tcp_user_timeout(&stream, IDLE_TIMEOUT.as_millis() as u32)?;
    match tls {
        None => serve_connection(stream, router, stop).await,
        Some(tls) => serve_connection(timeout(IDLE_TIMEOUT, tls.accept(stream)).await??, router, stop).await,
    }
    Ok(())
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, stop: CancellationToken) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT).max_buf_size(MAX_BUFFER).max_headers(MAX_FIELDS);
    http.half_close(true); // a caller that closes its own direction waits for its answer
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    let ends = async {
        stop.cancelled().await;
        sleep(LAST_REQUESTS).await;
    };
    tokio::select! {
        _ = connection.as_mut() => return,
        () = ends => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
