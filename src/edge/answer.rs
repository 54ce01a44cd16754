use std::cell::RefCell;
use std::time::{Duration, SystemTime};

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

/// Appends a whole answer to `out` (contract section 1, "Headers on answers").
pub(super) fn write(config: &Config, reply: &Reply, shape: Shape, out: &mut Vec<u8>) {
    let refusal;
    let body = match &reply.answer {
        Ok(text) => &**text,
        Err(fault) => {
            refusal = fault.line(&config.answers.wording);
            &refusal
        }
    };
    start(out, status(config, reply), body.len(), shape);
    let facts = &reply.facts;
    let headers = config.answers.headers;
    if let Some(cache) = facts.cache {
        if headers.cache_status {
            cache_status(cache, out);
        }
        if headers.age
            && let CacheUse::Hit { age, .. } | CacheUse::WhileRevalidating { age } | CacheUse::IfError { age } = cache
        {
            number(out, b"Age: ", age.as_secs());
        }
    }
    if headers.ratelimit
        && let (Some(key), Some(spent)) = (&facts.key, &facts.spent)
    {
        field(out, b"RateLimit-Policy: ", key.policy.header().as_bytes());
        out.extend_from_slice(b"RateLimit: ");
        key.policy.write_level(spent, out);
        out.extend_from_slice(b"\r\n");
    }
    if headers.request_id {
        field(out, b"X-Request-Id: ", facts.id.as_bytes());
    }
    if let Err(fault) = &reply.answer {
        if let Some(seconds) = fault.retry_after() {
            number(out, b"Retry-After: ", seconds);
        }
        if *fault == Fault::MethodNotPost {
            field(out, b"Allow: ", b"POST");
        }
    }
    end(out, body, shape);
}

/// Appends the answer to a health check.
pub(super) fn write_health(draining: bool, shape: Shape, out: &mut Vec<u8>) {
    let (status, body) = if draining { (503, "draining") } else { (200, "ok") };
    start(out, status, body.len(), shape);
    end(out, body, shape);
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
        CacheUse::Hit { ttl, .. } => return number(out, b"Cache-Status: guildgate; hit; ttl=", ttl.as_secs()),
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
    field(out, b"Cache-Status: ", value);
}

fn start(out: &mut Vec<u8>, status: u16, length: usize, shape: Shape) {
    let line: &[u8] = match status {
        200 => b"HTTP/1.1 200 OK\r\nDate: ",
        400 => b"HTTP/1.1 400 Bad Request\r\nDate: ",
        401 => b"HTTP/1.1 401 Unauthorized\r\nDate: ",
        403 => b"HTTP/1.1 403 Forbidden\r\nDate: ",
        404 => b"HTTP/1.1 404 Not Found\r\nDate: ",
        405 => b"HTTP/1.1 405 Method Not Allowed\r\nDate: ",
        408 => b"HTTP/1.1 408 Request Timeout\r\nDate: ",
        413 => b"HTTP/1.1 413 Content Too Large\r\nDate: ",
        415 => b"HTTP/1.1 415 Unsupported Media Type\r\nDate: ",
        429 => b"HTTP/1.1 429 Too Many Requests\r\nDate: ",
        502 => b"HTTP/1.1 502 Bad Gateway\r\nDate: ",
        503 => b"HTTP/1.1 503 Service Unavailable\r\nDate: ",
        _ => b"HTTP/1.1 504 Gateway Timeout\r\nDate: ",
    };
    out.extend_from_slice(line);
    date(out);
    number(
        out,
        b"\r\nContent-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\nContent-Length: ",
        length as u64,
    );
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

fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn number(out: &mut Vec<u8>, name: &[u8], value: u64) {
    field(out, name, itoa::Buffer::new().format(value).as_bytes());
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
