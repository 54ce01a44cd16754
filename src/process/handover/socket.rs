//! The Unix socket at `server.handover`, and the frames that two processes exchange over it. A frame is a string of
//! bytes, and perhaps a listening socket that is passed with `SCM_RIGHTS`. `message` defines what the frames mean.
//!
//! The listening sockets themselves are passed, instead of binding a second set with `SO_REUSEPORT`: a connection waits
//! in the queue of one listening socket, and is reset when that socket is closed.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tempfile::TempPath;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};

use crate::config::HANDOVER_SUFFIX;

/// Largest frame. The longest real one names a socket by its path, and takes some hundred bytes.
const MAX_FRAME: usize = 4096;

/// The most sockets that are received before the frames that they belong to: one recvmsg brings at most one socket, and
/// one frame may be incomplete.
const MAX_EARLY_SOCKETS: usize = 2;

/// A frame's header: two bytes of length, and one that says whether a socket belongs to the frame.
const HEADER: usize = 3;

/// The listening Unix socket at `server.handover`. Its file is never removed, only replaced: a process that removed it
/// at its end might remove its successor's. If nothing listens on the file, there is no predecessor.
#[derive(Debug)]
pub struct HandoverListener {
    listener: UnixListener,
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
        let listener = UnixListener::bind(&unpublished)?;
        let unpublished = TempPath::try_from_path(unpublished)?;
        fs::set_permissions(&unpublished, fs::Permissions::from_mode(0o600))?;
        Ok(HandoverListener { listener, path: path.to_owned(), unpublished: Some(unpublished) })
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
        let (stream, _) = self.listener.accept().await?;
        PeerConnection::over(stream)
    }
}

/// The sending half of a connection.
#[derive(Clone, Debug)]
pub struct PeerSender(Arc<UnixStream>);

/// A connection to another process of the same user.
#[derive(Debug)]
pub struct PeerConnection {
    stream: Arc<UnixStream>,
    pid: i32,
    /// Received bytes that are not a complete frame yet.
    bytes: Vec<u8>,
    /// Received sockets, in order.
    sockets: VecDeque<OwnedFd>,
}

/// One frame, and the socket that came with it.
pub type Frame = (Vec<u8>, Option<OwnedFd>);

