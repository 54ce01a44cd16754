use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING};
use hyper::{HeaderMap, Method, Request as HttpRequest, StatusCode, Uri};

use super::Question;
use super::pool::{ConnectError, Connection, Pool};
use crate::config::Upstream;
use crate::wire::{Fault, MAX_ORIGIN_ANSWER, Operation, Request, usable};

/// What 21 says where the origin did not say when to come back.
const TRY_AGAIN_AFTER: u64 = 1;

/// The longest `Retry-After` of an origin that is passed on: a day. More is a mistake or malice.
const MAX_RETRY_AFTER: u64 = 86_400;

/// An HTTP upstream over kept-alive HTTP/1.1.
#[derive(Debug)]
pub struct HttpOrigin {
    upstream: Upstream,
    host: HeaderValue,
    /// The targets, `{upstream path}/NAME`, made once.
    targets: Vec<(Operation, Uri)>,
    pool: Pool,
    in_flight: AtomicUsize,
}

/// What became of one attempt.
enum Attempt {
    /// It was answered, or failed in a way that trying again does not help.
    Done(Result<String, Fault>),
    /// Nothing of an answer came: a read may be tried again.
    Unanswered,
    /// Nothing of the request went out: anything may be tried again.
    Unsent,
}

impl HttpOrigin {
    pub fn new(upstream: Upstream) -> Result<Self, String> {
        let host = HeaderValue::from_str(&upstream.host).map_err(|e| format!("origin.host: {e}"))?;
        let target = |operation: Operation| {
            let uri = format!("{}/{}", upstream.path, operation.name());
            uri.parse().map(|uri| (operation, uri)).map_err(|e| format!("origin.upstreams: {uri}: {e}"))
        };
        let targets = Operation::ALL.into_iter().map(target).collect::<Result<_, _>>()?;
        let pool = Pool::new(upstream.authority.clone(), upstream.connect_timeout, upstream.max_in_flight);
        Ok(HttpOrigin { upstream, host, targets, pool, in_flight: AtomicUsize::new(0) })
    }

