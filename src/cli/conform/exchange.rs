//! Sends one request as it is and reads the answer as it comes, with a time limit. Each request has a connection of its
//! own, so that no answer depends on the one before.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::cases::{Case, KeySent};
use crate::config::Upstream;
use crate::origin::Tls;

/// Longest answer that is read, twice what the gateway takes from an origin.
const MAX_ANSWER: usize = 2 << 20;

/// Where requests are sent.
pub(super) struct Target {
    pub(super) upstream: Upstream,
    pub(super) tls: Option<Tls>,
    pub(super) timeout: Duration,
}

/// What a caller sees of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) content_type: Option<Vec<u8>>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// Whether it refuses the request for the moment only: the key is over a limit (12), or the service is not available
    /// (21).
    pub(super) fn is_limited(&self) -> bool {
        matches!(self.status, 429 | 503) || matches!(self.code(), Some(12 | 21))
    }

    /// The code that the body begins with, if it is a refusal.
    pub(super) fn code(&self) -> Option<u8> {
        let text = std::str::from_utf8(self.body.get(..5)?).ok()?;
        text.strip_suffix(" | ")?.parse().ok()
    }
}

/// Whether a write of this answer may still happen: there is none, or it says that the outcome is unknown (20, 22, or
/// another server's error but 21).
pub(super) fn is_unsettled(answer: &Result<Answer, String>) -> bool {
    answer.as_ref().map_or(true, |answer| match answer.code() {
        Some(code) => matches!(code, 20 | 22),
        None => answer.status >= 500,
    })
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
    pub(super) async fn ask(&self, case: &Case, key: &HeaderValue) -> Result<Answer, String> {
        let exchange = async {
            let stream = TcpStream::connect((self.upstream.name.as_str(), self.upstream.port)).await?;
            match (&self.upstream.server_name, &self.tls) {
                (Some(name), Some(tls)) => self.exchange(tls.connect(name, stream).await?, case, key).await,
                _ => self.exchange(stream, case, key).await,
            }
        };
        let late = || format!("no whole answer came within {} ms", self.timeout.as_millis());
        tokio::time::timeout(self.timeout, exchange).await.map_err(|_| late())?.map_err(|e| e.to_string())
    }

    async fn exchange<S>(&self, stream: S, case: &Case, key: &HeaderValue) -> io::Result<Answer>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let request = self.request(case, key).map_err(io::Error::other)?;
        let (mut connection, driver) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let driver = tokio::spawn(driver);
        let answer = match connection.send_request(request).await {
            Ok(response) => read(response).await,
            Err(error) => Err(io::Error::other(error)),
        };
        driver.abort();
        answer
    }

    fn request(&self, case: &Case, key: &HeaderValue) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let mut request = Request::builder()
            .method(case.method)
            .uri(format!("{}/{}", self.upstream.path, case.target))
            .header(HOST, &self.upstream.host);
        let mut key = key.clone();
        key.set_sensitive(true);
        let bearer = || HeaderValue::from_bytes(&[b"Bearer ", key.as_bytes()].concat());
        request = match case.key {
            KeySent::Right => request.header(AUTHORIZATION, key),
            KeySent::Twice => request.header(AUTHORIZATION, key.clone()).header(AUTHORIZATION, key),
            KeySent::Bearer => request.header(AUTHORIZATION, bearer()?),
            KeySent::Wrong => request.header(AUTHORIZATION, "guildgate-conform-wrong-key"),
            KeySent::Empty => request.header(AUTHORIZATION, ""),
            KeySent::None => request,
        };
        if let Some(content_type) = case.content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Some(encoding) = case.content_encoding {
            request = request.header(CONTENT_ENCODING, encoding);
        }
        request.body(Full::new(Bytes::from(case.body.clone())))
    }
}

async fn read(response: Response<hyper::body::Incoming>) -> io::Result<Answer> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(io::Error::other)?.to_bytes().to_vec();
    let content_type = head.headers.get(CONTENT_TYPE).map(|value| value.as_bytes().to_vec());
    Ok(Answer { status: head.status.as_u16(), content_type, body })
}
