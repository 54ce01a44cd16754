//! Listening sockets: binds them, or uses those that a predecessor passed on, before anything else starts, so that an
//! address in use is one clear line. `server` accepts on them; connections wait in their backlog until then.

use std::fs::{self, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use socket2::{Domain, Socket, Type};

use crate::config::Listen;

/// The most bytes of answers that wait in a TCP connection's socket: two batches of pipelined answers. The kernel's own
/// bound is megabytes, which a caller that sends requests and reads no answer would fill.
const MAX_UNSENT: u32 = 128 * 1024;

/// How the name and the URL of a Unix socket begin.
const UNIX: &str = "unix:";

/// Connections that wait to be accepted; the kernel has a lower bound (`net.core.somaxconn`).
const BACKLOG: i32 = 65_535;

/// Every user whom its folder lets reach a Unix socket may connect to it.
const UNIX_SOCKET_MODE: u32 = 0o666;

/// The message where the user lacks the permission to listen on a port.
const NOT_PERMITTED: &str = "this user may not listen on so low a port; give the server CAP_NET_BIND_SERVICE (systemd: \
     AmbientCapabilities=CAP_NET_BIND_SERVICE), or choose a port from 1024";

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {0}: it is in use; stop what listens there or change {1}")]
    InUse(String, &'static str),
    #[error("cannot listen on {0}: {1}")]
    Failed(String, String),
}

/// A listening socket that one process passes to another, and the address as the configuration names it, the same in both.
pub type ListeningSocket = (String, OwnedFd);

/// A bound socket, ready to accept.
#[derive(Debug)]
pub struct Listener {
    /// In a hand-over.
    name: String,
    /// The URL under which callers reach it.
    pub url: String,
    pub(super) is_unix: bool,
    pub socket: OwnedFd,
}

impl Listener {
    /// Takes the socket of this address from `inherited`, or binds a new one. `setting`: `server.listen` or `admin.listen`.
    /// `only_v6`: an IPv6 address is not to take IPv4 connections as well. `tls`: whether a TCP address will speak TLS.
    pub fn bind(
        setting: &'static str,
        listen: &Listen,
        only_v6: bool,
        tls: bool,
        inherited: &mut Vec<ListeningSocket>,
    ) -> Result<Listener, BindError> {
        let shown = name_of(listen);
        // No address of callers has the second form.
        let name = if setting == "server.listen" { shown.clone() } else { format!("admin {shown}") };
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::AddrInUse => BindError::InUse(shown.clone(), setting),
            ErrorKind::PermissionDenied if !shown.starts_with(UNIX) => {
                BindError::Failed(shown.clone(), NOT_PERMITTED.into())
            }
            _ => BindError::Failed(shown.clone(), error.to_string()),
        };
        let found = inherited.iter().position(|(other, _)| *other == name);
        let found = found.map(|at| inherited.remove(at).1);
        let (socket, url) = match listen {
            Listen::Tcp(address) => bind_tcp(*address, only_v6, tls, found),
            Listen::Unix(path) => bind_unix(path, found),
        }
        .map_err(failed)?;
        Ok(Listener { name, url, is_unix: matches!(listen, Listen::Unix(_)), socket })
    }

    /// The same socket, for another process.
    pub fn share(&self) -> io::Result<ListeningSocket> {
        Ok((self.name.clone(), self.socket.try_clone()?))
    }
}

/// The name of an address, the same in every process, whatever folder that was started in.
fn name_of(listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => address.to_string(),
        Listen::Unix(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            format!("{UNIX}{}", path.display())
        }
    }
}

/// Binds a TCP socket, unless one was `found` among the predecessor's; it and its URL.
fn bind_tcp(address: SocketAddr, only_v6: bool, tls: bool, found: Option<OwnedFd>) -> io::Result<(OwnedFd, String)> {
    let socket = match found {
        Some(socket) => Socket::from(socket),
        None => {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
            socket.set_reuse_address(true)?; // connections of a server that has ended do not keep the port
            if only_v6 && address.is_ipv6() {
                socket.set_only_v6(true)?;
            }
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            socket
        }
    };
    socket.set_nonblocking(true)?;
    // Accepted connections inherit both.
    socket.set_tcp_notsent_lowat(MAX_UNSENT)?;
    socket.set_tcp_nodelay(true)?;
    let address = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((socket.into(), format!("{}://{address}", if tls { "https" } else { "http" })))
}

/// Binds a Unix socket, unless one was `found` that callers can still reach; it and its URL.
fn bind_unix(path: &Path, found: Option<OwnedFd>) -> io::Result<(OwnedFd, String)> {
    let is_socket = |meta: Metadata| meta.file_type().is_socket();
    let socket = match found {
        Some(socket) if fs::metadata(path).is_ok_and(is_socket) => UnixListener::from(socket),
        Some(_) | None => {
            remove_stale_socket(path)?;
            UnixListener::bind(path)?
        }
    };
    socket.set_nonblocking(true)?;
    fs::set_permissions(path, Permissions::from_mode(UNIX_SOCKET_MODE))?;
    rustix::net::listen(&socket, BACKLOG)?; // again: this sets the backlog
    Ok((socket.into(), format!("{UNIX}{}", path.display())))
}

/// Removes the socket file that a killed process left, but not one that another process listens on.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let Ok(existing) = fs::symlink_metadata(path) else { return Ok(()) };
    if !existing.file_type().is_socket() {
        return Err(io::Error::other("another kind of file exists at this path"));
    }
    if UnixStream::connect(path).is_ok() {
        return Err(ErrorKind::AddrInUse.into());
    }
    fs::remove_file(path)
}
