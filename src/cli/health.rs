//! `guildgate health`: asks the running server for its health path, at the first address of `server.listen`. It is the
//! health check of the image, so every reason is exit code 1.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::error::CommandError;
use crate::config::{self, Listen, Server, client_tls};

/// How long the answer is waited for.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Longest answer that is read.
const MAX_ANSWER: u64 = 4096;

pub(super) async fn run(config: Option<&Path>) -> Result<(), CommandError> {
    let server = config::load(config).map_err(|faults| CommandError::new(faults.to_string()))?.config.server;
    let path = &*server.health_path;
    if path.is_empty() {
        let why = "server.health_path is \"\", so there is nothing to ask for; set it, such as to \"/healthz\"";
        return Err(CommandError::new(why));
    }
    let answer = match tokio::time::timeout(TIMEOUT, ask(&server, path)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(CommandError::new(format!("the server cannot be asked: {error}; does it run?"))),
        Err(_) => return Err(CommandError::new(format!("the server did not answer within {} s", TIMEOUT.as_secs()))),
    };
    let (status, body) = (answer.lines().next().unwrap_or_default(), answer.lines().last().unwrap_or_default());
    if status.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(CommandError::new(format!("{status}: {body}"))) }
}

/// The server's answer, as it came. An address such as 0.0.0.0 is this machine's own here.
async fn ask(server: &Server, path: &str) -> io::Result<String> {
    match server.listen.first() {
        Some(Listen::Tcp(address)) if server.tls.is_some() => {
            // The certificate names the addresses of callers.
            let tls = client_tls(None, true).map_err(io::Error::other)?.with_no_client_auth();
            let stream = announced(TcpStream::connect(address).await?, server).await?;
            exchange(TlsConnector::from(Arc::new(tls)).connect(ServerName::from(address.ip()), stream).await?, path)
                .await
        }
        Some(Listen::Tcp(address)) => {
            exchange(announced(TcpStream::connect(address).await?, server).await?, path).await
        }
        Some(Listen::Unix(socket)) => {
            exchange(announced(UnixStream::connect(socket).await?, server).await?, path).await
        }
        None => Err(io::Error::other("server.listen names no address")),
    }
}

/// With the PROXY header that `server.proxy_protocol` demands, of a connection that is passed on for nobody.
async fn announced<S: AsyncWrite + Unpin>(mut stream: S, server: &Server) -> io::Result<S> {
    if server.proxy_protocol {
        stream.write_all(b"PROXY UNKNOWN\r\n").await?;
    }
    Ok(stream)
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer).await?;
    Ok(answer)
}
