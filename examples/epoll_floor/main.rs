//! The least that a server on epoll can do: one thread that sends the same answer to each request, without reading it.
//! The answer is as long as Guildgate's to getPoints. With `--origin`, the least that a proxy can do: each caller has a
//! connection to the origin, and what is read on one is written to the other. `benches/peers/run` measures it beside
//! servers that do the job; it takes what it reads at once for one request, so that it is good for nothing else.
//!
//! `cargo run --release --example epoll_floor -- 127.0.0.1:8080`

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use clap::Parser;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

const ANSWER: &str = "HTTP/1.1 200 OK\r\n\
    Date: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Cache-Control: no-store\r\n\
    Content-Length: 4\r\n\
    Cache-Status: guildgate; hit; ttl=599\r\n\
    Age: 0\r\n\
    RateLimit-Policy: \"standard\";q=1000000;w=1, \"standard-write\";q=1000000;w=1\r\n\
    RateLimit: \"standard\";r=999999;t=1\r\n\
    X-Request-Id: 0123456789abcdef0123456789abcdef\r\n\
    \r\n\
    1250";

#[derive(Debug, Parser)]
struct Args {
    /// Where to listen
    address: SocketAddr,
    /// Close each connection after its first answer
    #[arg(long)]
    close: bool,
    /// Pass each request on to this address, and its answer back
    #[arg(long, conflicts_with = "close")]
    origin: Option<SocketAddr>,
}

/// A connection that a caller has opened, or one to the origin.
struct Connection {
    stream: TcpStream,
    /// The file descriptor of the connection that gets what is read on this one; `None`: an answer is sent instead.
    other: Option<usize>,
}

/// By their file descriptors.
type Connections = Vec<Option<Connection>>;

fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let end_of_header = if args.close { "\r\nConnection: close\r\n\r\n" } else { "\r\n\r\n" };
    let answer = ANSWER.replace("\r\n\r\n", end_of_header);
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1024));
    let mut listener = TcpListener::bind(args.address)?;
    let listening = Token(usize::MAX - 1);
    poll.registry().register(&mut listener, listening, Interest::READABLE)?;
    let mut connections = Connections::new();
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == listening {
                while let Ok((stream, _)) = listener.accept() {
                    let caller = stream.as_raw_fd() as usize;
                    let to_origin = args.origin.map(connect).transpose()?;
                    let origin = to_origin.as_ref().map(|stream| stream.as_raw_fd() as usize);
                    add(&mut connections, &poll, stream, origin)?;
                    if let Some(stream) = to_origin {
                        add(&mut connections, &poll, stream, Some(caller))?;
                    }
                }
            } else if !is_served(&mut connections, event.token().0, answer.as_bytes()) || args.close {
                let ended = connections[event.token().0].take();
                if let Some(other) = ended.and_then(|ended| ended.other) {
                    connections[other] = None;
                }
            }
        }
    }
}

fn connect(origin: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = std::net::TcpStream::connect(origin)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(TcpStream::from_std(stream))
}

fn add(connections: &mut Connections, poll: &Poll, mut stream: TcpStream, other: Option<usize>) -> std::io::Result<()> {
    let fd = stream.as_raw_fd() as usize;
    poll.registry().register(&mut stream, Token(fd), Interest::READABLE)?;
    connections.resize_with(connections.len().max(fd + 1), || None);
    connections[fd] = Some(Connection { stream, other });
    Ok(())
}

/// Answers or passes on what has come; `false` if the connection has ended.
fn is_served(connections: &mut Connections, fd: usize, answer: &[u8]) -> bool {
    let Some(connection) = &mut connections[fd] else { return true };
    let mut buffer = [0; 4096];
    match connection.stream.read(&mut buffer) {
        Ok(0) => false,
        Ok(length) => {
            let (to, bytes) = connection.other.map_or((fd, answer), |other| (other, &buffer[..length]));
            connections[to].as_mut().is_some_and(|to| to.stream.write_all(bytes).is_ok())
        }
        Err(e) => e.kind() == ErrorKind::WouldBlock,
    }
}