    /// The settings it was made from.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    pub(super) async fn ask(&self, question: &Question<'_>) -> Result<String, Fault> {
        let Some(_place) = self.place() else {
            tracing::warn!(request_id = %question.id, "origin.max_in_flight is reached");
            return Err(Fault::Unavailable { retry_after: TRY_AGAIN_AFTER });
        };
        match tokio::time::timeout(self.upstream.timeout, self.attempts(question)).await {
            Ok(answer) => answer,
            Err(_) => {
                tracing::warn!(request_id = %question.id, "the origin took longer than origin.timeout");
                Err(Fault::OriginTimeout)
            }
        }
    }

    async fn attempts(&self, question: &Question<'_>) -> Result<String, Fault> {
        // setPoints is sent at most once (guarantee 5); a read as often as the operator allows.
        let mut retries = match question.request {
            Request::Read { .. } => self.upstream.retries,
            Request::SetPoints { .. } => 0,
        };
        let mut request = self.request(question)?;
        let mut trust_kept = true;
        loop {
            // A kept connection may have died unseen; what it did not send goes out on another.
            let (connection, kept) = match if trust_kept { self.pool.kept() } else { None } {
                Some(connection) => (connection, true),
                None => (self.pool.connect().await.map_err(|e| connect_fault(&e, question))?, false),
            };
            match self.attempt(connection, request, question).await {
                Attempt::Done(answer) => return answer,
                Attempt::Unsent if kept => {}
                Attempt::Unsent | Attempt::Unanswered if retries > 0 => retries -= 1,
                Attempt::Unsent | Attempt::Unanswered => return Err(Fault::NoUsableAnswer),
            }
            // Where one kept connection was dead, the others are likely to be: the next is a new one.
            trust_kept = false;
            request = self.request(question)?;
        }
    }

    async fn attempt(
        &self,
        mut connection: Connection,
        request: HttpRequest<Full<Bytes>>,
        question: &Question<'_>,
    ) -> Attempt {
        if connection.ready().await.is_err() {
            return Attempt::Unsent;
        }
        let response = match connection.try_send_request(request).await {
            Ok(response) => response,
            Err(mut error) => {
                if error.take_message().is_some() {
                    return Attempt::Unsent;
                }
                let error = error.into_error();
                tracing::warn!(request_id = %question.id, %error, "the origin gave no answer");
                // A malformed answer is an answer: only silence may be broken by asking again.
                return if error.is_parse() { Attempt::Done(Err(Fault::NoUsableAnswer)) } else { Attempt::Unanswered };
            }
        };
        let (head, body) = response.into_parts();
        if head.headers.contains_key(CONTENT_LENGTH) && head.headers.contains_key(TRANSFER_ENCODING) {
            // Two lengths: what follows the body is anybody's guess (RFC 9112, 6.3).
            tracing::warn!(request_id = %question.id, "the origin's answer has two lengths");
            return Attempt::Done(Err(Fault::NoUsableAnswer));
        }
        let body = Limited::new(body, MAX_ORIGIN_ANSWER).collect().await;
        let answer = match body {
            Ok(body) => {
                self.pool.keep(connection);
                judge(question.request.operation(), head.status, &head.headers, &body.to_bytes())
            }
            Err(error) => {
                tracing::warn!(request_id = %question.id, error, "the origin's answer did not come whole");
                judge(question.request.operation(), head.status, &head.headers, b"")
            }
        };
        if matches!(answer, Err(Fault::NoUsableAnswer)) {
            tracing::warn!(request_id = %question.id, status = head.status.as_u16(), "the origin's answer is not usable");
        }
        Attempt::Done(answer)
    }

    fn request(&self, question: &Question<'_>) -> Result<HttpRequest<Full<Bytes>>, Fault> {
        let operation = question.request.operation();
        let target = self.targets.iter().find(|(o, _)| *o == operation).map(|(_, uri)| uri.clone());
        // The edge lets no value through that is not one for a header; if it did, nobody knows such a key.
        let header = |bytes| HeaderValue::from_bytes(bytes).map_err(|_| Fault::IncorrectKey);
        let mut authorization = header(question.authorization.0)?;
        authorization.set_sensitive(true);
        let body = Full::new(Bytes::from(question.request.canonical_body()));
        let mut request = HttpRequest::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = target.unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(AUTHORIZATION, authorization);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        headers.insert("x-request-id", header(question.id.as_bytes())?);
        Ok(request)
    }

    /// A place among the `max_in_flight` requests, given back when dropped.
    fn place(&self) -> Option<Place<'_>> {
        let place = Place(&self.in_flight);
        (self.in_flight.fetch_add(1, Ordering::Relaxed) < self.upstream.max_in_flight).then_some(place)
    }
}

struct Place<'o>(&'o AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer as the contract's "Upstream" paragraph reads it.
fn judge(operation: Operation, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Result<String, Fault> {
    match usable(operation, status.as_u16(), body) {
        Some(answer) => answer.map(str::to_owned),
        None if matches!(status.as_u16(), 429 | 503) => {
            Err(Fault::Unavailable { retry_after: retry_after(headers).unwrap_or(TRY_AGAIN_AFTER) })
        }
        None => Err(Fault::NoUsableAnswer),
    }
}

/// The origin's `Retry-After` in seconds, whichever of its two forms it has (RFC 9110, 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = value.parse().ok().or_else(|| {
        let then = httpdate::parse_http_date(value).ok()?;
        Some(then.duration_since(std::time::SystemTime::now()).map_or(0, |d| d.as_secs() + 1))
    })?;
    Some(seconds.clamp(1, MAX_RETRY_AFTER))
}

fn connect_fault(error: &ConnectError, question: &Question<'_>) -> Fault {
    match error {
        ConnectError::TimedOut => {
            tracing::warn!(request_id = %question.id, "connecting to the origin took longer than origin.connect_timeout");
            Fault::OriginTimeout
        }
        ConnectError::Failed(error) => {
            tracing::warn!(request_id = %question.id, %error, "the origin cannot be reached");
            match error.kind() {
                io::ErrorKind::ConnectionRefused => Fault::Unavailable { retry_after: TRY_AGAIN_AFTER },
                _ => Fault::NoUsableAnswer,
            }
        }
    }
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
        for (status, value, kept) in
            [(503, "7", 7), (429, "0", 1), (503, "soon", 1), (429, "999999999", MAX_RETRY_AFTER)]
        {
            let status = StatusCode::from_u16(status).unwrap();
            let answer = judge(POINTS, status, &with("retry-after", value), b"busy");
            assert_eq!(answer, Err(Fault::Unavailable { retry_after: kept }), "{value}");
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
