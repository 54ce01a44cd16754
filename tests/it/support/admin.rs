//! A client of the admin listener: one request on a connection of its own, and its answer with status, headers and body.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{PATIENCE, TestGateway, eventually};

/// Sends requests to an admin listener under one token.
#[derive(Clone, Debug)]
pub struct AdminClient {
    pub address: SocketAddr,
    pub token: String,
}

/// What the admin listener answered.
#[derive(Clone, Debug)]
pub struct AdminAnswer {
    pub status: u16,
    pub headers: hyper::HeaderMap,
    pub text: String,
}

impl TestGateway {
    /// The admin listener of a gateway that was built with [`super::Builder::admin`].
    pub async fn admin(&self) -> AdminClient {
        let line = || {
            let said = self.stderr();
            let line = said.lines().find(|line| line.contains("admin listener ready")).map(str::to_owned);
            line.filter(|line| line.ends_with('"'))
        };
        eventually(PATIENCE, "the admin listener is ready", || async { line().is_some() }).await;
        let line = line().unwrap();
        let url = line.split('"').nth(1).unwrap().to_owned();
        let address = url.split("//").nth(1).unwrap().parse().unwrap();
        let token = std::fs::read_to_string(self.world().path("admin.token")).unwrap_or_default();
        AdminClient { address, token: token.trim_end().to_owned() }
    }
}

impl AdminClient {
    pub fn with_token(&self, token: &str) -> AdminClient {
        AdminClient { address: self.address, token: token.to_owned() }
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> AdminAnswer {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = hyper::Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "localhost");
        }
        if !self.token.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = sender.send_request(request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await.unwrap();
        let (mut parts, body) = answer.into_parts();
        // A browser goes from the page on.
        if let Some(location) = parts.headers.get_mut("location") {
            let from = url::Url::parse("http://localhost").unwrap().join(path).unwrap();
            let to = from.join(location.to_str().unwrap()).unwrap();
            *location = to[url::Position::BeforePath..].parse().unwrap();
        }
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        AdminAnswer { status: parts.status.as_u16(), headers: parts.headers, text }
    }

    pub async fn get(&self, path: &str) -> AdminAnswer {
        self.send("GET", path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &str) -> AdminAnswer {
        self.json("POST", path, body).await
    }

    /// What `/metrics` says, which anybody may read.
    pub async fn metrics(&self) -> String {
        self.with_token("").get("/metrics").await.text
    }

    /// The value of the sample with this name and these labels.
    pub async fn metric(&self, sample: &str) -> f64 {
        let text = self.metrics().await;
        let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{sample} is not in\n{text}")).parse().unwrap()
    }

    /// A request with a JSON body.
    pub async fn json(&self, method: &str, path: &str, body: &str) -> AdminAnswer {
        self.send(method, path, &[("content-type", "application/json")], body).await
    }
}

impl AdminAnswer {
    /// Asserts the status; the body as JSON.
    #[track_caller]
    pub fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        if self.text.is_empty() { Value::Null } else { serde_json::from_str(&self.text).unwrap() }
    }

    /// Asserts a problem with this status whose detail has these words.
    #[track_caller]
    pub fn is_problem(&self, status: u16, words: &str) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.is(status);
        assert_eq!(problem["status"], status, "{self:?}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{self:?}");
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}
