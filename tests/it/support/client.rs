//! A strict HTTP/1.1 client. It sends exactly the bytes that a test asks for, adds no header field by itself, and
//! checks the form of every answer. Every wait is bounded by `PATIENCE`, so that a gateway that hangs fails the test.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Answer, PATIENCE};

/// A request as its bytes will be: nothing is added behind the test's back.
#[derive(Clone, Debug)]
pub struct Request {
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    /// `POST target` with a `Host`, the form type, and the body's length.
    pub fn post(target: &str, body: impl AsRef<[u8]>) -> Request {
        let body = body.as_ref().to_vec();
        Request { line: format!("POST {target} HTTP/1.1"), headers: Vec::new(), body: Vec::new() }
            .header("Host", "guildgate.test")
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body(body)
    }

    /// `METHOD target` with a `Host` and no body.
    pub fn bare(method: &str, target: &str) -> Request {
        Request { line: format!("{method} {target} HTTP/1.1"), headers: Vec::new(), body: Vec::new() }
            .header("Host", "guildgate.test")
    }

    pub fn key(self, secret: &str) -> Request {
        self.header("Authorization", secret)
    }

    /// Adds a field, even if there is one of this name.
    pub fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without(mut self, name: &str) -> Request {
        self.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self
    }

    /// Replaces the body and its `Content-Length`.
    pub fn body(self, body: impl AsRef<[u8]>) -> Request {
        let body = body.as_ref().to_vec();
        let mut request = self.without("Content-Length").header("Content-Length", &body.len().to_string());
        request.body = body;
        request
    }

    /// Sends the body as chunks of at most `size` bytes instead.
    pub fn chunked(self, size: usize) -> Request {
        let mut chunks = Vec::new();
        for part in self.body.chunks(size) {
            chunks.extend(format!("{:x}\r\n", part.len()).bytes().chain(part.iter().copied()).chain(*b"\r\n"));
        }
        chunks.extend(b"0\r\n\r\n");
        let mut request = self.without("Content-Length").header("Transfer-Encoding", "chunked");
        request.body = chunks;
        request
    }

    /// The body as it will be sent.
    pub fn body_bytes(&self) -> Vec<u8> {
        self.body.clone()
    }

    /// The same header as HTTP/2 has it: the authority is the `Host`, and is no field.
    pub fn http2(&self) -> http::Request<()> {
        let mut line = self.line.split(' ');
        let (method, target) = (line.next().unwrap(), line.next().unwrap());
        let host = self.headers.iter().find(|(name, _)| name == "Host").map_or("", |(_, host)| host);
        let request = http::Request::builder().method(method).uri(format!("https://{host}{target}"));
        let fields = self.headers.iter().filter(|(name, _)| name != "Host");
        fields.fold(request, |request, (name, value)| request.header(name, value)).body(()).unwrap()
    }

    /// The header with its empty line, without the body.
    pub fn head(&self) -> Vec<u8> {
        let fields: String = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("{}\r\n{fields}\r\n", self.line).into_bytes()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head();
        bytes.extend(&self.body);
        bytes
    }
}

impl From<Request> for Vec<u8> {
    fn from(request: Request) -> Vec<u8> {
        request.bytes()
    }
}

/// What a connection's bytes go through.
pub trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for S {}

/// A connection to the gateway: bytes in, checked answers out, every wait bounded.
pub struct Connection {
    stream: Box<dyn Stream>,
    unread: Vec<u8>,
}

/// Why no whole answer came.
#[derive(Debug)]
#[expect(dead_code, reason = "what had come is for the message of a failing test, by Debug")]
pub enum Broken {
    /// Closed (or reset) before the first byte of an answer.
    Closed,
    /// Closed (or reset) within an answer, of which this had come.
    Cut(String),
    /// Neither an answer nor an end; this had come.
    Silent(String),
}

impl Connection {
    pub async fn to(address: SocketAddr) -> Connection {
        Connection::try_to(address).await.unwrap()
    }

    /// Connects, or says why nobody took the connection.
    pub async fn try_to(address: SocketAddr) -> io::Result<Connection> {
        let stream = timeout(PATIENCE, TcpStream::connect(address)).await.expect("connect took too long")?;
        stream.set_nodelay(true)?;
        Ok(Connection::over(stream))
    }

    /// On a stream that is there already.
    pub fn over(stream: impl Stream + 'static) -> Connection {
        Connection { stream: Box::new(stream), unread: Vec::new() }
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move { self.try_send(bytes).await.unwrap_or_else(|e| panic!("{caller}: could not send: {e}")) }
    }

