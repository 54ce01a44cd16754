//! One request on one connection to an upstream, up to its whole answer. The result says whether it may be sent again:
//! nothing of it was sent, it was sent and nothing came back, or an answer began. `setPoints` is sent at most once
//! because of that distinction (guarantee 5). A connection is kept only after an answer that came whole. This module
//! chooses no upstream and does not retry; `HttpOrigin` does.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::header::{CONTENT_LENGTH, RETRY_AFTER, TRANSFER_ENCODING};
use hyper::{HeaderMap, Request as HttpRequest, StatusCode};

use super::backend::Backend;
use super::connection::{self, ConnectError, Connection};
use crate::origin::OriginRequest;
use crate::wire::{Fault, MAX_ORIGIN_ANSWER, Operation, UnusableAnswer, parse_origin_answer};

/// The longest `Retry-After` of an origin that is passed on, in seconds: a day. More is a mistake or malice.
const MAX_RETRY_AFTER: u64 = 86_400;

/// The outcome of one request on one connection.
pub(super) enum Attempt {
    /// A whole answer came, usable or not.
    Answered(Result<String, Fault>),
    /// An answer began, and was malformed or broke off. A retry does not help.
    Broken(Result<String, Fault>),
    /// Nothing of an answer came. A read may be sent again.
    NoAnswer(NoAnswer),
    /// Nothing of the request was sent. Any request may be sent again.
    Unsent(ConnectError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    Closed,
    /// `origin.first_byte_timeout` has passed.
    TimedOut,
}

impl NoAnswer {
    pub(super) fn fault(self) -> Fault {
        match self {
            NoAnswer::Closed => Fault::NoUsableAnswer,
            NoAnswer::TimedOut => Fault::OriginTimeout,
        }
    }

    pub(super) fn reason(self) -> &'static str {
        match self {
            NoAnswer::Closed => "it closes connections without an answer",
            NoAnswer::TimedOut => "no answer began within origin.first_byte_timeout",
        }
    }
}

/// The settings of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptLimits {
    pub(super) first_byte_timeout: Option<Duration>,
    /// The most idle connections that one backend keeps.
    pub(super) max_idle: usize,
}

/// Sends a request on a connection and reads its answer. After a whole answer the connection is kept.
pub(super) async fn attempt(
    backend: &Backend,
    mut connection: Connection,
    request: HttpRequest<Full<Bytes>>,
    origin_request: &OriginRequest<'_>,
    limits: AttemptLimits,
) -> Attempt {
    let id = origin_request.id;
    if connection.ready().await.is_err() {
        return Attempt::Unsent(ConnectError::Closed);
    }
    let sending = connection.try_send_request(request);
    let sent = match limits.first_byte_timeout {
        None => sending.await,
        Some(limit) => match tokio::time::timeout(limit, sending).await {
            Ok(sent) => sent,
            Err(_) => {
                tracing::warn!(request_id = %id, upstream = %backend, "no answer began within origin.first_byte_timeout");
                return Attempt::NoAnswer(NoAnswer::TimedOut);
            }
        },
    };
    let response = match sent {
        Ok(response) => response,
        Err(mut error) => {
            if error.take_message().is_some() {
                return Attempt::Unsent(ConnectError::Closed);
            }
            let error = error.into_error();
            tracing::warn!(request_id = %id, upstream = %backend, %error, "the origin gave no answer");
            // A malformed answer is an answer, and the request is not sent again.
            return if error.is_parse() {
                Attempt::Broken(Err(Fault::NoUsableAnswer))
            } else {
                Attempt::NoAnswer(NoAnswer::Closed)
            };
        }
    };
    let (head, body) = response.into_parts();
    #[cfg(feature = "otlp")]
    if let Some(span) = origin_request.forwarded.trace.span {
        span.answered(head.status.as_u16());
    }
    if head.headers.contains_key(CONTENT_LENGTH) && head.headers.contains_key(TRANSFER_ENCODING) {
        // Where the body ends is not certain (RFC 9112, 6.3).
        tracing::warn!(request_id = %id, upstream = %backend, "the origin's answer has two lengths");
        return Attempt::Broken(Err(Fault::NoUsableAnswer));
    }
    let body = Limited::new(body, MAX_ORIGIN_ANSWER).collect().await;
    let operation = origin_request.request.operation();
    let judge = |body: &[u8]| judge(operation, head.status, &head.headers, body);
    let status = head.status.as_u16();
    match body {
        Ok(body) => {
            backend.idle.put(connection, limits.max_idle);
            let body = body.to_bytes();
            let answer = judge(&body);
            if let (Err(Fault::NoUsableAnswer), Err(why)) = (&answer, parse_origin_answer(operation, status, &body)) {
                tracing::warn!(request_id = %id, upstream = %backend, status, %why, "the origin's answer is not usable");
            }
            Attempt::Answered(answer)
        }
        Err(error) if error.is::<LengthLimitError>() => {
            let why = UnusableAnswer::TooLong;
            tracing::warn!(request_id = %id, upstream = %backend, status, %why, "the origin's answer is not usable");
            Attempt::Broken(judge(b""))
        }
        Err(error) => {
            tracing::warn!(request_id = %id, upstream = %backend, status, error, "the origin's answer did not come whole");
            Attempt::Broken(judge(b""))
        }
    }
}

