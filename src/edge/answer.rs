//! Turns a reply of the gateway into an HTTP answer: status, header fields and body, for HTTP/1.1 as bytes and for
//! HTTP/2 as a field map. Both versions take their fields from the same functions, so that they cannot differ. A long
//! text is not copied: it stays shared with the cache until it is sent. Nothing here reads from a connection or decides
//! what the answer is.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::output::Output;
use crate::config::Config;
use crate::gateway::{CacheUse, Reply};
use crate::wire::Fault;

/// How an answer is to be framed on its connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// This is the connection's last answer.
    pub(super) close: bool,
    /// The caller speaks HTTP/1.0 and asked to be kept.
    pub(super) say_keep_alive: bool,
    /// An answer to HEAD: its body is told of and left out.
    pub(super) head_only: bool,
}

/// The status of an answer as it goes over the wire (`answers.error_status`).
pub(super) fn status(config: &Config, reply: &Reply) -> u16 {
    match &reply.answer {
        Ok(_) => 200,
        Err(_) if config.answers.errors_as_ok => 200,
        Err(fault) => fault.status(),
    }
}

/// Where the fields of an answer go: the bytes of HTTP/1.1, or the map of HTTP/2.
trait Fields {
    /// Adds a field whose value is appended by `write`.
    fn add(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>));

    fn text(&mut self, name: &'static str, value: &[u8]) {
        self.add(name, |out| out.extend_from_slice(value));
    }

    fn number(&mut self, name: &'static str, value: u64) {
        self.text(name, itoa::Buffer::new().format(value).as_bytes());
    }
}

impl Fields for Vec<u8> {
    fn add(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>)) {
        self.extend_from_slice(name.as_bytes());
        self.extend_from_slice(b": ");
        write(self);
        self.extend_from_slice(b"\r\n");
    }
}

/// The fields of an HTTP/2 answer, whose names are in lower case there.
#[derive(Default)]
struct Map {
    fields: HeaderMap,
    value: Vec<u8>,
}

impl Fields for Map {
    fn add(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>)) {
        self.value.clear();
        write(&mut self.value);
        // Every name and value of ours is one.
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&self.value)) {
            self.fields.insert(name, value);
        }
    }
}

/// Appends a whole answer to `out` (contract section 1, "Headers on answers").
pub(super) fn write(config: &Config, reply: &Reply, shape: Shape, out: &mut Output) {
    let status = status(config, reply);
    match &reply.answer {
        Ok(text) => {
            start(out.bytes(), status, text.len(), shape);
            fields(config, reply, out.bytes());
            end(out.bytes(), "", shape);
            if !shape.head_only {
                out.text(text);
            }
        }
        Err(fault) => {
            let line = fault.line(&config.answers.wording);
            start(out.bytes(), status, line.len(), shape);
            fields(config, reply, out.bytes());
            end(out.bytes(), &line, shape);
        }
    }
}

/// An answer as HTTP/2 has it.
pub(super) fn http2(config: &Config, reply: &Reply) -> (Response<()>, Bytes) {
    let body = match &reply.answer {
        Ok(text) => Bytes::from_owner(Text(text.clone())),
        Err(fault) => Bytes::from(fault.line(&config.answers.wording)),
    };
    let mut map = Map::default();
    every(body.len(), &mut map);
    fields(config, reply, &mut map);
    (response(status(config, reply), map), body)
}

/// An answer's text, shared with the cache.
struct Text(Arc<str>);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn response(status: u16, map: Map) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = map.fields;
    response
}

/// The fields of every answer.
fn every(length: usize, to: &mut impl Fields) {
    to.add("Date", date);
    to.text("Content-Type", b"text/plain; charset=utf-8");
    to.text("Cache-Control", b"no-store");
    to.number("Content-Length", length as u64);
}

/// The fields that an answer's facts and the configuration call for.
fn fields(config: &Config, reply: &Reply, to: &mut impl Fields) {
    let facts = &reply.facts;
    let headers = config.answers.headers;
    if let Some(cache) = facts.cache {
        if headers.cache_status {
            to.add("Cache-Status", |out| cache_status(cache, out));
        }
        if headers.age
            && let CacheUse::Hit { age, .. } | CacheUse::WhileRevalidating { age } | CacheUse::IfError { age } = cache
        {
            to.number("Age", age.as_secs());
        }
    }
    if headers.ratelimit
        && let (Some(key), Some(spent)) = (&facts.key, &facts.spent)
    {
        to.text("RateLimit-Policy", key.policy.header().as_bytes());
        to.add("RateLimit", |out| key.policy.write_level(spent, out));
    }
    if headers.request_id {
        to.text("X-Request-Id", facts.id.as_bytes());
    }
    if let Err(fault) = &reply.answer {
        if let Some(seconds) = fault.retry_after() {
            to.number("Retry-After", seconds);
        }
        if *fault == Fault::MethodNotPost {
            to.text("Allow", b"POST");
        }
    }
}

