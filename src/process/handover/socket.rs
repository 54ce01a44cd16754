//! The Unix socket at `server.handover`. It is of the type SOCK_SEQPACKET: what one process sends with one call the other
//! receives with one call, and the listening sockets that belong to it come with it (`SCM_RIGHTS`).
//!
//! The listening sockets themselves are passed, instead of binding a second set with `SO_REUSEPORT`: a connection waits
//! in the queue of one listening socket, and is reset when that socket is closed.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recvmsg, sendmsg, socket_with,
};
use tempfile::TempPath;
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::config::HANDOVER_SUFFIX;

/// Largest message. The longest one names 253 sockets by their paths.
const MAX_MESSAGE: usize = 64 * 1024;

/// The most sockets that the kernel passes with one message.
const MAX_SOCKETS: usize = 253;

/// Processes that wait to be accepted.
const BACKLOG: i32 = 16;

/// What is received with one call; `None`: the other process has closed the connection.
pub type Received = Option<(Vec<u8>, Vec<OwnedFd>)>;

/// The listening Unix socket at `server.handover`. Its file is never removed, only replaced: a process that removed it
/// at its end might remove its successor's. If nothing listens on the file, there is no predecessor.
#[derive(Debug)]
pub struct HandoverListener {
    socket: UnixStream,
    path: PathBuf,
    /// Where the file is until it is published.
    unpublished: Option<TempPath>,
}

impl HandoverListener {
    /// Binds the socket at another path beside its own, which stays the predecessor's as long as this process may fail.
    pub fn prepare(path: &Path) -> io::Result<HandoverListener> {
        if fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket()) {
            return Err(io::Error::other("another kind of file exists at this path"));
        }
        let mut unpublished = path.as_os_str().to_owned();
        unpublished.push(HANDOVER_SUFFIX);
        let unpublished = PathBuf::from(unpublished);
        // A file left by a killed process: no live one is here, because it would hold the listeners, which are bound
        // first.
        match fs::remove_file(&unpublished) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Ok(()) | Err(_) => {}
        }
        let socket = unconnected()?;
        bind(&socket, &SocketAddrUnix::new(&unpublished)?)?;
        let unpublished = TempPath::try_from_path(unpublished)?;
        fs::set_permissions(&unpublished, fs::Permissions::from_mode(0o600))?;
        listen(&socket, BACKLOG)?;
        Ok(HandoverListener { socket: registered(socket)?, path: path.to_owned(), unpublished: Some(unpublished) })
    }

    /// Moves the socket to its path in one step, so that the path always leads to one process or the other.
    pub fn publish(&mut self) -> io::Result<()> {
        self.unpublished.take().map_or(Ok(()), |file| file.persist(&self.path).map_err(|e| e.error))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next process that connects.
    ///
    /// # Errors
    /// Where none can be accepted, or the process is another user's.
    pub async fn accept(&self) -> io::Result<PeerConnection> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accept = || Ok(accept_with(&self.socket, flags)?);
        PeerConnection::over(self.socket.async_io(Interest::READABLE, accept).await?)
    }
}

/// A connection to another process of the same user.
#[derive(Debug)]
pub struct PeerConnection {
    socket: UnixStream,
    pid: i32,
}

