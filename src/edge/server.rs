//! Accepts connections on the bound sockets, and ends. Connections wait in the backlog until [`Server::accept`]. Each
//! listener and each connection holds a receiver of one channel, and the server has ended when no receiver is left.
//!
//! A stop has two steps. First every answer becomes the last one of its connection; later the connections without a
//! request under way are closed. An idle connection stays open between the two, because its next request may be on the
//! way, and HTTP/1.1 can announce the end only in an answer. `process` decides when each step is taken.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pingora::server::ShutdownWatch;
use pingora_runtime::{Runtime, current_handle};
use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Edge;
use super::listener::Listener;
use super::transport::Socket;

/// How long to wait after a connection could not be accepted, for example at the limit of open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The threads that serve callers, and their listeners. Dropping it ends both.
#[expect(missing_debug_implementations, reason = "Pingora's runtime has none")]
pub struct Server {
    edge: Arc<Edge>,
    /// A runtime for each thread, on which a connection stays: that saves synchronisation.
    _runtime: Runtime,
    /// Until [`Server::accept`].
    listeners: Vec<AcceptLoop>,
    /// Each listener, and each connection from its accept on, holds a receiver.
    stop: watch::Sender<bool>,
}

/// A listening socket with the thread that accepts on it. Tokio's own listeners would register each connection with that
/// thread; its streams wait for any socket.
struct AcceptLoop {
    thread: Handle,
    socket: TcpStream,
    is_unix: bool,
}

impl Server {
    /// Prepares to serve `edge` on these sockets with this many threads, until [`Server::accept`] is the only step left.
    ///
    /// # Errors
    /// Where the system lets no thread wait for a socket.
    pub fn start(edge: Arc<Edge>, listeners: Vec<Listener>, threads: usize) -> io::Result<Self> {
        let runtime = Runtime::new_no_steal(threads, "edge");
        let register = |Listener { socket, is_unix, .. }: Listener| {
            let thread = runtime.get_handle().clone();
            let socket = {
                let _entered = thread.enter();
                TcpStream::from_std(socket.into())?
            };
            Ok(AcceptLoop { thread, socket, is_unix })
        };
        let listeners = listeners.into_iter().map(register).collect::<io::Result<_>>()?;
        Ok(Server { edge, _runtime: runtime, listeners, stop: watch::Sender::new(false) })
    }

    /// Accepts connections from now on.
    pub fn accept(&mut self) {
        for AcceptLoop { thread, socket, is_unix } in self.listeners.drain(..) {
            thread.spawn(accept_until(self.edge.clone(), socket, is_unix, self.stop.subscribe()));
        }
    }

    /// Makes the health path answer 503 from now on, so that balancers send no more requests. Everything else goes on.
    pub fn delay_drain(&self) {
        self.edge.health_fails.store(true, Ordering::Relaxed);
    }

    /// Accepts no more connections, and makes every answer the last one of its connection. `handed_over`: another
    /// process serves the addresses.
    pub fn begin_drain(&self, handed_over: bool) {
        self.edge.health_fails.store(!handed_over, Ordering::Relaxed);
        self.stop.send_replace(true);
    }

    /// Closes the connections without a request under way.
    pub fn close_idle(&self) {
        self.edge.closes_idle.send_replace(true);
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.edge.connections.open()
    }

    /// Waits until no listener accepts any more and every connection has ended, including those just accepted.
    pub async fn ended(&self) {
        self.stop.closed().await;
    }
}

/// Accepts connections until `stop`, and serves each in a task of its own, on any of the threads.
async fn accept_until(edge: Arc<Edge>, listening: TcpStream, is_unix: bool, stop: ShutdownWatch) {
    let mut stopping = stop.clone();
    // An error means that the server is gone, which is a stop as well.
    let mut stopping = pin!(async { drop(stopping.wait_for(|stop| *stop).await) });
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listening.async_io(Interest::READABLE, || accept(&listening)) => accepted,
            () = &mut stopping => return,
        };
        match accepted {
            // A TCP connection without an address is not served: it would be taken for one over a Unix socket.
            Ok((connection, address)) if is_unix || address.is_some() => {
                let (edge, stop) = (edge.clone(), stop.clone());
                current_handle().spawn(async move {
                    // Registered with the runtime of the thread that will serve it.
                    let socket = match is_unix {
                        true => UnixStream::from_std(connection.into()).map(Socket::Right),
                        false => TcpStream::from_std(connection.into()).map(Socket::Left),
                    };
                    match socket {
                        Ok(socket) => edge.serve(socket, address, stop).await,
                        Err(error) => tracing::warn!(%error, "cannot serve a connection"),
                    }
                });
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Accepts one connection, and says whose it is.
fn accept(listening: &TcpStream) -> io::Result<(OwnedFd, Option<IpAddr>)> {
    let (connection, address) = acceptfrom_with(listening, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    Ok((connection, address.and_then(|address| SocketAddr::try_from(address).ok()).map(|address| address.ip())))
}
