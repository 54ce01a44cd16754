//! Runs Pingora's server, accepts connections on the bound sockets, and ends. Connections wait in the backlog until
//! `Server::accept`. Pingora handles neither signals nor the end of the process here: each listener and each connection
//! holds a receiver of one channel, and the server has ended when no receiver is left.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use pingora::server::configuration::ServerConf;
use pingora::server::{
    ListenFds, RunArgs, Server as PingoraServer, ShutdownSignal, ShutdownSignalWatch, ShutdownWatch,
};
use pingora::services::Service;
use pingora_runtime::current_handle;
use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Edge;
use super::drain::Drain;
use super::limiter::ConnectionLimiter;
use super::listener::{Listener, is_socket};
use super::socket::Socket;

/// How long to wait after a connection could not be accepted, for example at the limit of open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How long Pingora waits before it cuts connections, in seconds: longer than any drain. `process` decides how long
/// connections get, and ends the process then.
const GRACE_PERIOD: u64 = 30 * 86_400;

/// The Pingora server, on a thread of its own. That thread is not joined: Pingora sleeps through a whole grace period,
/// while `ended` knows when the last connection has ended.
#[derive(Debug)]
pub struct Server {
    accept: Option<oneshot::Sender<()>>,
    /// One for each listener that accepts; closed once all do, or have failed.
    listening: mpsc::Receiver<()>,
    listeners: usize,
    /// Each listener, and each connection from its accept on, holds a receiver.
    stop: watch::Sender<bool>,
    /// Cancelled when a listener has ended before `stop`.
    failed: CancellationToken,
    drain: Arc<Drain>,
    connections: Arc<ConnectionLimiter>,
}

impl Server {
    /// Prepares to serve `edge` on these sockets with this many threads, until [`Server::accept`] is the only step left.
    ///
    /// # Errors
    /// Where no thread can be started, or callers cannot reach a listener.
    pub async fn start(edge: Edge, listeners: Vec<Listener>, threads: usize) -> io::Result<Self> {
        let (drain, connections) = (edge.drain.clone(), edge.connections.clone());
        let mut paths = listeners.iter().filter(|l| l.is_unix).map(|l| PathBuf::from(&l.address)).collect::<Vec<_>>();
        let count = listeners.len();
        let (send_prepared, prepared) = oneshot::channel();
        let (accept, may_accept) = oneshot::channel();
        let (stop, stopped) = watch::channel(false);
        let failed = CancellationToken::new();
        let conf = ServerConf {
            threads,
            // Each connection stays on its thread, which saves synchronisation.
            work_stealing: false,
            grace_period_seconds: Some(GRACE_PERIOD),
            graceful_shutdown_timeout_seconds: Some(0),
            // The time-out of Pingora's own handshake, which is none, is Tokio's. Pingora's timers have a thread that
            // wakes every 10 ms from the first connection on.
            fast_timeout_to_tokio_threshold_seconds: Some(0),
            ..ServerConf::default()
        };
        let (accepts, listening) = mpsc::channel(count.max(1));
        let channels = Some((send_prepared, may_accept, accepts, stopped));
        let service = EdgeService { edge: Arc::new(edge), listeners, channels, failed: failed.clone() };
        std::thread::Builder::new().name("edge".into()).spawn(move || {
            let mut server = PingoraServer::new_with_opt_and_conf(None, conf);
            server.bootstrap();
            server.add_service(service);
            server.run(RunArgs { shutdown_signal: Box::new(NoSignal) });
        })?;
        prepared.await.map_err(io::Error::other)?;
        paths.retain(|path| !is_socket(path));
        if let Some(path) = paths.first() {
            let why = format!("the listening socket's file was removed or replaced: {}", path.display());
            return Err(io::Error::other(why));
        }
        Ok(Server { accept: Some(accept), listening, listeners: count, stop, failed, drain, connections })
    }

    /// Accepts connections from now on. `false`: the listeners have failed.
    pub async fn accept(&mut self) -> bool {
        if let Some(accept) = self.accept.take() {
            let _ = accept.send(()); // fails only if the server has ended
        }
        let mut listening = 0;
        while self.listening.recv().await.is_some() {
            listening += 1;
        }
        listening == self.listeners
    }

    /// Waits until a listener has ended, which only a defect causes before a stop.
    pub fn failed(&self) -> impl Future<Output = ()> + use<> {
        self.failed.clone().cancelled_owned()
    }

    /// Makes the health path answer 503 from now on, so that balancers send no more requests. Everything else goes on.
    pub fn delay_drain(&self) {
        self.drain.delay();
    }

