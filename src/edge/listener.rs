//! Listening sockets: binds them, or uses those that a predecessor passed on, before anything else starts, so that an
//! address in use is one clear line. `server` accepts on them; connections wait in their backlog until then.

use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::sockopt::socket_acceptconn;
use socket2::{Domain, SockRef, Socket, Type};

use crate::config::Listen;

/// The most bytes of answers that wait in a TCP connection's socket: two batches of pipelined answers. The kernel's own
/// bound is megabytes, which a caller that sends requests and reads no answer would fill.
const MAX_UNSENT: u32 = 128 * 1024;

/// Connections that wait to be accepted; the kernel has a lower bound (`net.core.somaxconn`).
const BACKLOG: i32 = 65_535;

/// Every user of the machine may connect to a Unix socket whose folder lets them reach it.
const UNIX_SOCKET_MODE: u32 = 0o666;

/// The message where the user lacks the permission to listen on a port.
const NOT_PERMITTED: &str = "this user may not listen on so low a port; give the server CAP_NET_BIND_SERVICE (systemd: \
     AmbientCapabilities=CAP_NET_BIND_SERVICE), or choose a port from 1024";

/// Two sockets cannot have the port at once, and the successor binds before the predecessor closes.
const IN_USE_BY_PREDECESSOR: &str = "the server that is to be replaced listens on this port under another address; keep \
     server.listen as it is there, or stop that one first";

/// Whom a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    Callers,
    Admins,
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {0}: it is in use; stop what listens there or change {1}")]
    InUse(String, &'static str),
    #[error("cannot listen on {0}: {1}")]
    Failed(String, String),
}

/// A listening socket that one process passes to another.
#[derive(Debug)]
pub struct ListeningSocket {
    name: String,
    socket: OwnedFd,
}

impl ListeningSocket {
    /// A socket received from another process.
    ///
    /// # Errors
    /// Where it does not listen.
    pub fn new(name: String, socket: OwnedFd) -> io::Result<Self> {
        if !socket_acceptconn(&socket)? {
            return Err(io::Error::other(format!("the socket received for {name} does not listen")));
        }
        Ok(ListeningSocket { name, socket })
    }

    /// The socket of this name among those that a predecessor passed on, if it has one.
    pub fn take_from(inherited: &mut Vec<ListeningSocket>, name: &str) -> Option<OwnedFd> {
        let found = inherited.iter().position(|socket| socket.name == name)?;
        Some(inherited.remove(found).socket)
    }

    /// The address as the configuration names it, the same in both processes.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The TCP address that it listens on; `None` for a Unix socket.
    fn address(&self) -> Option<SocketAddr> {
        rustix::net::getsockname(&self.socket).ok()?.try_into().ok()
    }
}

/// A bound socket, ready to accept.
#[derive(Debug)]
pub struct Listener {
    /// In a hand-over.
    name: String,
    /// An IP address with a port, or a path.
    pub(super) address: String,
    url: String,
    pub(super) is_unix: bool,
    pub socket: OwnedFd,
}

impl Listener {
    /// Takes the socket of this address from `inherited`, or binds a new one. `only_v6`: an IPv6 address is not to take
    /// IPv4 connections as well. `tls`: whether a TCP address will speak TLS.
    pub fn bind(
        audience: Audience,
        listen: &Listen,
        only_v6: bool,
        tls: bool,
        inherited: &mut Vec<ListeningSocket>,
    ) -> Result<Listener, BindError> {
        let shown = name_of(listen);
        let (name, setting) = match audience {
            Audience::Callers => (shown.clone(), "server.listen"),
            Audience::Admins => (format!("admin {shown}"), "admin.listen"), // no address of callers has this form
        };
        let fail = |reason: &str| BindError::Failed(shown.clone(), reason.to_owned());
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse(shown.clone(), setting),
            _ => fail(&e.to_string()),
        };
        let found = inherited.iter().position(|socket| socket.name == name);
        match listen {
            Listen::Tcp(address) => {
                // The predecessor may have been configured with port 0, and this process with the port it was given.
                let found = found.or_else(|| inherited.iter().position(|socket| socket.address() == Some(*address)));
                let socket = match found {
                    Some(at) => TcpListener::from(inherited.remove(at).socket),
                    None => bind_tcp(*address, only_v6).map_err(|e| match e.kind() {
                        io::ErrorKind::AddrInUse if is_port_of(inherited, address.port()) => {
                            fail(IN_USE_BY_PREDECESSOR)
                        }
                        io::ErrorKind::PermissionDenied => fail(NOT_PERMITTED),
                        _ => failed(e),
                    })?,
                };
                socket.set_nonblocking(true).map_err(failed)?;
                // Accepted connections inherit both.
                SockRef::from(&socket).set_tcp_notsent_lowat(MAX_UNSENT).map_err(failed)?;
                SockRef::from(&socket).set_tcp_nodelay(true).map_err(failed)?;
                let address = socket.local_addr().map_err(failed)?.to_string();
                let url = format!("{}://{address}", if tls { "https" } else { "http" });
                Ok(Listener { name, url, address, is_unix: false, socket: socket.into() })
            }
            Listen::Unix(path) => {
                let socket = match found {
                    // Callers cannot reach a socket whose file is gone or replaced by another kind of file.
                    Some(at) if is_socket(path) => UnixListener::from(inherited.remove(at).socket),
                    Some(_) | None => {
                        remove_stale_socket(path).map_err(failed)?;
                        UnixListener::bind(path).map_err(failed)?
                    }
                };
                socket.set_nonblocking(true).map_err(failed)?;
                // Fails for a socket of another kind.
                socket.local_addr().map_err(failed)?;
                let address = path.display().to_string();
                let url = format!("unix:{address}");
                Ok(Listener { name, url, address, is_unix: true, socket: socket.into() })
            }
        }
    }

    /// The URL under which callers reach it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Makes the socket ready for callers.
    ///
    /// # Errors
    /// What the system reports.
    pub(super) fn listen(&self) -> io::Result<()> {
        if self.is_unix {
            fs::set_permissions(&self.address, Permissions::from_mode(UNIX_SOCKET_MODE))?;
        }
        Ok(rustix::net::listen(&self.socket, BACKLOG)?) // again: this sets the backlog
    }

    /// The same socket, for another process.
    pub fn share(&self) -> io::Result<ListeningSocket> {
        Ok(ListeningSocket { name: self.name.clone(), socket: self.socket.try_clone()? })
    }
}

/// The name of an address, the same in every process, whatever folder that was started in.
fn name_of(listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => address.to_string(),
        Listen::Unix(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            format!("unix:{}", path.display())
        }
    }
}

pub(super) fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

fn is_port_of(inherited: &[ListeningSocket], port: u16) -> bool {
    inherited.iter().any(|socket| socket.address().is_some_and(|address| address.port() == port))
}

fn bind_tcp(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?; // connections of a server that has ended do not keep the port
    if only_v6 && address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Removes the socket file that a killed process left, but not one that another process listens on.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let Ok(existing) = fs::symlink_metadata(path) else { return Ok(()) };
    if !existing.file_type().is_socket() {
        return Err(io::Error::other("another kind of file exists at this path"));
    }
    if UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    fs::remove_file(path)
}
