use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Response, StatusCode};
use tokio::time::{Instant, timeout_at};

use crate::gateway::Body;
use crate::wire::Fault;

/// A request's body on an HTTP/2 stream.
pub(super) struct Incoming<'s> {
    pub(super) stream: RecvStream,
    /// For the 100.
    pub(super) respond: &'s mut SendResponse<Bytes>,
    /// Where the body is put together.
    pub(super) whole: Vec<u8>,
    pub(super) expect_continue: bool,
    pub(super) max_body: usize,
    pub(super) timeout: Duration,
}

impl Body for Incoming<'_> {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        if self.expect_continue && !self.stream.is_end_stream() {
            let mut go_on = Response::new(());
            *go_on.status_mut() = StatusCode::CONTINUE;
            // A stream that is gone is noticed below.
            let _ = self.respond.send_informational(go_on);
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
        self.stream.trailers().await.map_err(|_| Fault::Malformed)?;
        Ok(())
    }
}
