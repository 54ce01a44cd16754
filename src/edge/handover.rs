//! Listening sockets on their way from one process to the next (`server.handover`): a Unix socket
//! that is found by its path, frames of bytes on it, and with a frame perhaps a socket, by
//! `SCM_RIGHTS`. What is said in the frames is `cli/handover`'s.
//!
//! The sockets themselves go over, rather than a second set of them by `SO_REUSEPORT`: a connection
//! waits in the queue of one listening socket, and is reset when that one is closed.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::{socket_acceptconn, socket_peercred};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};

use crate::config::{HANDOVER_SUFFIX, Listen};

/// Largest frame. The longest honest one names a socket by its path, and takes some hundred bytes.
const MAX_FRAME: usize = 4096;

/// Sockets that may have come before the frames that they belong to: one recvmsg brings at most one
/// socket, and one frame is read on from where it was cut.
const MAX_WAITING: usize = 2;

/// A frame's header: two bytes of length, and one that says whether a socket belongs to it.
const HEADER: usize = 3;

/// A listening socket that is given, or was taken.
#[derive(Debug)]
pub struct Handed {
    /// How the configuration named it.
    asked: String,
    socket: OwnedFd,
}

/// What the configuration calls an address, the same in each process, wherever that was started.
pub(super) fn name_of(listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => address.to_string(),
        Listen::Unix(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            format!("unix:{}", path.display())
        }
    }
}

impl Handed {
    pub(super) fn new(asked: String, socket: OwnedFd) -> Self {
        Handed { asked, socket }
    }

    /// One that another process has sent.
    ///
    /// # Errors
    /// Where it is no listening socket.
    pub fn taken(asked: String, socket: OwnedFd) -> io::Result<Self> {
        if !socket_acceptconn(&socket)? {
            return Err(io::Error::other(format!("what came for {asked} does not listen")));
        }
        Ok(Handed { asked, socket })
    }

    /// How the configuration named it.
    pub fn asked(&self) -> &str {
        &self.asked
    }

    /// Where it listens; `None`: on no TCP address.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        rustix::net::getsockname(&self.socket).ok()?.try_into().ok()
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

/// The Unix socket at `server.handover`. Its file is never removed, only replaced: whoever removed it
/// at its end might remove that of the process that took over. One that nobody listens on any more
/// is nobody's.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
    path: PathBuf,
    /// Where it was made, until it is put in its place.
    aside: Option<PathBuf>,
}

impl Door {
    /// Makes it beside its place, so that whoever has the place keeps it as long as this process may
    /// still fail.
    pub fn prepare(path: &Path) -> io::Result<Door> {
        if fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket()) {
            return Err(io::Error::other("a file that is no socket is there"));
        }
        let mut aside = path.as_os_str().to_owned();
        aside.push(HANDOVER_SUFFIX);
        let aside = PathBuf::from(aside);
        // Left by a process that was killed: one that lives holds the listeners, which are bound first.
        match fs::remove_file(&aside) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&aside)?;
        let door = Door { listener, path: path.to_owned(), aside: Some(aside.clone()) };
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o600))?;
        Ok(door)
    }

    /// Puts it in its place, in one step: at any time the path leads to one process or the other.
    pub fn put_in_place(&mut self) -> io::Result<()> {
        if let Some(aside) = &self.aside {
            fs::rename(aside, &self.path)?;
        }
        self.aside = None;
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next process that asks for the sockets.
    ///
    /// # Errors
    /// Where none can be accepted, or it is another user's.
    pub async fn next(&self) -> io::Result<Talk> {
        let (stream, _) = self.listener.accept().await?;
        Talk::with(stream)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(aside) = &self.aside {
            let _ = fs::remove_file(aside); // if it stays, the next one removes it
        }
    }
}

/// A conversation between two processes of one user.
#[derive(Debug)]
pub struct Talk {
    stream: UnixStream,
    peer: i32,
    /// Read, and not yet a whole frame.
    bytes: Vec<u8>,
    /// Came with the bytes that were read, in their order.
    sockets: VecDeque<OwnedFd>,
}

/// One frame, and the socket that came with it.
pub type Frame = (Vec<u8>, Option<OwnedFd>);