impl PeerConnection {
    /// Connects to the process that listens at `path`; `None`: no process does.
    pub async fn connect(path: &Path) -> io::Result<Option<PeerConnection>> {
        match UnixStream::connect(path).await {
            Ok(stream) => PeerConnection::over(stream).map(Some),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Checks the user of the other process. The file's mode does so too, but not in a folder where anyone may replace
    /// the file.
    fn over(stream: UnixStream) -> io::Result<PeerConnection> {
        let peer = socket_peercred(&stream)?;
        let pid = peer.pid.as_raw_nonzero().get();
        if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
            let uid = peer.uid.as_raw();
            return Err(io::Error::other(format!(
                "process {pid} at the other end belongs to another user (uid {uid})"
            )));
        }
        Ok(PeerConnection { stream: Arc::new(stream), pid, bytes: Vec::new(), sockets: VecDeque::new() })
    }

    /// The other process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends while this one receives.
    pub fn sender(&self) -> PeerSender {
        PeerSender(self.stream.clone())
    }

    /// Sends a frame, and a socket with it.
    pub async fn send(&self, payload: &[u8], socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.sender().send(payload, socket).await
    }

    /// Receives the next frame; `None`: the other process has closed the connection. Cancel safe.
    pub async fn receive(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.complete_frame()? {
                return Ok(Some(frame));
            }
            if self.read().await? == 0 {
                return if self.bytes.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Takes the first frame from the received bytes, if it is complete.
    fn complete_frame(&mut self) -> io::Result<Option<Frame>> {
        let [high, low, has_socket, ..] = *self.bytes.as_slice() else { return Ok(None) };
        let end = HEADER + usize::from(u16::from_be_bytes([high, low]));
        if end > HEADER + MAX_FRAME || has_socket > 1 {
            return Err(io::Error::other("received a malformed frame"));
        }
        if self.bytes.len() < end {
            return Ok(None);
        }
        let payload = self.bytes.drain(..end).skip(HEADER).collect();
        let missing = || io::Error::other("a frame announces a socket, but none was received");
        let socket = match has_socket {
            0 => None,
            _ => Some(self.sockets.pop_front().ok_or_else(missing)?),
        };
        Ok(Some((payload, socket)))
    }

    async fn read(&mut self) -> io::Result<usize> {
        let PeerConnection { stream, bytes, sockets, .. } = self;
        let receive = || {
            let mut buffer = [0; MAX_FRAME];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received = recvmsg(&**stream, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags)?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    sockets.extend(received);
                }
            }
            if received.flags.contains(ReturnFlags::CTRUNC) || sockets.len() > MAX_EARLY_SOCKETS {
                return Err(io::Error::other("received more sockets than were announced"));
            }
            bytes.extend_from_slice(&buffer[..received.bytes]);
            Ok(received.bytes)
        };
        stream.async_io(Interest::READABLE, receive).await
    }
}

impl PeerSender {
    /// Sends a frame, and a socket with it.
    pub async fn send(&self, payload: &[u8], socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let length = u16::try_from(payload.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut frame = length.to_be_bytes().to_vec();
        frame.push(u8::from(socket.is_some()));
        frame.extend_from_slice(payload);
        let mut rest = frame.as_slice();
        // Sent with the first bytes only.
        let mut socket = socket.as_slice();
        while !rest.is_empty() {
            let send = || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if !socket.is_empty() {
                    control.push(SendAncillaryMessage::ScmRights(socket));
                }
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                Ok(sendmsg(&*self.0, &[IoSlice::new(rest)], &mut control, flags)?)
            };
            let sent = self.0.async_io(Interest::WRITABLE, send).await?;
            socket = &[];
            rest = &rest[sent..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;
    use crate::edge::ListeningSocket;

    /// A connected pair: the process that connects, and the one that accepts.
    async fn pair(folder: &Path) -> (PeerConnection, PeerConnection) {
        let path = folder.join("h.sock");
        let mut listener = HandoverListener::prepare(&path).unwrap();
        assert!(PeerConnection::connect(&path).await.unwrap().is_none(), "it is not published yet");
        listener.publish().unwrap();
        let (connected, accepted) = tokio::join!(PeerConnection::connect(&path), listener.accept());
        (connected.unwrap().unwrap(), accepted.unwrap())
    }

    #[tokio::test]
    async fn frames_and_sockets_arrive_as_they_were_sent() {
        let folder = tempfile::tempdir().unwrap();
        let (mut receiver, sender) = pair(folder.path()).await;
        assert_eq!(receiver.pid(), i32::try_from(std::process::id()).unwrap());
        let listeners: Vec<_> = (0..20).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        for listener in &listeners {
            sender.send(b"before", None).await.unwrap();
            sender.send(b"", Some(listener.as_fd())).await.unwrap();
        }
        sender.send(&[7; MAX_FRAME], None).await.unwrap();
        drop(sender);
        for listener in &listeners {
            let (payload, none) = receiver.receive().await.unwrap().unwrap();
            assert!(payload == b"before" && none.is_none());
            let (payload, socket) = receiver.receive().await.unwrap().unwrap();
            assert!(payload.is_empty());
            let received = ListeningSocket::new("x".into(), socket.unwrap()).unwrap();
            let received = TcpListener::from(received.socket().try_clone_to_owned().unwrap());
            assert_eq!(received.local_addr().unwrap(), listener.local_addr().unwrap());
        }
        assert_eq!(receiver.receive().await.unwrap().unwrap().0, [7; MAX_FRAME]);
        assert!(receiver.receive().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn bytes_received_by_a_cancelled_wait_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (mut receiver, sender) = pair(folder.path()).await;
        for byte in [0, 3, 0, b'a', b'b', b'c'] {
            sender.stream.writable().await.unwrap();
            assert_eq!(sender.stream.try_write(&[byte]).unwrap(), 1);
            if byte != b'c' {
                let cancelled = tokio::time::timeout(Duration::from_millis(5), receiver.receive()).await;
                assert!(cancelled.is_err(), "{cancelled:?}");
            }
        }
        assert_eq!(receiver.receive().await.unwrap().unwrap().0, b"abc");
    }

    #[tokio::test]
    async fn a_malformed_frame_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        for bytes in [&[0xff, 0xff, 0][..], &[0, 0, 2], &[0, 0, 1], &[0, 9, 0, 1]] {
            let (mut receiver, sender) = pair(folder.path()).await;
            sender.stream.writable().await.unwrap();
            assert_eq!(sender.stream.try_write(bytes).unwrap(), bytes.len());
            drop(sender);
            assert!(receiver.receive().await.is_err(), "{bytes:?}");
        }
        let (end, _other) = UnixStream::pair().unwrap();
        let no_listener = end.into_std().unwrap().into();
        assert!(ListeningSocket::new("x".into(), no_listener).is_err());
    }

    #[tokio::test]
    async fn a_listener_replaces_its_predecessors_and_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("h.sock");
        let mut first = HandoverListener::prepare(&path).unwrap();
        first.publish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut second = HandoverListener::prepare(&path).unwrap();
        assert!(
            PeerConnection::connect(&path).await.unwrap().is_some(),
            "the first is connected to as long as the second may fail"
        );
        second.publish().unwrap();
        drop(first);
        assert!(PeerConnection::connect(&path).await.unwrap().is_some(), "the first removed the second's socket");
        drop(second);
        assert!(PeerConnection::connect(&path).await.unwrap().is_none(), "nobody listens on this file");
        drop(HandoverListener::prepare(&path).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "one that failed removes its file");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "notes").unwrap();
        assert!(HandoverListener::prepare(&path).unwrap_err().to_string().contains("another kind of file"));
    }
}
