//! Turns an answer into HTTP: status, header fields and body, for HTTP/1.1 as bytes and for HTTP/2 as a field map. Both
//! versions take their fields from the same function, so that they cannot differ. A long text is not copied: it stays
//! shared with the cache until it is sent. Nothing here reads from a connection or decides what the answer is.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tokio::time::Instant;

use crate::config::{AnswerHeader, Config, ErrorStatus};
use crate::gateway::{CacheStatus, Reply, RequestDetails};
use crate::wire::{Fault, RequestId};

/// What is sent to the caller for one request.
#[derive(Debug)]
pub(super) struct Answer<'c> {
    pub(super) content: Content,
    /// The value of `Access-Control-Allow-Origin`; `None`: no page that may read the answer has asked.
    pub(super) allow_origin: Option<&'c str>,
    /// When the request was answered.
    pub(super) at: Instant,
    /// The same in milliseconds since the Unix epoch.
    pub(super) unix_ms: i64,
}

/// What an answer says.
#[derive(Debug)]
pub(super) enum Content {
    Reply(Reply),
    /// To a browser that asks whether its page may call.
    Preflight(RequestDetails),
    /// An upstream's, with this status.
    Passed(u16, RequestDetails),
    /// To a health check.
    Health {
        draining: bool,
    },
}

impl Content {
    /// The status that is sent (`answers.error_status`).
    pub(super) fn status(&self, config: &Config) -> u16 {
        match self {
            Content::Health { draining: true } => 503,
            Content::Preflight(_) => 204,
            Content::Passed(status, _) => *status,
            Content::Reply(Reply { answer: Err(fault), .. }) if config.answers.error_status != ErrorStatus::Ok => {
                fault.status()
            }
            Content::Health { draining: false } | Content::Reply(_) => 200,
        }
    }
}

impl Answer<'_> {
    /// Whether handling the request panicked.
    pub(super) fn panicked(&self) -> bool {
        matches!(&self.content, Content::Reply(reply) if reply.details.panicked)
    }

    /// Appends the answer to `out` (contract section 1, "Headers on answers"). `connection`: the field of that name;
    /// `head_only`: without its body, to HEAD. Returns its text if that is long: it is to be sent after `out`, and is in
    /// memory once however many slow callers read it (guarantee 8).
    pub(super) fn write_http1(
        &self,
        config: &Config,
        connection: Option<&str>,
        head_only: bool,
        out: &mut Vec<u8>,
    ) -> Option<Arc<str>> {
        let (status, text) = self.status_and_text(config);
        out.reserve(USUAL_ANSWER);
        for part in ["HTTP/1.1 ", status.as_str(), " ", status.canonical_reason().unwrap_or_default(), "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        self.add_fields(config, text.len(), out);
        if let Some(connection) = connection {
            out.add_bytes("Connection", connection.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        match text.len() {
            _ if head_only => None,
            SHARED_FROM.. => Some(text.into_owned()),
            _ => {
                out.extend_from_slice(text.as_bytes());
                None
            }
        }
    }

    /// The header and the body of the answer for HTTP/2.
    pub(super) fn http2(&self, config: &Config) -> (Response<()>, Bytes) {
        let (status, text) = self.status_and_text(config);
        let mut header = Response::new(());
        *header.status_mut() = status;
        self.add_fields(config, text.len(), header.headers_mut());
        (header, Bytes::from_owner(Arc::<[u8]>::from(text.into_owned())))
    }

    fn status_and_text(&self, config: &Config) -> (StatusCode, Cow<'_, Arc<str>>) {
        let text = match &self.content {
            Content::Health { draining } => Cow::Owned(if *draining { "draining" } else { "ok" }.into()),
            Content::Preflight(_) | Content::Passed(..) => Cow::Owned("".into()),
            Content::Reply(Reply { answer: Ok(text), .. }) => Cow::Borrowed(text),
            Content::Reply(Reply { answer: Err(fault), .. }) => Cow::Owned(fault.line(&config.answers.wording).into()),
        };
        let status = self.content.status(config);
        (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), text)
    }

    fn add_fields(&self, config: &Config, length: usize, to: &mut impl Fields) {
        // An answer of 204 has no body, and so neither a type nor a length (RFC 9110, 8.6).
        let has_body = !matches!(self.content, Content::Preflight(_));
        to.add("Date", |out| write_date(self.unix_ms, out));
        if has_body {
            to.add_bytes("Content-Type", b"text/plain; charset=utf-8");
        }
        to.add_bytes("Cache-Control", b"no-store");
        if has_body {
            to.add_number("Content-Length", length as u64);
        }
        match &self.content {
            Content::Reply(reply) => add_reply_fields(config, reply, to),
            Content::Preflight(details) => add_preflight_fields(config, &details.id, to),
            Content::Health { .. } | Content::Passed(..) => {}
        }
        if let Some(origin) = self.allow_origin {
            to.add_bytes("Access-Control-Allow-Origin", origin.as_bytes());
            to.add_bytes("Vary", b"Origin");
            if has_body {
                to.add_bytes("Access-Control-Expose-Headers", EXPOSED);
            }
        }
    }
}

/// Memory that an answer's header, or a short answer, usually takes.
const USUAL_ANSWER: usize = 1024;

/// Length from which a text is not copied.
const SHARED_FROM: usize = 8 * 1024;

/// The fields that a page may read, besides those that every answer has.
const EXPOSED: &[u8] = b"cache-status, ratelimit, ratelimit-policy, retry-after, x-request-id, age";

/// What a page may send, and for how many seconds the browser need not ask again.
fn add_preflight_fields(config: &Config, id: &RequestId, to: &mut impl Fields) {
    to.add_bytes("Access-Control-Allow-Methods", b"POST");
    to.add_bytes("Access-Control-Allow-Headers", b"authorization, content-type");
    to.add_bytes("Access-Control-Max-Age", b"600");
    if config.answers.has(AnswerHeader::RequestId) {
        to.add_bytes("X-Request-Id", id.as_bytes());
    }
}

/// The fields that depend on the reply and the configuration.
fn add_reply_fields(config: &Config, reply: &Reply, to: &mut impl Fields) {
    let details = &reply.details;
    let has = |header| config.answers.has(header);
    if let Some(cache) = details.cache {
        if has(AnswerHeader::CacheStatus) {
            to.add("Cache-Status", |out| write_cache_status(cache, out));
        }
        if has(AnswerHeader::Age)
            && let CacheStatus::Hit { age, .. } | CacheStatus::WhileRevalidating { age } | CacheStatus::IfError { age } =
                cache
        {
            to.add_number("Age", age.as_secs());
        }
    }
    if has(AnswerHeader::Ratelimit)
        && let (Some(key), Some(levels)) = (&details.key, &details.levels)
    {
        to.add_bytes("RateLimit-Policy", key.policy.header().as_bytes());
        to.add("RateLimit", |out| key.policy.write_rate_limit(levels, out));
    }
    if has(AnswerHeader::RequestId) {
        to.add_bytes("X-Request-Id", details.id.as_bytes());
    }
    if let Err(fault) = &reply.answer {
        if let Some(seconds) = fault.retry_after() {
            to.add_number("Retry-After", seconds);
        }
        if *fault == Fault::MethodNotPost {
            to.add_bytes("Allow", b"POST");
        }
    }
}

/// Where an answer's fields are written: the bytes of HTTP/1.1, or the map of HTTP/2.
trait Fields {
    /// Adds a field whose value `write` appends.
    fn add(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>));

    fn add_bytes(&mut self, name: &'static str, value: &[u8]) {
        self.add(name, |out| out.extend_from_slice(value));
    }

    fn add_number(&mut self, name: &'static str, value: u64) {
        self.add_bytes(name, itoa::Buffer::new().format(value).as_bytes());
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

/// The fields of an HTTP/2 answer.
impl Fields for HeaderMap {
    fn add(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>)) {
        let mut text = Vec::new();
        write(&mut text);
        // Every name and value that is written here is valid.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(text)) {
            self.insert(name, value);
        }
    }
}

