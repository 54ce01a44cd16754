//! A load of new TLS 1.3 connections, one request each, with full or with resumed handshakes: the load generators that
//! Debian has cannot tell which of the two they made. `benches/peers/run` runs it; the last line says what came of it.
//!
//! `cargo run --release --example tls_connections -- 127.0.0.1:8443 --ca certificate.pem --key KEY --resume`

#![expect(clippy::print_stdout, reason = "its result")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, HandshakeKind, RootCertStore};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
struct Args {
    /// The server, whose certificate is for `localhost`
    address: SocketAddr,
    /// The root of the server's certificate
    #[arg(long)]
    ca: PathBuf,
    /// The value of `Authorization`
    #[arg(long)]
    key: String,
    /// Resume sessions by tickets; otherwise every handshake is a full one
    #[arg(long)]
    resume: bool,
    /// How many connections at once
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// For how long
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

/// What came of the connections.
#[derive(Default)]
struct Counts {
    requests: u64,
    resumed: u64,
    errors: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let args = Args::parse();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&args.ca)?)?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    let body = "memberID=190551803669111001";
    let request = format!(
        "POST /getPoints HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\nConnection: close\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        args.key,
        body.len(),
    );
    let start = Instant::now();
    let until = start + Duration::from_secs_f64(args.seconds);
    let tasks = (0..args.connections).map(|_| async {
        let mut config = config.clone();
        if args.resume {
            // Of each task its own: a ticket is used once, and a shared store of them may be empty at times.
            config.resumption = Resumption::in_memory_sessions(1);
        }
        let connector = TlsConnector::from(Arc::new(config));
        let mut counts = Counts::default();
        while Instant::now() < until {
            match connect(&connector, args.address, &request).await {
                Ok(kind) => {
                    counts.requests += 1;
                    counts.resumed += u64::from(kind == Some(HandshakeKind::Resumed));
                }
                Err(_) => counts.errors += 1,
            }
        }
        counts
    });
    let all = join_all(tasks).await;
    let sum = |count: fn(&Counts) -> u64| all.iter().map(count).sum::<u64>();
    println!(
        r#"RESULT {{"requests": {}, "seconds": {}, "errors": {}, "resumed": {}}}"#,
        sum(|c| c.requests),
        start.elapsed().as_secs_f64(),
        sum(|c| c.errors),
        sum(|c| c.resumed),
    );
    Ok(())
}

/// Makes a connection and one request on it, and reads until the server closes it.
async fn connect(connector: &TlsConnector, to: SocketAddr, request: &str) -> Result<Option<HandshakeKind>, Error> {
    let stream = TcpStream::connect(to).await?;
    let mut stream = connector.connect(ServerName::try_from("localhost")?, stream).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    if !answer.starts_with(b"HTTP/1.1 200") {
        return Err("the request was refused".into());
    }
    Ok(stream.get_ref().1.handshake_kind())
}
