//! Sends one request as it is and reads the answer as it comes, with a time limit. Each request has a connection of its
//! own, so that no answer depends on the one before.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::cases::{Case, Values};
use crate::config::Upstream;
use crate::origin::Tls;
use crate::telemetry::printable;

/// Longest answer that is read, twice what the gateway takes from an origin.
const MAX_ANSWER: usize = 2 << 20;

/// Where requests are sent.
pub(super) struct Target {
    pub(super) upstream: Upstream,
    pub(super) tls: Option<Tls>,
    pub(super) timeout: Duration,
}

/// What a caller sees of an answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Empty: there is none.
    pub(super) content_type: Vec<u8>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// Whether it refuses the request for the moment only: the key is over a limit (12), or the service is not available
    /// (21).
    pub(super) fn is_limited(&self) -> bool {
        matches!(self.status, 429 | 503) || matches!(self.code(), Some(12 | 21))
    }

    /// Whether it is no refusal, whatever statuses refusals have.
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status) && self.code().is_none()
    }

    /// The code that the body begins with, if it is a refusal.
    pub(super) fn code(&self) -> Option<u8> {
        let text = std::str::from_utf8(self.body.get(..5)?).ok()?;
        text.strip_suffix(" | ")?.parse().ok()
    }
}

impl Target {
    /// The gateway at this address.
    pub(super) fn gateway(address: SocketAddr, timeout: Duration) -> Self {
        let (name, host) = (address.ip().to_string(), address.to_string());
        let upstream = Upstream { name, port: address.port(), path: String::new(), host, server_name: None };
        Target { upstream, tls: None, timeout }
    }

    /// Sends the request of a case.
    ///
    /// # Errors
    /// Why no whole answer came.
    pub(super) async fn ask(&self, case: &Case, values: &Values) -> Result<Answer, String> {
        let exchange = async {
            let request = self.request(case, values).map_err(io::Error::other)?;
            let stream = TcpStream::connect((self.upstream.name.as_str(), self.upstream.port)).await?;
            match (&self.upstream.server_name, &self.tls) {
                (Some(name), Some(tls)) => send(tls.connect(name, stream).await?, request).await,
                _ => send(stream, request).await,
            }
        };
        let late = || format!("no whole answer came within {} ms", self.timeout.as_millis());
        let answer = tokio::time::timeout(self.timeout, exchange).await;
        answer.map_err(|_| late())?.map_err(|e| printable(&e.to_string()))
    }

    fn request(&self, case: &Case, values: &Values) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let Upstream { path, host, .. } = &self.upstream;
        let uri = case.path.clone().unwrap_or_else(|| values.fill(&format!("{path}/{}", case.target)));
        let mut request = Request::builder().method(case.method).uri(uri).header(HOST, host);
        for key in case.key {
            request = request.header(AUTHORIZATION, values.fill(key));
        }
        for (name, value) in [(CONTENT_TYPE, case.content_type), (CONTENT_ENCODING, case.content_encoding)] {
            if !value.is_empty() {
                request = request.header(name, value);
            }
        }
        request.body(Full::from(values.fill(&case.body)))
    }
}

async fn send<S>(stream: S, request: Request<Full<Bytes>>) -> io::Result<Answer>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut connection, driver) = connected.map_err(io::Error::other)?;
    tokio::spawn(driver); // it ends with the connection
    let (head, body) = connection.send_request(request).await.map_err(io::Error::other)?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(io::Error::other)?.to_bytes().to_vec();
    let content_type = head.headers.get(CONTENT_TYPE).map(|value| value.as_bytes().to_vec()).unwrap_or_default();
    Ok(Answer { status: head.status.as_u16(), content_type, body })
}
