//! A connection of which a test writes and reads each byte, as a caller of the gateway or as its origin: for what passes
//! through it as it came.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::PATIENCE;

/// An origin whose connections the test speaks on itself.
pub struct HandOrigin(TcpListener);

/// One connection, and what was read of it that nobody has asked for.
pub struct Talk {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    Closed,
    Reset,
}

impl HandOrigin {
    pub async fn start() -> HandOrigin {
        HandOrigin(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }

    /// The next connection.
    pub async fn accept(&self) -> Talk {
        let (stream, _) = timeout(PATIENCE, self.0.accept()).await.expect("nobody connected").unwrap();
        Talk::over(stream)
    }

    /// Whether nobody has connected.
    pub async fn is_alone(&self) -> bool {
        timeout(Duration::ZERO, self.0.accept()).await.is_err()
    }
}

impl Talk {
    pub async fn to(address: SocketAddr) -> Talk {
        Talk::over(TcpStream::connect(address).await.unwrap())
    }

    fn over(stream: TcpStream) -> Talk {
        stream.set_nodelay(true).unwrap();
        Talk { stream, unread: Vec::new() }
    }

    pub async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_say(bytes).await.unwrap();
    }

    pub async fn try_say(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        timeout(PATIENCE, self.stream.write_all(bytes.as_ref())).await.expect("nobody takes it")
    }

    /// Reads up to these bytes, which are the end of what is returned.
    #[track_caller]
    pub fn until(&mut self, end: &str) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            let mut searched = 0;
            loop {
                let found = self.unread[searched..].windows(end.len()).position(|part| part == end.as_bytes());
                if let Some(at) = found {
                    let read: Vec<u8> = self.unread.drain(..searched + at + end.len()).collect();
                    return String::from_utf8_lossy(&read).into();
                }
                searched = (self.unread.len() + 1).saturating_sub(end.len());
                let read = timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await;
                let so_far = String::from_utf8_lossy(&self.unread[..self.unread.len().min(1000)]);
                assert!(matches!(read, Ok(Ok(1..))), "{caller}: no {end:?} but {read:?} after {so_far:?}");
            }
        }
    }

    /// Reads a header.
    #[track_caller]
    pub fn header(&mut self) -> impl Future<Output = String> {
        self.until("\r\n\r\n")
    }

    /// Waits for more, and tells whether the other side has closed the connection instead.
    pub async fn is_over(&mut self) -> bool {
        self.unread.is_empty()
            && !matches!(timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await, Ok(Ok(1..)))
    }

    /// Reads so many bytes and forgets them.
    pub async fn skip(&mut self, mut bytes: usize) {
        let mut buffer = vec![0; 64 * 1024];
        let come = bytes.min(self.unread.len());
        self.unread.drain(..come);
        bytes -= come;
        while bytes > 0 {
            let room = bytes.min(buffer.len());
            let read = timeout(PATIENCE, self.stream.read(&mut buffer[..room])).await.expect("no more comes").unwrap();
            assert!(read > 0, "{bytes} bytes are missing");
            bytes -= read;
        }
    }

    /// Reads to the end.
    #[track_caller]
    pub fn rest(mut self) -> impl Future<Output = (String, End)> {
        let caller = std::panic::Location::caller();
        async move {
            let read = timeout(PATIENCE, self.stream.read_to_end(&mut self.unread)).await;
            let text = String::from_utf8_lossy(&self.unread).into_owned();
            let read = read.unwrap_or_else(|_| panic!("{caller}: it does not end after {text:?}"));
            (text, if read.is_ok() { End::Closed } else { End::Reset })
        }
    }

    pub async fn finish_sending(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }
}
