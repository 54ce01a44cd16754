use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::server::configuration::ServerConf;
use pingora::server::{
    ListenFds, RunArgs, Server as PingoraServer, ShutdownSignal, ShutdownSignalWatch, ShutdownWatch,
};
use pingora::services::Service;
use pingora::services::listening::Service as Listening;
use tokio::sync::oneshot;

use super::Edge;
use crate::config::Listen;

/// Pingora's buffer in front of each socket's reads. Its default of 64 KiB costs a new connection
/// 5 microseconds; ours are small, and writes must stay buffered to go out in one.
const L4_READ_BUFFER: usize = 4096;

/// How long Pingora waits before it cuts connections, in seconds: longer than any drain. How long
/// they are given is ours to say, and the process ends then.
const GRACE: u64 = 30 * 86_400;

/// A listening socket, bound before anything else starts: an address that is taken is one clear
/// line at once. (Pingora would try for 30 s and panic.)
#[derive(Debug)]
pub struct Bound {
    /// As Pingora knows it.
    address: String,
    url: String,
    is_unix: bool,
    socket: OwnedFd,
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {reason}")]
pub struct BindError {
    address: String,
    reason: String,
}

/// Binds one address; `tls` is what a TCP address will speak.
pub fn bind(listen: &Listen, tls: bool) -> Result<Bound, BindError> {
    match listen {
        Listen::Tcp(address) => {
            let fail = |e: io::Error| BindError {
                address: address.to_string(),
                reason: match e.kind() {
                    io::ErrorKind::AddrInUse => "it is in use; stop what listens there or change server.listen".into(),
                    _ => e.to_string(),
                },
            };
            let socket = TcpListener::bind(address).map_err(fail)?;
            socket.set_nonblocking(true).map_err(fail)?;
            let address = socket.local_addr().map_err(fail)?.to_string();
            let scheme = if tls { "https" } else { "http" };
            Ok(Bound { url: format!("{scheme}://{address}"), address, is_unix: false, socket: socket.into() })
        }
        Listen::Unix(path) => {
            let address = path.display().to_string();
            let fail = |reason: String| BindError { address: address.clone(), reason };
            remove_stale_socket(path).map_err(fail)?;
            let socket = UnixListener::bind(path).map_err(|e| fail(e.to_string()))?;
            socket.set_nonblocking(true).map_err(|e| fail(e.to_string()))?;
            Ok(Bound { url: format!("unix:{address}"), address, is_unix: true, socket: socket.into() })
        }
    }
}

/// Removes the socket file that a killed process left; one that somebody listens on stays.
fn remove_stale_socket(path: &Path) -> Result<(), String> {
    let Ok(there) = fs::symlink_metadata(path) else { return Ok(()) };
    if !there.file_type().is_socket() {
        return Err("a file that is no socket is there".into());
    }
    if UnixStream::connect(path).is_ok() {
        return Err("it is in use; stop what listens there or change server.listen".into());
    }
    fs::remove_file(path).map_err(|e| e.to_string())
}

impl Bound {
    /// The URL under which it is reached.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// The Pingora server, on a thread of its own. It runs until it is told to stop, and its thread is
/// left behind then: Pingora sleeps through a whole grace period, while we know when the last
/// connection is gone.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
}

impl Server {
    /// Serves `edge` on the sockets bound, with this many threads; `ready` is called once they
    /// accept.
    pub fn start(
        edge: Edge,
        bound: Vec<Bound>,
        threads: usize,
        ready: impl FnOnce() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let mut listening = Listening::new("edge".to_owned(), edge);
        for socket in &bound {
            let listener = if socket.is_unix {
                ListenerConfig::uds(&socket.address)
            } else {
                ListenerConfig::tcp(&socket.address)
            };
            listening.add_listener(listener.l4_buffer(L4BufferSettings::default().read(L4_READ_BUFFER)));
        }
        let (stop, stopped) = oneshot::channel();
        let conf = ServerConf {
            threads,
            // Each connection stays on its thread: no queue to steal from, less to synchronise.
            work_stealing: false,
            grace_period_seconds: Some(GRACE),
            graceful_shutdown_timeout_seconds: Some(0),
            ..ServerConf::default()
        };
        let service = Sockets { listening, bound, ready: Some(Box::new(ready)) };
        let signal = StopSignal(Mutex::new(Some(stopped)));
        std::thread::Builder::new().name("edge".into()).spawn(move || {
            let mut server = PingoraServer::new_with_opt_and_conf(None, conf);
            server.bootstrap();
            server.add_service(service);
            server.run(RunArgs { shutdown_signal: Box::new(signal) });
        })?;
        Ok(Server { stop: Some(stop) })
    }

    /// No new connections from here on; those there are told to finish.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(()); // the other end is gone only if the server is
        }
    }
}

/// Pingora's listening service, handed our sockets through the table by which Pingora hands
/// sockets from one process to the next.
struct Sockets {
    listening: Listening<Edge>,
    bound: Vec<Bound>,
    ready: Option<Box<dyn FnOnce() + Send + Sync>>,
}

#[async_trait]
impl Service for Sockets {
    async fn start_service(&mut self, fds: Option<ListenFds>, shutdown: ShutdownWatch, listeners_per_fd: usize) {
        if let Some(fds) = &fds {
            let mut table = fds.lock();
            for bound in self.bound.drain(..) {
                table.add(bound.address, bound.socket.into_raw_fd());
            }
        }
        // The sockets listen since they were bound; what connects now waits in their backlog.
        if let Some(ready) = self.ready.take() {
            ready();
        }
        self.listening.start_service(fds, shutdown, listeners_per_fd).await;
    }

    fn name(&self) -> &str {
        "edge"
    }
}

/// Tells Pingora to stop when we say so: signals are ours to hear.
struct StopSignal(Mutex<Option<oneshot::Receiver<()>>>);

#[async_trait]
impl ShutdownSignalWatch for StopSignal {
    async fn recv(&self) -> ShutdownSignal {
        let stopped = self.0.lock().take();
        if let Some(stopped) = stopped {
            let _ = stopped.await; // a sender dropped is a stop as well
        }
        ShutdownSignal::GracefulTerminate
    }
}