impl Talk {
    /// Asks whoever listens at `path`; `None`: nobody does.
    pub async fn to(path: &Path) -> io::Result<Option<Talk>> {
        match UnixStream::connect(path).await {
            Ok(stream) => Talk::with(stream).map(Some),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The file's mode keeps others out; where a folder lets anyone put a file in its place, this does.
    fn with(stream: UnixStream) -> io::Result<Talk> {
        let peer = socket_peercred(&stream)?;
        if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
            let (pid, uid) = (peer.pid.as_raw_nonzero(), peer.uid.as_raw());
            return Err(io::Error::other(format!(
                "process {pid} at the other end is of user {uid}, not of this one's"
            )));
        }
        Ok(Talk { stream, peer: peer.pid.as_raw_nonzero().get(), bytes: Vec::new(), sockets: VecDeque::new() })
    }

    /// The process at the other end.
    pub fn peer(&self) -> i32 {
        self.peer
    }

    /// Sends a frame, and a socket with it.
    pub async fn say(&self, words: &[u8], socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let length = u16::try_from(words.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut frame = length.to_be_bytes().to_vec();
        frame.push(u8::from(socket.is_some()));
        frame.extend_from_slice(words);
        let mut rest = frame.as_slice();
        // With the first byte that goes out, and not again.
        let mut socket = socket.as_slice();
        while !rest.is_empty() {
            let send = || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if !socket.is_empty() {
                    control.push(SendAncillaryMessage::ScmRights(socket));
                }
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                Ok(sendmsg(&self.stream, &[IoSlice::new(rest)], &mut control, flags)?)
            };
            let sent = self.stream.async_io(Interest::WRITABLE, send).await?;
            socket = &[];
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// The next frame; `None`: the other end is gone. What was read stays if this is not waited for
    /// to its end.
    pub async fn hear(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.whole()? {
                return Ok(Some(frame));
            }
            if self.read().await? == 0 {
                return if self.bytes.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// The first frame of what was read, if it is whole.
    fn whole(&mut self) -> io::Result<Option<Frame>> {
        let [high, low, has_socket, ..] = *self.bytes.as_slice() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > MAX_FRAME || has_socket > 1 {
            return Err(io::Error::other("the other end speaks another language"));
        }
        if self.bytes.len() < HEADER + length {
            return Ok(None);
        }
        let words = self.bytes[HEADER..HEADER + length].to_vec();
        self.bytes.drain(..HEADER + length);
        let socket = match has_socket {
            0 => None,
            _ => Some(
                self.sockets
                    .pop_front()
                    .ok_or_else(|| io::Error::other("a socket that was said to come is missing"))?,
            ),
        };
        Ok(Some((words, socket)))
    }

    async fn read(&mut self) -> io::Result<usize> {
        let Talk { stream, bytes, sockets, .. } = self;
        let receive = || {
            let mut buffer = [0; MAX_FRAME];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let got = recvmsg(&*stream, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags)?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(came) = message {
                    sockets.extend(came);
                }
            }
            if got.flags.contains(ReturnFlags::CTRUNC) || sockets.len() > MAX_WAITING {
                return Err(io::Error::other("more sockets came than were announced"));
            }
            bytes.extend_from_slice(&buffer[..got.bytes]);
            Ok(got.bytes)
        };
        stream.async_io(Interest::READABLE, receive).await
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    /// Two ends of a conversation.
    async fn two(folder: &Path) -> (Talk, Talk) {
        let path = folder.join("h.sock");
        let mut door = Door::prepare(&path).unwrap();
        assert!(Talk::to(&path).await.unwrap().is_none(), "it is not in its place yet");
        door.put_in_place().unwrap();
        let (asks, gives) = tokio::join!(Talk::to(&path), door.next());
        (asks.unwrap().unwrap(), gives.unwrap())
    }

    #[tokio::test]
    async fn frames_and_sockets_come_as_they_were_sent() {
        let folder = tempfile::tempdir().unwrap();
        let (mut asks, gives) = two(folder.path()).await;
        assert_eq!(asks.peer(), i32::try_from(std::process::id()).unwrap());
        let listeners: Vec<_> = (0..20).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        for listener in &listeners {
            gives.say(b"before", None).await.unwrap();
            gives.say(b"", Some(listener.as_fd())).await.unwrap();
        }
        gives.say(&[7; MAX_FRAME], None).await.unwrap();
        drop(gives);
        for listener in &listeners {
            let (words, none) = asks.hear().await.unwrap().unwrap();
            assert!(words == b"before" && none.is_none());
            let (words, socket) = asks.hear().await.unwrap().unwrap();
            assert!(words.is_empty());
            let taken = Handed::taken("x".into(), socket.unwrap()).unwrap();
            let taken = TcpListener::from(taken.into_socket());
            assert_eq!(taken.local_addr().unwrap(), listener.local_addr().unwrap());
        }
        assert_eq!(asks.hear().await.unwrap().unwrap().0, [7; MAX_FRAME]);
        assert!(asks.hear().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_was_read_stays_when_a_wait_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let (mut asks, gives) = two(folder.path()).await;
        for byte in [0, 3, 0, b'a', b'b', b'c'] {
            gives.stream.writable().await.unwrap();
            assert_eq!(gives.stream.try_write(&[byte]).unwrap(), 1);
            if byte != b'c' {
                let given_up = tokio::time::timeout(Duration::from_millis(5), asks.hear()).await;
                assert!(given_up.is_err(), "{given_up:?}");
            }
        }
        assert_eq!(asks.hear().await.unwrap().unwrap().0, b"abc");
    }

    #[tokio::test]
    async fn who_lies_is_not_listened_to() {
        let folder = tempfile::tempdir().unwrap();
        for lie in [&[0xff, 0xff, 0][..], &[0, 0, 2], &[0, 0, 1], &[0, 9, 0, 1]] {
            let (mut asks, gives) = two(folder.path()).await;
            gives.stream.writable().await.unwrap();
            assert_eq!(gives.stream.try_write(lie).unwrap(), lie.len());
            drop(gives);
            assert!(asks.hear().await.is_err(), "{lie:?}");
        }
        let (end, _other) = UnixStream::pair().unwrap();
        let no_listener = end.into_std().unwrap().into();
        assert!(Handed::taken("x".into(), no_listener).is_err());
    }

    #[tokio::test]
    async fn a_door_takes_the_place_of_one_before_it_and_of_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("h.sock");
        let mut first = Door::prepare(&path).unwrap();
        first.put_in_place().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut second = Door::prepare(&path).unwrap();
        assert!(Talk::to(&path).await.unwrap().is_some(), "the first is reached as long as the second may fail");
        second.put_in_place().unwrap();
        drop(first);
        assert!(Talk::to(&path).await.unwrap().is_some(), "the first took the second's place away");
        drop(second);
        assert!(Talk::to(&path).await.unwrap().is_none(), "a file that nobody listens on is nobody");
        drop(Door::prepare(&path).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "one that failed leaves nothing behind");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "notes").unwrap();
        assert!(Door::prepare(&path).unwrap_err().to_string().contains("no socket"));
    }
}
