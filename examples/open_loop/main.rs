//! A load at a fixed rate: when a request is due does not depend on the answers before it, and its latency counts from
//! when it was due, so that a pause of the server counts for each request that fell into it (no coordinated omission).
//! It polls without waiting and needs a core of its own. `benches/costs/run` runs it; the last line is the result.
//!
//! `LOAD_KEYS="KEY KEY" cargo run --release --example open_loop -- 127.0.0.1:8080 --rate 20000`

#![expect(clippy::print_stdout, reason = "its result")]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use mio::{Events, Interest, Poll, Registry, Token};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, DEFAULT_VERSIONS, RootCertStore, StreamOwned};

type Error = Box<dyn std::error::Error>;

/// Different requests that are no misses once each was sent; the same in every run.
const REQUESTS: usize = 20_000;

/// A request that is sent so long after it was due counts as late.
const LATE: Duration = Duration::from_micros(100);

/// How long the last answers may take.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Parser)]
struct Args {
    /// The server; over TLS its certificate is for `localhost`
    address: SocketAddr,
    /// The values of `Authorization`, with spaces between them
    #[arg(long, env = "LOAD_KEYS", value_delimiter = ' ', required = true)]
    keys: Vec<String>,
    /// Requests per second
    #[arg(long)]
    rate: f64,
    /// For how long
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How many connections at once
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// The fraction of the requests that is for members never asked for before
    #[arg(long, default_value_t = 0.0)]
    misses: f64,
    /// Speak TLS with a server whose certificate has one of these roots
    #[arg(long)]
    ca: Option<PathBuf>,
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

struct Connection {
    stream: Box<dyn Stream>,
    received: Vec<u8>,
    /// When the request under way was due.
    due: Instant,
}

impl Connection {
    fn open(args: &Args, tls: Option<&Arc<ClientConfig>>, registry: &Registry, n: usize) -> Result<Self, Error> {
        let mut stream = std::net::TcpStream::connect(args.address)?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost")?;
        let mut session = tls.map(|config| ClientConnection::new(config.clone(), name)).transpose()?;
        while let Some(session) = session.as_mut().filter(|session| session.is_handshaking()) {
            session.complete_io(&mut stream)?;
        }
        stream.set_nonblocking(true)?;
        let mut stream = mio::net::TcpStream::from_std(stream);
        registry.register(&mut stream, Token(n), Interest::READABLE)?;
        let stream: Box<dyn Stream> = match session {
            Some(session) => Box::new(StreamOwned::new(session, stream)),
            None => Box::new(stream),
        };
        Ok(Connection { stream, received: Vec::new(), due: Instant::now() })
    }

    /// The status, once the whole answer has come.
    fn receive(&mut self) -> Result<Option<u16>, Error> {
        let mut part = [0; 4096];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return Err("the server closed a connection".into()),
                Ok(length) => self.received.extend_from_slice(&part[..length]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e.into()),
            }
        }
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut answer = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(header) = answer.parse(&self.received)? else { return Ok(None) };
        let length = answer.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
        let length: usize = str::from_utf8(length.ok_or("an answer without Content-Length")?.value)?.parse()?;
        let status = answer.code.filter(|_| self.received.len() >= header + length);
        if status.is_some() {
            self.received.clear();
        }
        Ok(status)
    }
}

fn request(operation: &str, key: &str, member: u64) -> String {
    let body = format!("memberID={member}");
    format!(
        "POST /{operation} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        body.len(),
    )
}

/// The mix of `benches/peers/load.lua`: a few keys and members have most of the requests.
fn mix(keys: &[String]) -> Vec<String> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut skewed = |n: usize, power: i32| (n as f64 * rng.f64().powi(power)) as usize;
    let requests = (0..REQUESTS).map(|_| {
        let operation = match skewed(100, 1) {
            0..75 => "getPoints",
            75..90 => "getWarns",
            _ => "getReviews",
        };
        request(operation, &keys[skewed(keys.len(), 2)], 190_551_803_669_111_001 + skewed(2_000, 3) as u64)
    });
    requests.collect()
}

fn tls(ca: &PathBuf) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(ca)? {
        roots.add(root?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_protocol_versions(DEFAULT_VERSIONS)?.with_root_certificates(roots);
    Ok(Arc::new(config.with_no_client_auth()))
}

fn main() -> Result<(), Error> {
    let args = Args::parse();
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1024));
    let tls = args.ca.as_ref().map(tls).transpose()?;
    let open = |n| Connection::open(&args, tls.as_ref(), poll.registry(), n);
    let mut connections = (0..args.connections).map(open).collect::<Result<Vec<_>, _>>()?;
    let mut idle: VecDeque<usize> = (0..args.connections).collect();
    let (requests, mut rng) = (mix(&args.keys), fastrand::Rng::with_seed(2));
    // Nanoseconds since 1970: members that no run before this one has asked for.
    let mut new_member = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
    let (all, mut sent, mut late, mut errors) = ((args.rate * args.seconds) as usize, 0, 0, 0);
    let mut latencies = Vec::with_capacity(all);
    let start = Instant::now();
    let due_at = |n: usize| start + Duration::from_secs_f64(n as f64 / args.rate);
    while latencies.len() < all && start.elapsed().as_secs_f64() < args.seconds + PATIENCE.as_secs_f64() {
        let now = Instant::now();
        while sent < all
            && due_at(sent) <= now
            && let Some(n) = idle.pop_front()
        {
            let connection = &mut connections[n];
            connection.due = due_at(sent);
            if rng.f64() < args.misses {
                new_member += 1;
                let key = &args.keys[sent % args.keys.len()];
                connection.stream.write_all(request("getPoints", key, new_member).as_bytes())?;
            } else {
                connection.stream.write_all(requests[sent % REQUESTS].as_bytes())?;
            }
            late += usize::from(now - connection.due > LATE);
            sent += 1;
        }
        poll.poll(&mut events, Some(Duration::ZERO))?;
        for Token(n) in events.iter().map(|event| event.token()) {
            if let Some(status) = connections[n].receive()? {
                latencies.push(connections[n].due.elapsed());
                errors += usize::from(status != 200);
                idle.push_back(n);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    errors += all - latencies.len();
    latencies.sort_unstable();
    let of = |fraction: f64| {
        let rank = (fraction * latencies.len() as f64).ceil() as usize;
        latencies.get(rank.max(1) - 1).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
    };
    let result = serde_json::json!({
        "requests": latencies.len(),
        "seconds": seconds,
        "errors": errors,
        "late": late,
        // In microseconds.
        "p50": of(0.5),
        "p99": of(0.99),
        "p99.9": of(0.999),
        "max": of(1.0),
    });
    println!("RESULT {result}");
    Ok(())
}
