//! One request on one connection to an upstream, up to its whole answer. The result says whether it may be sent again: no
//! whole header of an answer came, or one did. `setPoints` is never sent again, since the upstream may have it from here on
//! (guarantee 5). A connection is kept only after an answer that came whole. This module chooses no upstream and does
//! not retry; `HttpOrigin` does.

use std::sync::Arc;
use std::time::Duration;

use super::answer::AnswerHeader;
use super::backend::Backend;
use super::connection::{BodyError, Connection, HeaderError, RETRY_AFTER};
use crate::origin::OriginRequest;
use crate::wire::{Fault, Operation, TOO_LONG, parse_origin_answer};

/// The outcome of one request on one connection.
pub(super) enum Attempt {
    /// A whole answer came, usable or not.
    Answered(Result<Arc<str>, Fault>),
    /// An answer's header came, and the answer was malformed or broke off. A retry does not help.
    Broken(Result<Arc<str>, Fault>),
    /// No whole header of an answer came: it says nothing yet. A read may be sent again.
    NoAnswer(NoAnswer),
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

/// Sends a request on a connection, with this parent id if it belongs to a trace, and reads its answer. After a whole answer the connection is kept.
pub(super) async fn attempt(
    backend: &Backend,
    mut connection: Connection,
    (origin_request, span_id): (&OriginRequest<'_>, u64),
    limits: AttemptLimits,
) -> Attempt {
    let id = origin_request.id;
    backend.upstream.write_request(origin_request, span_id, connection.request());
    let sending = connection.send();
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
    let header = match sent {
        Ok(header) => header,
        // A malformed answer is an answer, and the request is not sent again.
        Err(HeaderError::Malformed(why)) => {
            tracing::warn!(request_id = %id, upstream = %backend, %why, "the origin's answer is not usable");
            return Attempt::Broken(Err(Fault::NoUsableAnswer));
        }
        Err(HeaderError::Broken(error)) => {
            tracing::warn!(request_id = %id, upstream = %backend, %error, "the origin gave no answer");
            return Attempt::NoAnswer(NoAnswer::Closed);
        }
    };
    let (operation, status) = (origin_request.request.operation, header.status);
    if let Some(span) = origin_request.forwarded.trace.span {
        span.answered(status);
    }
    match connection.read_body(&header).await {
        Ok(body) => {
            let answer = judge(operation, &header, body);
            if let (Err(Fault::NoUsableAnswer), Err(why)) = (&answer, parse_origin_answer(operation, status, body)) {
                tracing::warn!(request_id = %id, upstream = %backend, status, %why, "the origin's answer is not usable");
            }
            backend.idle.put(connection, limits.max_idle);
            Attempt::Answered(answer)
        }
        Err(BodyError::TooLong) => {
            let why = TOO_LONG;
            tracing::warn!(request_id = %id, upstream = %backend, status, %why, "the origin's answer is not usable");
            Attempt::Broken(judge(operation, &header, b""))
        }
        Err(error @ (BodyError::Malformed | BodyError::Broken(_))) => {
            tracing::warn!(request_id = %id, upstream = %backend, status, %error, "the origin's answer did not come whole");
            Attempt::Broken(judge(operation, &header, b""))
        }
    }
}

/// The answer by the rules of the contract's "Upstream" paragraph.
fn judge(operation: Operation, header: &AnswerHeader, body: &[u8]) -> Result<Arc<str>, Fault> {
    match parse_origin_answer(operation, header.status, body) {
        Ok(answer) => answer.map(Arc::from),
        Err(_) => {
            let retry_after = header.retry_after.unwrap_or(RETRY_AFTER);
            Err(match header.status {
                429 | 503 => Fault::Unavailable { retry_after },
                _ => Fault::NoUsableAnswer,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTS: Operation = Operation::GetPoints;

    fn header(status: u16, retry_after: Option<u64>) -> AnswerHeader {
        AnswerHeader { status, framing: None, keep_alive: false, retry_after, length: 0 }
    }

    #[test]
    fn a_busy_origin_is_unavailable_and_its_retry_after_is_kept() {
        for (given, retry_after) in [(Some(7), 7), (None, 1)] {
            let answer = judge(POINTS, &header(503, given), b"busy");
            assert_eq!(answer, Err(Fault::Unavailable { retry_after }));
            let answer = judge(POINTS, &header(429, given), b"busy");
            assert_eq!(answer, Err(Fault::Unavailable { retry_after }));
        }
    }

    #[test]
    fn a_line_of_the_spec_is_more_than_its_status() {
        let answer = judge(POINTS, &header(503, None), b"02 | Incorrect API key!");
        assert_eq!(answer, Err(Fault::IncorrectKey));
    }
}