/// Appends the value of `Cache-Status` (RFC 9211).
fn write_cache_status(cache: CacheStatus, out: &mut Vec<u8>) {
    let value: &[u8] = match cache {
        CacheStatus::Hit { ttl, .. } => {
            out.extend_from_slice(b"guildgate; hit; ttl=");
            return out.extend_from_slice(itoa::Buffer::new().format(ttl.as_secs()).as_bytes());
        }
        CacheStatus::WhileRevalidating { .. } => b"guildgate; hit; detail=stale-while-revalidate",
        CacheStatus::IfError { .. } => b"guildgate; hit; detail=stale-if-error",
        CacheStatus::Forwarded { stale: false, stored: true } => b"guildgate; fwd=miss; stored",
        CacheStatus::Forwarded { stale: false, stored: false } => b"guildgate; fwd=miss",
        CacheStatus::Forwarded { stale: true, stored: true } => b"guildgate; fwd=stale; stored",
        CacheStatus::Forwarded { stale: true, stored: false } => b"guildgate; fwd=stale",
        CacheStatus::Collapsed => b"guildgate; fwd=miss; collapsed",
        CacheStatus::Method => b"guildgate; fwd=method",
        CacheStatus::Refused => b"guildgate; detail=refused",
        CacheStatus::Bypass => b"guildgate; fwd=bypass",
    };
    out.extend_from_slice(value);
}

/// Appends the date, which is formatted once a second on each thread.
fn write_date(unix_ms: i64, out: &mut Vec<u8>) {
    thread_local! {
        static FORMATTED: RefCell<(u64, String)> = const { RefCell::new((u64::MAX, String::new())) };
    }
    let now = u64::try_from(unix_ms / 1000).unwrap_or_default();
    FORMATTED.with_borrow_mut(|(second, text)| {
        if *second != now {
            (*second, *text) = (now, httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(now)));
        }
        out.extend_from_slice(text.as_bytes());
    });
}