impl PeerConnection {
    /// Connects to the process that listens at `path`; `None`: no process does.
    pub fn connect(path: &Path) -> io::Result<Option<PeerConnection>> {
        let socket = unconnected()?;
        match connect(&socket, &SocketAddrUnix::new(path)?) {
            Ok(()) => PeerConnection::over(socket).map(Some),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
            Err(Errno::PROTOTYPE) => {
                Err(io::Error::other("another program, or another version of this one, listens there; stop it first"))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Checks the user of the other process. The file's mode does so too, but not in a folder where anyone may replace
    /// the file.
    fn over(socket: OwnedFd) -> io::Result<PeerConnection> {
        let peer = socket_peercred(&socket)?;
        let pid = peer.pid.as_raw_nonzero().get();
        if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
            let uid = peer.uid.as_raw();
            return Err(io::Error::other(format!(
                "process {pid} at the other end belongs to another user (uid {uid})"
            )));
        }
        Ok(PeerConnection { socket: registered(socket)?, pid })
    }

    /// The other process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a message, and these sockets with it. It never waits: there is room for all messages of a hand-over.
    pub fn send(&self, message: &[u8], sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !sockets.is_empty() && !control.push(SendAncillaryMessage::ScmRights(sockets)) {
            return Err(io::Error::other("more sockets than can be passed"));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(message)], &mut control, flags)?;
        Ok(())
    }

    /// Receives the next message. Cancel safe.
    pub async fn receive(&self) -> io::Result<Received> {
        let receive = || {
            let mut message = vec![0; MAX_MESSAGE];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut message)], &mut control, flags)?;
            let mut sockets = Vec::new();
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = part {
                    sockets.extend(passed);
                }
            }
            if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
                return Err(io::Error::other("a message was too long"));
            }
            message.truncate(received.bytes);
            Ok((received.bytes > 0).then_some((message, sockets)))
        };
        self.socket.async_io(Interest::READABLE, receive).await
    }
}

fn unconnected() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Tokio's streams wait for any socket.
fn registered(socket: OwnedFd) -> io::Result<UnixStream> {
    UnixStream::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use super::*;

    /// A connected pair: the process that connects, and the one that accepts.
    async fn pair(folder: &Path) -> (PeerConnection, PeerConnection) {
        let path = folder.join("h.sock");
        let mut listener = HandoverListener::prepare(&path).unwrap();
        assert!(PeerConnection::connect(&path).unwrap().is_none(), "it is not published yet");
        listener.publish().unwrap();
        let connected = PeerConnection::connect(&path).unwrap().unwrap();
        (connected, listener.accept().await.unwrap())
    }

    #[tokio::test]
    async fn messages_arrive_one_by_one_and_with_their_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let (receiver, sender) = pair(folder.path()).await;
        assert_eq!(receiver.pid(), i32::try_from(std::process::id()).unwrap());
        let listeners: Vec<_> = (0..MAX_SOCKETS).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let fds: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
        sender.send(b"before", &[]).unwrap();
        sender.send(b"sockets", &fds).unwrap();
        sender.send(&[7; MAX_MESSAGE], &[]).unwrap();
        assert!(sender.send(b"one more", &[&fds[..], &fds[..1]].concat()).is_err());
        drop(sender);
        let (message, none) = receiver.receive().await.unwrap().unwrap();
        assert!(message == b"before" && none.is_empty());
        let (message, sockets) = receiver.receive().await.unwrap().unwrap();
        assert_eq!((message.as_slice(), sockets.len()), (&b"sockets"[..], MAX_SOCKETS));
        for (socket, listener) in sockets.into_iter().zip(&listeners) {
            let received = TcpListener::from(socket);
            assert_eq!(received.local_addr().unwrap(), listener.local_addr().unwrap());
        }
        assert_eq!(receiver.receive().await.unwrap().unwrap().0, [7; MAX_MESSAGE]);
        assert!(receiver.receive().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_listener_replaces_its_predecessors_and_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("h.sock");
        let mut first = HandoverListener::prepare(&path).unwrap();
        first.publish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut second = HandoverListener::prepare(&path).unwrap();
        let connects = || PeerConnection::connect(&path).unwrap().is_some();
        assert!(connects(), "the first is connected to as long as the second may fail");
        second.publish().unwrap();
        drop(first);
        assert!(connects(), "the first removed the second's socket");
        drop(second);
        assert!(!connects(), "nobody listens on this file");
        drop(HandoverListener::prepare(&path).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "one that failed removes its file");
        fs::remove_file(&path).unwrap();
        let stream = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(PeerConnection::connect(&path).unwrap_err().to_string().contains("another version"));
        drop(stream);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "notes").unwrap();
        assert!(HandoverListener::prepare(&path).unwrap_err().to_string().contains("another kind of file"));
    }
}
