//! Passes on the request of an HTTP/2 stream. hyper's client writes it as HTTP/1.1 into memory, from where it takes the way of
//! every passed request: one way to frame a body, and one to check an upgrade. What comes back goes to the stream.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, HOST, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, Uri, Version};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1::Builder;
use hyper_util::rt::TokioIo;
use pingora::protocols::http::v2::write_body;
use tokio::io::DuplexStream;
use tokio::time::timeout;

use super::Passed;
use crate::edge::Edge;
use crate::edge::io::Bounded;

/// Bytes of each direction that are in memory between the stream and Pingora.
const BETWEEN: usize = 16 * 1024;

/// Bytes of an answer that hyper holds at most, its header among them.
const MAX_BUFFER: usize = 32 * 1024;

/// Passes the request on and sends its answer.
pub(in crate::edge) async fn pass(
    edge: &Edge,
    passed: Box<Passed>,
    (parts, stream, io): (Parts, RecvStream, &Bounded),
    respond: SendResponse<Bytes>,
    write_timeout: Duration,
) {
    let (near, far) = tokio::io::duplex(BETWEEN);
    let exchanged = async {
        if stream.is_end_stream() {
            exchange(near, http1(parts, Empty::new()), respond, write_timeout).await;
        } else {
            exchange(near, http1(parts, body(stream, io.clone())), respond, write_timeout).await;
        }
    };
    tokio::join!(edge.proxy.pass(Box::new(far), passed, None), exchanged);
}

/// The request as HTTP/1.1 has it.
fn http1<B: Body>(mut parts: Parts, body: B) -> Request<B> {
    let fields = &mut parts.headers;
    if !body.is_end_stream() && !fields.contains_key(CONTENT_LENGTH) {
        fields.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked")); // hyper sends no body of a GET without it
    }
    if let Some(host) = parts.uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
        fields.insert(HOST, host);
    }
    // A browser sends them in several fields (RFC 9113, 8.2.3).
    let cookies: Vec<&[u8]> = fields.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(cookies) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        fields.insert(COOKIE, cookies);
    }
    parts.uri = parts.uri.path_and_query().cloned().map(Uri::from).unwrap_or_default();
    parts.version = Version::HTTP_11;
    Request::from_parts(parts, body)
}

/// The body as it comes.
fn body(stream: RecvStream, io: Bounded) -> impl Body<Data = Bytes, Error = h2::Error> {
    let frames = stream::unfold((stream, io), |(mut stream, io)| async move {
        let data = stream.data().await?.and_then(|data| {
            stream.flow_control().release_capacity(data.len())?;
            io.made_progress();
            Ok(Frame::data(data))
        });
        Some((data, (stream, io)))
    });
    StreamBody::new(Box::pin(frames))
}

async fn exchange<B>(near: DuplexStream, request: Request<B>, mut respond: SendResponse<Bytes>, write_timeout: Duration)
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    let Ok((mut sender, connection)) = Builder::new().max_buf_size(MAX_BUFFER).handshake(TokioIo::new(near)).await
    else {
        return;
    };
    let mut answered = pin!(async move {
        let answer = tokio::select! {
            biased;
            answer = sender.send_request(request) => answer,
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        };
        match answer {
            Ok(answer) => send(answer, respond, write_timeout).await,
            Err(_) => respond.send_reset(Reason::INTERNAL_ERROR),
        }
    });
    // The connection is driven for as long as the answer is sent, and dropped with it.
    tokio::select! {
        biased;
        () = &mut answered => {}
        _ = connection => answered.await,
    }
}

/// Sends an answer as it comes. One that breaks off resets the stream.
async fn send(answer: Response<Incoming>, mut respond: SendResponse<Bytes>, write_timeout: Duration) {
    let (mut parts, mut body) = answer.into_parts();
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        parts.headers.remove(name);
    }
    parts.version = Version::HTTP_2;
    let Ok(mut stream) = respond.send_response(Response::from_parts(parts, ()), body.is_end_stream()) else { return };
    while !body.is_end_stream() {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            _ = poll_fn(|cx| stream.poll_reset(cx)) => return,
        };
        let data = match frame {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(_)) => return stream.send_reset(Reason::INTERNAL_ERROR),
            None => break,
        };
        match timeout(write_timeout, write_body(&mut stream, data, body.is_end_stream(), None)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => return stream.send_reset(Reason::CANCEL),
        }
    }
    let _ = stream.send_data(Bytes::new(), true); // fails where the last part was the end
}