/// Appends the answer to a health check.
pub(super) fn write_health(draining: bool, shape: Shape, out: &mut Vec<u8>) {
    let (status, body) = health(draining);
    start(out, status, body.len(), shape);
    end(out, body, shape);
}

/// The answer to a health check as HTTP/2 has it.
pub(super) fn http2_health(draining: bool) -> (Response<()>, Bytes) {
    let (status, body) = health(draining);
    let mut map = Map::default();
    every(body.len(), &mut map);
    (response(status, map), Bytes::from_static(body.as_bytes()))
}

fn health(draining: bool) -> (u16, &'static str) {
    if draining { (503, "draining") } else { (200, "ok") }
}

/// The part the cache had, in one word, for the access log.
pub(super) fn cache_word(cache: CacheUse) -> &'static str {
    match cache {
        CacheUse::Hit { .. } => "hit",
        CacheUse::WhileRevalidating { .. } => "stale-while-revalidate",
        CacheUse::IfError { .. } => "stale-if-error",
        CacheUse::Asked { stale: true, .. } => "stale",
        CacheUse::Asked { stale: false, .. } => "miss",
        CacheUse::Collapsed => "collapsed",
        CacheUse::Method => "method",
        CacheUse::Refused => "refused",
    }
}

/// `Cache-Status` as RFC 9211 has it.
fn cache_status(cache: CacheUse, out: &mut Vec<u8>) {
    let value: &[u8] = match cache {
        CacheUse::Hit { ttl, .. } => {
            out.extend_from_slice(b"guildgate; hit; ttl=");
            return out.extend_from_slice(itoa::Buffer::new().format(ttl.as_secs()).as_bytes());
        }
        CacheUse::WhileRevalidating { .. } => b"guildgate; hit; detail=stale-while-revalidate",
        CacheUse::IfError { .. } => b"guildgate; hit; detail=stale-if-error",
        CacheUse::Asked { stale: false, stored: true } => b"guildgate; fwd=miss; stored",
        CacheUse::Asked { stale: false, stored: false } => b"guildgate; fwd=miss",
        CacheUse::Asked { stale: true, stored: true } => b"guildgate; fwd=stale; stored",
        CacheUse::Asked { stale: true, stored: false } => b"guildgate; fwd=stale",
        CacheUse::Collapsed => b"guildgate; fwd=miss; collapsed",
        CacheUse::Method => b"guildgate; fwd=method",
        CacheUse::Refused => b"guildgate; detail=refused",
    };
    out.extend_from_slice(value);
}

fn start(out: &mut Vec<u8>, status: u16, length: usize, shape: Shape) {
    let line: &[u8] = match status {
        200 => b"HTTP/1.1 200 OK\r\n",
        400 => b"HTTP/1.1 400 Bad Request\r\n",
        401 => b"HTTP/1.1 401 Unauthorized\r\n",
        403 => b"HTTP/1.1 403 Forbidden\r\n",
        404 => b"HTTP/1.1 404 Not Found\r\n",
        405 => b"HTTP/1.1 405 Method Not Allowed\r\n",
        408 => b"HTTP/1.1 408 Request Timeout\r\n",
        413 => b"HTTP/1.1 413 Content Too Large\r\n",
        415 => b"HTTP/1.1 415 Unsupported Media Type\r\n",
        429 => b"HTTP/1.1 429 Too Many Requests\r\n",
        502 => b"HTTP/1.1 502 Bad Gateway\r\n",
        503 => b"HTTP/1.1 503 Service Unavailable\r\n",
        _ => b"HTTP/1.1 504 Gateway Timeout\r\n",
    };
    out.extend_from_slice(line);
    every(length, out);
    if shape.close {
        out.extend_from_slice(b"Connection: close\r\n");
    } else if shape.say_keep_alive {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
    }
}

fn end(out: &mut Vec<u8>, body: &str, shape: Shape) {
    out.extend_from_slice(b"\r\n");
    if !shape.head_only {
        out.extend_from_slice(body.as_bytes());
    }
}

/// The date, made once a second and thread.
fn date(out: &mut Vec<u8>) {
    thread_local! {
        static TODAY: RefCell<(u64, String)> = const { RefCell::new((u64::MAX, String::new())) };
    }
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    TODAY.with_borrow_mut(|(of, text)| {
        if *of != second {
            (*of, *text) = (second, httpdate::fmt_http_date(now));
        }
        out.extend_from_slice(text.as_bytes());
    });
}
