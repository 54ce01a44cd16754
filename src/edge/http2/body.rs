//! Reads a request's body on an HTTP/2 stream, within `max_body` and `body_timeout`. As on HTTP/1.1, `100 Continue` is
//! sent only once the gateway has accepted the key. Bytes are given back to the flow-control window only as they are
//! read. A request whose trailers RFC 9113 calls malformed performs nothing, and its stream is reset.

use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Response, StatusCode};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::frames::MonitoredTransport;
use super::header::is_trimmed;
use crate::edge::request::MAX_FIELDS;
use crate::gateway::Body;
use crate::wire::Fault;

/// A request's body on an HTTP/2 stream.
pub(super) struct Http2Body<'s> {
    pub(super) stream: RecvStream,
    pub(super) transport: MonitoredTransport,
    /// To send the 100 and to reset the stream.
    pub(super) respond: &'s Mutex<SendResponse<Bytes>>,
    pub(super) whole: Vec<u8>,
    pub(super) expect_continue: bool,
    pub(super) max_body: usize,
    pub(super) timeout: Duration,
    /// Whether the header or the trailers are malformed.
    pub(super) malformed: bool,
}

impl Body for Http2Body<'_> {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        if self.expect_continue && !self.stream.is_end_stream() {
            let mut go_on = Response::new(());
            *go_on.status_mut() = StatusCode::CONTINUE;
            // If the stream is gone, the read below fails.
            let _ = self.respond.lock().send_informational(go_on);
        }
        timeout(self.timeout, self.read()).await.unwrap_or(Err(Fault::TooSlow))?;
        Ok(&self.whole)
    }
}

impl Http2Body<'_> {
    async fn read(&mut self) -> Result<(), Fault> {
        while let Some(data) = self.stream.data().await {
            // A body that is cut short or has another length than the header says performs nothing.
            let data = data.map_err(|_| Fault::Malformed)?;
            if self.whole.len() + data.len() > self.max_body {
                return Err(Fault::BodyTooLarge);
            }
            self.whole.extend_from_slice(&data);
            self.stream.flow_control().release_capacity(data.len()).map_err(|_| Fault::Malformed)?;
        }
        // The trailers are ignored unless they are malformed; a stream that was reset fails here.
        let trailers = self.stream.trailers().await.map_err(|_| Fault::Malformed)?;
        let Some(trailers) = trailers else { return Ok(()) };
        // The crate silently drops pseudo-fields, which trailers must not have (RFC 9113, 8.1).
        let is_complete = self.transport.trailer_fields(self.stream.stream_id().as_u32()) == Some(trailers.len());
        if !is_complete || trailers.len() > MAX_FIELDS || !is_trimmed(&trailers) {
            self.malformed = true;
            self.respond.lock().send_reset(Reason::PROTOCOL_ERROR);
            return Err(Fault::Malformed);
        }
        Ok(())
    }
}