    /// Accepts no more connections, and makes every answer the last one of its connection. `handed_over`: another
    /// process serves the addresses.
    pub fn begin_drain(&self, handed_over: bool) {
        self.drain.begin(handed_over);
        self.stop.send_replace(true);
    }

    /// Closes the connections without a request under way.
    pub fn close_idle(&self) {
        self.drain.close_idle();
    }

    /// The number of open connections, and of requests that go on after their connection was closed.
    pub fn connections(&self) -> usize {
        self.connections.open()
    }

    /// Waits until no listener accepts any more and every connection has ended, including those just accepted.
    pub async fn ended(&self) {
        self.stop.closed().await;
    }
}

/// Reports that the service is prepared; lets it accept; reports each listener that accepts; tells it to stop.
type Channels = (oneshot::Sender<()>, oneshot::Receiver<()>, mpsc::Sender<()>, ShutdownWatch);

/// Accepts connections on the sockets, and serves each in a task of its own, on any of the service's threads.
struct EdgeService {
    edge: Arc<Edge>,
    listeners: Vec<Listener>,
    channels: Option<Channels>,
    failed: CancellationToken,
}

#[async_trait]
impl Service for EdgeService {
    async fn start_service(&mut self, _: Option<ListenFds>, _pingora: ShutdownWatch, _: usize) {
        let Some((prepared, may_accept, accepts, stop)) = self.channels.take() else { return };
        // The other ends are dropped only when the process ends.
        if prepared.send(()).is_err() || may_accept.await.is_err() {
            return;
        }
        for listener in &self.listeners {
            if let Err(error) = listener.listen() {
                return tracing::error!(url = listener.url(), %error, "cannot listen");
            }
        }
        let accepting = self.listeners.drain(..).map(|listener| {
            let (edge, failed, url) = (self.edge.clone(), self.failed.clone(), listener.url().to_owned());
            let accepts = current_handle().spawn(accept_until(edge.clone(), listener, stop.clone(), accepts.clone()));
            async move {
                if let Ok(Err(error)) = accepts.await {
                    tracing::error!(url, %error, "cannot wait for connections");
                }
                if !edge.drain.has_begun() {
                    failed.cancel();
                }
            }
        });
        let accepting = join_all(accepting);
        drop(accepts);
        accepting.await;
    }

    fn name(&self) -> &str {
        "edge"
    }
}

/// Accepts connections until `stop`.
///
/// # Errors
/// Where this thread's runtime cannot watch the socket.
async fn accept_until(
    edge: Arc<Edge>,
    listener: Listener,
    stop: ShutdownWatch,
    accepts: mpsc::Sender<()>,
) -> io::Result<()> {
    let is_unix = listener.is_unix;
    // Tokio's own listeners would register each connection that they accept; its streams wait for any socket.
    let listening = TcpStream::from_std(listener.socket.into())?;
    let _ = accepts.send(()).await; // fails only if nobody waits for it
    drop(accepts);
    let mut stopping = stop.clone();
    // An error means that the server is gone, which is a stop as well.
    let mut stopping = pin!(async { drop(stopping.wait_for(|stop| *stop).await) });
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listening.async_io(Interest::READABLE, || accept(&listening)) => accepted,
            () = &mut stopping => return Ok(()),
        };
        match accepted {
            // A TCP connection without an address is not served: it would be taken for one over a Unix socket.
            Ok((connection, address)) if is_unix || address.is_some() => {
                let (edge, stop) = (edge.clone(), stop.clone());
                current_handle().spawn(async move {
                    match Socket::new(connection, is_unix) {
                        Ok(socket) => edge.serve(socket, address, &stop).await,
                        Err(error) => tracing::warn!(%error, "cannot serve a connection"),
                    }
                });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::select! {
                    () = sleep(ACCEPT_RETRY) => {}
                    () = &mut stopping => return Ok(()),
                }
            }
        }
    }
}

/// Accepts one connection, and says whose it is.
fn accept(listening: &TcpStream) -> io::Result<(OwnedFd, Option<IpAddr>)> {
    let (connection, address) = acceptfrom_with(listening, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    Ok((connection, address.and_then(|address| SocketAddr::try_from(address).ok()).map(|address| address.ip())))
}

/// Keeps Pingora from handling signals: `process` does.
struct NoSignal;

#[async_trait]
impl ShutdownSignalWatch for NoSignal {
    async fn recv(&self) -> ShutdownSignal {
        std::future::pending().await
    }
}
