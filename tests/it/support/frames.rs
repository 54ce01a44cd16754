//! HTTP/2 frame by frame, for tests that send what no client library would send. Frames, flags and header blocks are
//! written by hand and without any check; only the waits are bounded. For requests that keep to the rules there is
//! `http2`.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::{PATIENCE, TestGateway};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const ACK: u8 = 1;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// HTTP/2 by hand: whatever frames a test likes, rules or no rules.
pub struct Frames {
    read: ReadHalf<TlsStream<TcpStream>>,
    write: WriteHalf<TlsStream<TcpStream>>,
    /// Those of other streams that came while one stream's were awaited: streams are answered in any order.
    others: Vec<Frame>,
}

/// The bytes of a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[a, b, c, kind, flags][..], &stream.to_be_bytes(), payload].concat()
}

/// The header block of a request with the key `bot`, its body still to come.
pub fn header(gate: &TestGateway, path: &str) -> Vec<u8> {
    block(&[
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "guildgate.test"),
        (":path", path),
        ("authorization", gate.secret("bot")),
    ])
}

/// A header block that uses no table and no Huffman code.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            length(text.len(), &mut out);
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

fn length(mut n: usize, out: &mut Vec<u8>) {
    if n < 127 {
        return out.push(u8::try_from(n).unwrap());
    }
    out.push(127);
    n -= 127;
    while n >= 128 {
        out.push(u8::try_from(n % 128).unwrap() | 128);
        n /= 128;
    }
    out.push(u8::try_from(n).unwrap());
}

impl Frames {
    pub fn over(stream: TlsStream<TcpStream>) -> Frames {
        let (read, write) = tokio::io::split(stream);
        Frames { read, write, others: Vec::new() }
    }

    /// Says what a client says first.
    pub async fn greet(&mut self, settings: &[u8]) {
        self.send([PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()).await;
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        assert!(self.try_send(bytes).await, "the gateway took no more");
    }

    /// Sends no more, and reads on.
    pub async fn finish_sending(&mut self) {
        self.write.shutdown().await.unwrap();
    }

    /// Whether it was taken.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        let sending = async {
            self.write.write_all(bytes.as_ref()).await?;
            self.write.flush().await
        };
        matches!(timeout(PATIENCE, sending).await, Ok(Ok(())))
    }

    /// Sends pieces with a pause before each, and reads what comes meanwhile, until the gateway
    /// ends the connection: the last GOAWAY's code, if there was one. `Err`: all were taken.
    pub async fn drip(mut self, pieces: impl IntoIterator<Item = Vec<u8>>, pause: Duration) -> Result<Option<u32>, ()> {
        let Frames { read, write, .. } = &mut self;
        let mut come = Vec::new();
        let mut buffer = [0; 4096];
        let dripping = async {
            for piece in pieces {
                let next = tokio::time::Instant::now() + pause; // the drip, not a wait
                loop {
                    tokio::select! {
                        biased;
                        got = read.read(&mut buffer) => match got {
                            Ok(n @ 1..) => come.extend(&buffer[..n]),
                            Ok(0) | Err(_) => return Ok(()),
                        },
                        () = tokio::time::sleep_until(next) => break,
                    }
                }
                if write.write_all(&piece).await.is_err() || write.flush().await.is_err() {
                    return Ok(());
                }
            }
            Err(())
        };
        timeout(PATIENCE, dripping).await.expect("what dripped was read without end")?;
        let mut code = None;
        let mut rest = &come[..];
        while let [a, b, c, kind, _, _, _, _, _, payload @ ..] = rest {
            let (payload, more) = payload.split_at(payload.len().min(u32::from_be_bytes([0, *a, *b, *c]) as usize));
            if *kind == GOAWAY {
                code = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
            }
            rest = more;
        }
        Ok(code)
    }

    /// The next frame, or `None` at the end.
    pub async fn next(&mut self) -> Option<Frame> {
        timeout(PATIENCE, self.read_one()).await.expect("neither a frame nor an end")
    }

    async fn read_one(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.read.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.read.read_exact(&mut payload).await.ok()?;
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// The next frame on this stream.
    pub async fn next_on(&mut self, stream: u32) -> Frame {
        if let Some(at) = self.others.iter().position(|frame| frame.stream == stream) {
            return self.others.remove(at);
        }
        loop {
            let frame = self.next().await.expect("the connection ended");
            assert_ne!(frame.kind, GOAWAY, "{frame:?}");
            match frame.kind {
                WINDOW_UPDATE => {}
                _ if frame.stream == stream => return frame,
                _ => self.others.push(frame),
            }
        }
    }

    /// What was said on this stream: the body of an answer, or the code of a reset.
    pub async fn outcome(&mut self, stream: u32) -> Result<String, u32> {
        let mut body = Vec::new();
        loop {
            let frame = self.next_on(stream).await;
            match frame.kind {
                HEADERS if frame.flags & END_STREAM == 0 => {}
                HEADERS => return Ok(String::new()),
                DATA => {
                    body.extend(frame.payload);
                    if frame.flags & END_STREAM != 0 {
                        return Ok(String::from_utf8(body).unwrap());
                    }
                }
                RST_STREAM => return Err(u32::from_be_bytes(frame.payload.try_into().unwrap())),
                kind => panic!("frame {kind} on stream {stream}"),
            }
        }
    }

    /// Reads on until the gateway ends the connection: the last GOAWAY's code, if there was one.
    pub async fn ends(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.next().await {
            if frame.kind == GOAWAY {
                code = Some(u32::from_be_bytes(frame.payload[4..8].try_into().unwrap()));
            }
        }
        code
    }
}