/// The answer by the rules of the contract's "Upstream" paragraph.
fn judge(operation: Operation, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Result<String, Fault> {
    match parse_origin_answer(operation, status.as_u16(), body) {
        Ok(answer) => answer.map(str::to_owned),
        Err(_) => {
            let retry_after = retry_after(headers).unwrap_or(connection::RETRY_AFTER);
            Err(match status {
                StatusCode::TOO_MANY_REQUESTS => Fault::LimitedByOrigin { retry_after },
                StatusCode::SERVICE_UNAVAILABLE => Fault::Unavailable { retry_after },
                _ => Fault::NoUsableAnswer,
            })
        }
    }
}

/// The origin's `Retry-After` in seconds, from either of its two forms (RFC 9110, 10.2.3); `None` where it has neither.
fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // Only a number that exceeds a `u64` cannot be parsed.
        value.parse().unwrap_or(u64::MAX)
    } else {
        let then = httpdate::parse_http_date(value).ok()?;
        then.duration_since(std::time::SystemTime::now()).map_or(0, |d| d.as_secs() + 1)
    };
    Some(seconds.clamp(1, MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Read;

    const POINTS: Operation = Operation::Read(Read::Points);

    fn with(name: &str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(hyper::header::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        headers
    }

    #[test]
    fn a_busy_origin_is_unavailable_and_its_retry_after_is_kept() {
        let endless = "9".repeat(1000);
        let is_a_day = ["86401", "18446744073709551615", "18446744073709551616", &endless];
        // Neither a number nor a date: as if the field were missing, which gives 1.
        let is_ignored = ["soon", "+70", "-70", "70.5", "70 s", "0x70", "", "Fri, 99 Feb 2093 08:49:37 GMT"];
        let kept = [("7", 7), ("0", 1), ("0086400", MAX_RETRY_AFTER)];
        let all = is_a_day.map(|value| (value, MAX_RETRY_AFTER)).into_iter().chain(is_ignored.map(|value| (value, 1)));
        for (n, (value, kept)) in all.chain(kept).enumerate() {
            let (status, fault) = match n % 2 {
                0 => (StatusCode::SERVICE_UNAVAILABLE, Fault::Unavailable { retry_after: kept }),
                _ => (StatusCode::TOO_MANY_REQUESTS, Fault::LimitedByOrigin { retry_after: kept }),
            };
            let answer = judge(POINTS, status, &with("retry-after", value), b"busy");
            assert_eq!(answer, Err(fault), "{value}");
        }
        let past =
            judge(POINTS, StatusCode::SERVICE_UNAVAILABLE, &with("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"), b"");
        assert_eq!(past, Err(Fault::Unavailable { retry_after: 1 }));
    }

    #[test]
    fn a_line_of_the_spec_is_more_than_its_status() {
        let answer = judge(POINTS, StatusCode::SERVICE_UNAVAILABLE, &HeaderMap::new(), b"02 | Incorrect API key!");
        assert_eq!(answer, Err(Fault::IncorrectKey));
    }
}
