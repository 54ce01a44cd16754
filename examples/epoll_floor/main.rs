//! The least that a server on epoll can do: one thread that sends the same answer to each request, without reading it.
//! The answer is as long as Guildgate's to getPoints. `benches/peers/run` measures it beside servers that do the job; it
//! takes what it reads at once for one request, so that it is good for nothing else.
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
}

fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let end_of_header = if args.close { "\r\nConnection: close\r\n\r\n" } else { "\r\n\r\n" };
    let answer = ANSWER.replace("\r\n\r\n", end_of_header);
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1024));
    let mut listener = TcpListener::bind(args.address)?;
    let listening = Token(usize::MAX - 1);
    poll.registry().register(&mut listener, listening, Interest::READABLE)?;
    // By their file descriptors.
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == listening {
                while let Ok((mut stream, _)) = listener.accept() {
                    let fd = stream.as_raw_fd() as usize;
                    poll.registry().register(&mut stream, Token(fd), Interest::READABLE)?;
                    connections.resize_with(connections.len().max(fd + 1), || None);
                    connections[fd] = Some(stream);
                }
            } else if let Some(connection) = &mut connections[event.token().0]
                && (!is_answered(connection, answer.as_bytes()) || args.close)
            {
                connections[event.token().0] = None;
            }
        }
    }
}

/// Answers what has come; `false` if the connection has ended.
fn is_answered(connection: &mut TcpStream, answer: &[u8]) -> bool {
    match connection.read(&mut [0; 4096]) {
        Ok(0) => false,
        Ok(_) => connection.write_all(answer).is_ok(),
        Err(e) => e.kind() == ErrorKind::WouldBlock,
    }
}
