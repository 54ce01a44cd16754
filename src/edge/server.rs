//! Binds the listening sockets and runs Pingora's server on them. A socket is bound, or taken over from another
//! process, before anything else starts, so that a taken address is one clear line; connections wait in the backlog
//! until `Server::open`. Pingora handles neither signals nor the end of the process here: each listener and each
//! connection holds a receiver of one channel, and the server is over when no receiver is left.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::server::configuration::ServerConf;
use pingora::server::{
    ListenFds, RunArgs, Server as PingoraServer, ShutdownSignal, ShutdownSignalWatch, ShutdownWatch,
};
use pingora::services::Service;
use pingora::services::listening::Service as Listening;
use socket2::SockRef;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::Edge;
use super::handover::{Handed, name_of};
use crate::config::Listen;

/// Pingora's buffer in front of each socket's reads. Its default of 64 KiB costs a new connection
/// 5 microseconds; ours are small, and writes must stay buffered to go out in one.
const L4_READ_BUFFER: usize = 4096;

/// Bytes of answers that wait in a TCP connection's socket until they can be sent: two gatherings of pipelined
/// ones. The kernel's own bound is megabytes, which a caller that asks and reads nothing would have filled
/// each time it comes.
const MAX_NOT_SENT: u32 = 128 * 1024;

/// How often it is looked whether the listeners accept. What fails does so within microseconds of
/// beginning to, so twice in a row is for good.
const OPENING_LOOK: Duration = Duration::from_millis(2);

/// How long it may take until they do. What is there takes one look or two, be the machine as busy as it may;
/// a listener that neither accepts nor fails within this will not.
const OPENING: Duration = Duration::from_secs(10);

/// How long Pingora waits before it cuts connections, in seconds: longer than any drain. How long
/// they are given is ours to say, and the process ends then.
const GRACE: u64 = 30 * 86_400;

/// A listening socket, bound before anything else starts: an address that is taken is one clear
/// line at once. (Pingora would try for 30 s and panic.)
#[derive(Debug)]
pub struct Bound {
    /// As the configuration names it.
    asked: String,
    /// As Pingora knows it.
    address: String,
    url: String,
    is_unix: bool,
    socket: OwnedFd,
}

const IN_USE: &str = "it is in use; stop what listens there or change server.listen";

/// What is said where this user may not listen on a port.
pub const NOT_PERMITTED: &str = "this user may not listen on so low a port; give the server CAP_NET_BIND_SERVICE (systemd: \
     AmbientCapabilities=CAP_NET_BIND_SERVICE), or choose a port from 1024";

/// Where the process that is to be replaced holds the port under another address: two sockets cannot
/// have it at once, and the new one must be there before the old one goes.
const IN_USE_BY_THE_ONE_BEFORE: &str = "the server that is to be replaced listens on this port under another address; keep \
     server.listen as it is there, or stop that one first";

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {reason}")]
pub struct BindError {
    address: String,
    reason: String,
}

impl BindError {
    /// Whether another process has the address.
    pub fn is_in_use(&self) -> bool {
        self.reason == IN_USE
    }
}

