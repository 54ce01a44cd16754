//! Reads a request's body on an HTTP/2 stream, within `max_body` and `body_timeout`. As on HTTP/1.1, `100 Continue` is
//! sent only once the gateway has accepted the key. Bytes are given back to the flow-control window only as they are
//! read. A request whose trailers RFC 9113 calls malformed performs nothing, and its stream is reset.

use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Response, StatusCode};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::frames::Watched;
use super::request::is_trimmed;
use crate::edge::head::MAX_FIELDS;
use crate::gateway::Body;
use crate::wire::Fault;

/// A request's body on an HTTP/2 stream.
pub(super) struct Incoming<'s> {
    pub(super) stream: RecvStream,
    pub(super) watched: Watched,
    /// For the 100, and to reset the stream.
    pub(super) respond: &'s Mutex<SendResponse<Bytes>>,
    /// Where the body is put together.
    pub(super) whole: Vec<u8>,
    pub(super) expect_continue: bool,
    pub(super) max_body: usize,
    pub(super) timeout: Duration,
    /// The request is malformed in RFC 9113's sense: its stream was reset.
    pub(super) malformed: bool,
}

impl Body for Incoming<'_> {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        if self.expect_continue && !self.stream.is_end_stream() {
            let mut go_on = Response::new(());
            *go_on.status_mut() = StatusCode::CONTINUE;
            // A stream that is gone is noticed below.
            let _ = self.respond.lock().send_informational(go_on);
        }
        let until = Instant::now() + self.timeout;
        match timeout_at(until, self.read()).await {
            Ok(Ok(())) => Ok(&self.whole),
            Ok(Err(fault)) => Err(fault),
            Err(_) => Err(Fault::TooSlow),
        }
    }

    /// The connection sends by itself what is due.
    async fn will_wait(&mut self) {}
}

impl Incoming<'_> {
    async fn read(&mut self) -> Result<(), Fault> {
        while let Some(data) = self.stream.data().await {
            // Cut short, or not as long as it said: it performs nothing.
            let data = data.map_err(|_| Fault::Malformed)?;
            if self.whole.len() + data.len() > self.max_body {
                return Err(Fault::BodyTooLarge);
            }
            self.whole.extend_from_slice(&data);
            self.stream.flow_control().release_capacity(data.len()).map_err(|_| Fault::Malformed)?;
        }
        // Trailers are read past; a stream that was reset says so here.
        let trailers = self.stream.trailers().await.map_err(|_| Fault::Malformed)?;
        let Some(trailers) = trailers else { return Ok(()) };
        // Where the crate dropped some, these were pseudo-fields, which trailers must not have (RFC 9113, 8.1).
        let is_whole = self.watched.trailer_fields(self.stream.stream_id().as_u32()) == Some(trailers.len());
        if !is_whole || trailers.len() > MAX_FIELDS || !is_trimmed(&trailers) {
            self.malformed = true;
            self.respond.lock().send_reset(Reason::PROTOCOL_ERROR);
            return Err(Fault::Malformed);
        }
        Ok(())
    }
}