    /// Sends, or says why the gateway would not take it.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let sending = async {
            self.stream.write_all(bytes.as_ref()).await?;
            self.stream.flush().await // TLS may hold some back
        };
        timeout(PATIENCE, sending).await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    /// Sends bytes one at a time with a pause before each, until something is said, or the
    /// connection is closed, or there are none left.
    pub async fn drip(&mut self, bytes: impl IntoIterator<Item = u8>, pause: Duration) {
        let mut buffer = [0; 4096];
        let dripping = async {
            for byte in bytes {
                tokio::select! {
                    biased;
                    read = self.stream.read(&mut buffer) => {
                        self.unread.extend(&buffer[..read.unwrap_or(0)]);
                        return;
                    }
                    () = tokio::time::sleep(pause) => {} // the drip, not a wait
                }
                if self.stream.write_all(&[byte]).await.is_err() || self.stream.flush().await.is_err() {
                    return;
                }
            }
        };
        timeout(PATIENCE, dripping).await.expect("what dripped was read without end");
    }

    /// No more will be sent; answers can still be read.
    pub async fn finish_sending(&mut self) {
        let _ = self.stream.shutdown().await; // the gateway may have closed already
    }

    /// Sends one request and reads its answer.
    #[track_caller]
    pub fn ask(&mut self, request: &Request) -> impl Future<Output = Answer> {
        let bytes = request.bytes();
        let caller = std::panic::Location::caller();
        async move {
            let sent = self.try_send(bytes).await;
            let answer = self.read(true).await;
            answer.unwrap_or_else(|b| panic!("{caller}: no answer: {b:?} (sent: {sent:?})"))
        }
    }

    #[track_caller]
    pub fn answer(&mut self) -> impl Future<Output = Answer> {
        let caller = std::panic::Location::caller();
        async move { self.read(true).await.unwrap_or_else(|b| panic!("{caller}: no answer: {b:?}")) }
    }

    /// Waits until the first bytes of an answer have come, and reads no more than those.
    pub async fn has_begun(&mut self) {
        let mut first = [0; 8];
        timeout(PATIENCE, self.stream.read_exact(&mut first)).await.expect("no answer began").unwrap();
        self.unread.extend(first);
    }

    /// An answer to HEAD: a header that no body follows.
    pub async fn answer_to_head(&mut self) -> Answer {
        self.read(false).await.unwrap_or_else(|b| panic!("no answer: {b:?}"))
    }

    /// The next answer, or `None` if the connection is closed instead; half an answer fails.
    pub async fn answer_or_close(&mut self) -> Option<Answer> {
        match self.read(true).await {
            Ok(answer) => Some(answer),
            Err(Broken::Closed) => None,
            Err(broken) => panic!("half an answer: {broken:?}"),
        }
    }

    /// The next answer, whatever may break it: for a gateway that is being killed.
    pub async fn answer_if_any(&mut self) -> Option<Answer> {
        self.read(true).await.ok()
    }

    /// Asserts that the gateway closes the connection and says nothing more on it.
    #[track_caller]
    pub fn is_closed(&mut self) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            match self.read(true).await {
                Err(Broken::Closed) => {}
                other => panic!("{caller}: the connection should be closed, but: {other:?}"),
            }
        }
    }

    async fn read(&mut self, with_body: bool) -> Result<Answer, Broken> {
        let head_end = loop {
            if let Some(at) = self.unread.windows(4).position(|w| w == b"\r\n\r\n") {
                break at;
            }
            self.read_more().await?;
        };
        let head = String::from_utf8(self.unread[..head_end].to_vec()).expect("a header is ASCII");
        self.unread.drain(..head_end + 4);
        let mut answer = Answer::head(&head);
        if answer.status < 200 || answer.status == 204 || !with_body {
            return Ok(answer);
        }
        let length = answer.header("content-length").and_then(|n| n.parse::<usize>().ok());
        let length = length.unwrap_or_else(|| panic!("no Content-Length: {head}"));
        while self.unread.len() < length {
            self.read_more().await.map_err(|b| if let Broken::Closed = b { Broken::Cut(head.clone()) } else { b })?;
        }
        let body = self.unread.drain(..length).collect();
        answer.body = String::from_utf8(body).expect("a body is UTF-8");
        Ok(answer)
    }

    async fn read_more(&mut self) -> Result<(), Broken> {
        let so_far = || String::from_utf8_lossy(&self.unread).into_owned();
        let ended = || if self.unread.is_empty() { Broken::Closed } else { Broken::Cut(so_far()) };
        let mut buffer = vec![0; 16 * 1024];
        match timeout(PATIENCE, self.stream.read(&mut buffer)).await {
            Err(_) => Err(Broken::Silent(so_far())),
            Ok(Ok(0) | Err(_)) => Err(ended()),
            Ok(Ok(n)) => {
                self.unread.extend(&buffer[..n]);
                Ok(())
            }
        }
    }
}