/// Binds one address, or takes its socket from `handed`, which another process gave; `tls` is what
/// a TCP address will speak.
pub fn bind(listen: &Listen, tls: bool, handed: &mut Vec<Handed>) -> Result<Bound, BindError> {
    let asked = name_of(listen);
    let fail = |reason: String| BindError { address: asked.clone(), reason };
    let wrong = |e: io::Error| fail(e.to_string());
    let there = handed.iter().position(|given| given.asked() == asked);
    match listen {
        Listen::Tcp(address) => {
            // Asked for as any free port before, and by the port it was given now.
            let there = there.or_else(|| handed.iter().position(|given| given.address() == Some(*address)));
            let socket = match there {
                Some(there) => TcpListener::from(handed.remove(there).into_socket()),
                None => TcpListener::bind(address).map_err(|e| match e.kind() {
                    io::ErrorKind::AddrInUse if holds_port(handed, address.port()) => {
                        fail(IN_USE_BY_THE_ONE_BEFORE.into())
                    }
                    io::ErrorKind::AddrInUse => fail(IN_USE.into()),
                    io::ErrorKind::PermissionDenied => fail(NOT_PERMITTED.into()),
                    _ => wrong(e),
                })?,
            };
            socket.set_nonblocking(true).map_err(wrong)?;
            // What it accepts inherits this.
            SockRef::from(&socket).set_tcp_notsent_lowat(MAX_NOT_SENT).map_err(wrong)?;
            let address = socket.local_addr().map_err(wrong)?.to_string();
            let scheme = if tls { "https" } else { "http" };
            let url = format!("{scheme}://{address}");
            Ok(Bound { asked, url, address, is_unix: false, socket: socket.into() })
        }
        Listen::Unix(path) => {
            let address = path.display().to_string();
            let socket = match there {
                // A socket whose file is gone, or is something else now, is found by nobody.
                Some(there) if is_socket(path) => UnixListener::from(handed.remove(there).into_socket()),
                Some(_) | None => {
                    remove_stale_socket(path).map_err(fail)?;
                    UnixListener::bind(path).map_err(wrong)?
                }
            };
            socket.set_nonblocking(true).map_err(wrong)?;
            // Read back, so that a socket of another kind is not taken for one.
            socket.local_addr().map_err(wrong)?;
            let url = format!("unix:{address}");
            Ok(Bound { asked, url, address, is_unix: true, socket: socket.into() })
        }
    }
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

fn holds_port(handed: &[Handed], port: u16) -> bool {
    handed.iter().any(|given| given.address().is_some_and(|address| address.port() == port))
}

/// Removes the socket file that a killed process left; one that somebody listens on stays.
fn remove_stale_socket(path: &Path) -> Result<(), String> {
    let Ok(there) = fs::symlink_metadata(path) else { return Ok(()) };
    if !there.file_type().is_socket() {
        return Err("a file that is no socket is there".into());
    }
    if UnixStream::connect(path).is_ok() {
        return Err(IN_USE.into());
    }
    fs::remove_file(path).map_err(|e| e.to_string())
}

impl Bound {
    /// The URL under which it is reached.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same socket, to be given to another process.
    pub fn share(&self) -> io::Result<Handed> {
        Ok(Handed::new(self.asked.clone(), self.socket.try_clone()?))
    }
}

/// The Pingora server, on a thread of its own. It runs until it is told to stop, and its thread is
/// left behind then: Pingora sleeps through a whole grace period, while we know when the last
/// connection is gone.
#[derive(Debug)]
pub struct Server {
    prepared: Option<oneshot::Receiver<()>>,
    open: Option<oneshot::Sender<()>>,
    listeners: usize,
    /// Where the Unix sockets among them are found.
    paths: Vec<PathBuf>,
    /// Whoever accepts, and each connection from the moment it is accepted, listens to this.
    stop: watch::Sender<bool>,
}

impl Server {
    /// Makes ready to serve `edge` on the sockets bound, with this many threads. What connects
    /// waits in their backlog until [`Server::open`].
    pub fn start(edge: Edge, bound: Vec<Bound>, threads: usize) -> io::Result<Self> {
        let mut listening = Listening::new("edge".to_owned(), edge);
        for socket in &bound {
            let listener = if socket.is_unix {
                ListenerConfig::uds(&socket.address)
            } else {
                ListenerConfig::tcp(&socket.address)
            };
            listening.add_listener(listener.l4_buffer(L4BufferSettings::default().read(L4_READ_BUFFER)));
        }
        let listeners = bound.len();
        let paths = bound.iter().filter(|socket| socket.is_unix).map(|socket| socket.address.clone().into()).collect();
        let (tell_prepared, prepared) = oneshot::channel();
        let (open, opened) = oneshot::channel();
        let (stop, stopped) = watch::channel(false);
        let conf = ServerConf {
            threads,
            // Each connection stays on its thread: no queue to steal from, less to synchronise.
            work_stealing: false,
            grace_period_seconds: Some(GRACE),
            graceful_shutdown_timeout_seconds: Some(0),
            ..ServerConf::default()
        };
        let gate = Some((tell_prepared, opened, stopped));
        let service = Sockets { listening, bound, gate };
        std::thread::Builder::new().name("edge".into()).spawn(move || {
            let mut server = PingoraServer::new_with_opt_and_conf(None, conf);
            server.bootstrap();
            server.add_service(service);
            server.run(RunArgs { shutdown_signal: Box::new(NoSignal) });
        })?;
        Ok(Server { prepared: Some(prepared), open: Some(open), listeners, paths, stop })
    }

    /// Waits until nothing but [`Server::open`] stands between the sockets and their callers.
    /// Whether it came so far.
    pub async fn is_prepared(&mut self) -> bool {
        match self.prepared.take() {
            Some(prepared) => prepared.await.is_ok(),
            None => true,
        }
    }

    /// Accepts from here on. Whether it came to that: Pingora builds its listeners only now, and ends with a
    /// panic where it cannot, such as without a file left to open.
    pub async fn open(&mut self) -> bool {
        // Pingora opens any file that is there; callers find a socket or nobody.
        if let Some(path) = self.paths.iter().find(|path| !is_socket(path)) {
            tracing::error!(path = %path.display(), "the socket's file is gone, or is something else now");
            return false;
        }
        if let Some(open) = self.open.take() {
            let _ = open.send(()); // the other end is gone only if the server is
        }
        // Each listener that accepts hears of a stop, beside the service that they are part of.
        let accepting = 1 + self.listeners;
        let opened = async {
            loop {
                let before = self.stop.receiver_count();
                tokio::time::sleep(OPENING_LOOK).await;
                let now = self.stop.receiver_count();
                if now == 0 || before >= accepting && now >= accepting {
                    return now > 0;
                }
            }
        };
        timeout(OPENING, opened).await.unwrap_or(false)
    }

    /// No new connections from here on; those there are told to finish.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Whether nobody accepts any more and every connection is gone, one that had just been
    /// accepted among them.
    pub fn is_over(&self) -> bool {
        self.stop.receiver_count() == 0
    }
}

/// Says that it is prepared; hears that it is to be opened; hears that it is to stop.
type Gate = (oneshot::Sender<()>, oneshot::Receiver<()>, ShutdownWatch);

/// Pingora's listening service, handed our sockets through the table by which Pingora hands
/// sockets from one process to the next.
struct Sockets {
    listening: Listening<Edge>,
    bound: Vec<Bound>,
    gate: Option<Gate>,
}

#[async_trait]
impl Service for Sockets {
    async fn start_service(&mut self, fds: Option<ListenFds>, _pingora: ShutdownWatch, listeners_per_fd: usize) {
        let Some((prepared, open, stop)) = self.gate.take() else { return };
        if let Some(fds) = &fds {
            let mut table = fds.lock();
            for bound in self.bound.drain(..) {
                table.add(bound.address, bound.socket.into_raw_fd());
            }
        }
        // The other ends are gone only if the process ends.
        if prepared.send(()).is_ok() && open.await.is_ok() {
            self.listening.start_service(fds, stop, listeners_per_fd).await;
        }
    }

    fn name(&self) -> &str {
        "edge"
    }
}

/// Signals are ours to hear, and so is the word to stop ours to give.
struct NoSignal;

#[async_trait]
impl ShutdownSignalWatch for NoSignal {
    async fn recv(&self) -> ShutdownSignal {
        std::future::pending().await
    }
}
