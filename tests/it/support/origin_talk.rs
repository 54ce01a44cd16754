//! The origin's side of the wire.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::origin::{Act, Break, Cut, Seen, Shared};

/// Accepts until aborted; its connections end with it.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>, tls: Option<TlsAcceptor>) {
    let mut connections = JoinSet::new();
    for number in 0.. {
        let Ok((stream, _)) = listener.accept().await else { return };
        let _ = stream.set_nodelay(true);
        let (shared, tls) = (Arc::clone(&shared), tls.clone());
        match (shared.next_break(), tls) {
            (Some(at), _) => drop(connections.spawn(reset(stream, at, number, shared))),
            (None, None) => drop(connections.spawn(converse(stream, number, shared))),
            (None, Some(tls)) => drop(connections.spawn(async move {
                // Who does not come through has asked nothing.
                if let Ok(stream) = tls.accept(stream).await {
                    converse(stream, number, shared).await;
                }
            })),
        }
    }
}

/// Reads up to where the connection is to break, notes what came, and resets it.
async fn reset(mut stream: TcpStream, at: Break, number: usize, shared: Arc<Shared>) {
    stream.set_zero_linger().unwrap();
    let mut read = Vec::new();
    if at == Break::AtAccept {
        return;
    }
    while !read.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        read.push(byte);
    }
    let Some((mut seen, length)) = head(&String::from_utf8_lossy(&read), number) else { return };
    let wanted = match at {
        Break::AtAccept | Break::BeforeBody => 0,
        Break::MidBody => 1,
        Break::AfterBody => length,
    };
    let mut body = vec![0; wanted];
    if stream.read_exact(&mut body).await.is_ok() {
        seen.body = String::from_utf8_lossy(&body).into_owned();
        shared.met(&seen);
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, number: usize, shared: Arc<Shared>) {
    let mut close_idle = shared.close_idle.subscribe();
    let mut unread = Vec::new();
    while let Some(seen) = next_request(&mut stream, &mut unread, number, &mut close_idle).await {
        let act = shared.met(&seen);
        if let Act::Pour { bytes } = act {
            return pour(&mut stream, bytes).await;
        }
        let Some(answer) = perform(act, &seen, &shared).await else { return };
        if stream.write_all(&answer.bytes).await.is_err() || answer.close {
            return;
        }
    }
}

struct Bytes {
    bytes: Vec<u8>,
    close: bool,
}

/// What to send for this request; `None`: close without a byte.
async fn perform(act: Act, seen: &Seen, shared: &Shared) -> Option<Bytes> {
    let normal = |(status, body): (u16, String)| whole(status, "", body.as_bytes());
    match act {
        Act::Normal => Some(normal(shared.perform(seen))),
        Act::HoldAnswer(gate) => {
            let answer = normal(shared.perform(seen));
            gate.passed().await;
            Some(answer)
        }
        Act::HoldAll(gate) => {
            gate.passed().await;
            Some(normal(shared.perform(seen)))
        }
        Act::HoldThen(gate, status, body) => {
            gate.passed().await;
            Some(whole(status, "", body.as_bytes()))
        }
        Act::Stall => std::future::pending().await,
        Act::Cut(cut) => cut_at(cut, normal(shared.perform(seen)).bytes),
        Act::Say(status, headers, body) => Some(whole(status, headers, &body)),
        Act::Raw(bytes) => Some(Bytes { bytes, close: true }),
        Act::Pour { .. } => None, // poured, not performed
        Act::Jitter(max_ms) => {
            tokio::time::sleep(shared.some_of(max_ms)).await;
            let answer = normal(shared.perform(seen));
            tokio::time::sleep(shared.some_of(max_ms)).await;
            Some(answer)
        }
    }
}

fn whole(status: u16, headers: &str, body: &[u8]) -> Bytes {
    let mut bytes =
        format!("HTTP/1.1 {status} Some Reason\r\nContent-Length: {}\r\n{headers}\r\n", body.len()).into_bytes();
    bytes.extend(body);
    Bytes { bytes, close: false }
}

async fn pour<S: AsyncWrite + Unpin>(stream: &mut S, bytes: u64) {
    static PIECE: [u8; 64 * 1024] = [b'7'; 64 * 1024];
    let header = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
    let mut poured = stream.write_all(header.as_bytes()).await;
    for _ in 0..bytes / PIECE.len() as u64 {
        if poured.is_err() {
            return;
        }
        poured = stream.write_all(&PIECE).await;
    }
}

fn cut_at(cut: Cut, mut bytes: Vec<u8>) -> Option<Bytes> {
    let header = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let body = bytes.len() - header;
    bytes.truncate(match cut {
        Cut::BeforeHeader => return None,
        Cut::MidHeader => header / 2,
        Cut::AfterHeader => header,
        Cut::MidBody => header + body.div_ceil(2).min(body - 1),
    });
    Some(Bytes { bytes, close: true })
}

/// The next request; `None` at the connection's end, or when idle connections are to be closed.
async fn next_request<S: AsyncRead + Unpin>(
    stream: &mut S,
    unread: &mut Vec<u8>,
    connection: usize,
    close_idle: &mut watch::Receiver<u64>,
) -> Option<Seen> {
    close_idle.mark_unchanged();
    let head_end = loop {
        if let Some(at) = unread.windows(4).position(|w| w == b"\r\n\r\n") {
            break at;
        }
        tokio::select! {
            n = stream.read_buf(unread) => if n.ok()? == 0 { return None },
            _ = close_idle.changed(), if unread.is_empty() => return None,
        }
    };
    let (mut seen, length) = head(&String::from_utf8_lossy(&unread[..head_end]), connection)?;
    unread.drain(..head_end + 4);
    while unread.len() < length {
        if stream.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    }
    seen.body = String::from_utf8_lossy(&unread.drain(..length).collect::<Vec<u8>>()).into_owned();
    Some(seen)
}

/// A request's header, and the length of its body.
fn head(text: &str, connection: usize) -> Option<(Seen, usize)> {
    let mut lines = text.trim_end().split("\r\n");
    let mut words = lines.next()?.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let headers: Vec<_> = lines.filter_map(|l| l.split_once(':')).map(|(n, v)| (n.into(), v.trim().into())).collect();
    let seen = Seen { connection, method, path, headers, body: String::new() };
    // The gateway knows a body's length before it sends it: anything else shows up as a missing body.
    let length = seen.header("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
    Some((seen, length))
}
