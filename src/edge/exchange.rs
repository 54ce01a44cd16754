//! Answers one request, whichever version of HTTP it came in: health checks, headers that are refused as malformed, the
//! gateway's rules, and the access log. The two versions parse a header and write an answer; all that lies between is
//! here. It may wait for the gateway and reads bodies through `Body` only.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::poll;
use tokio::time::Instant;

use super::answer::{self, Answer};
use super::request::RequestFields;
use super::{Edge, proxies};
use crate::config::Config;
use crate::gateway::{Body, CacheStatus, Head, Reply, RequestDetails, State};
use crate::keys::InFlightSlot;
use crate::model::Limit;
use crate::telemetry::Outcome;
use crate::wire::{Fault, RequestId};

/// A request's header, as both versions of HTTP hand it over.
pub(super) struct RequestHeader<'h> {
    pub(super) method: &'h [u8],
    /// Without the query.
    pub(super) path: &'h [u8],
    /// The fields and the length of the body, where it is known. `None`: the header contradicts itself or the rules.
    pub(super) fields: Option<(&'h RequestFields<'h>, Option<u64>)>,
    /// `None`: over a Unix socket.
    pub(super) peer: Option<IpAddr>,
    /// When the bytes that held the header came.
    pub(super) arrived: Instant,
}

impl Edge {
    /// Answers a request and reports its end. If `disconnected` completes first, the request releases its key's slot in
    /// flight, `on_disconnect` is called, and the request continues to its end: other callers may wait for the same
    /// answer from the origin, and a write must not be left half done.
    pub(super) async fn answer(
        &self,
        state: &Arc<State>,
        request: &RequestHeader<'_>,
        body: &mut impl Body,
        disconnected: impl Future<Output = ()>,
        on_disconnect: impl FnOnce(),
    ) -> Answer {
        let config = &state.config;
        if config.server.is_health(request.method, request.path) {
            return Answer::Health { draining: self.drain.ends_service() };
        }
        let Some((fields, content_length)) = request.fields else {
            return self.refuse(config, Fault::Malformed, request.peer, request.arrived);
        };
        let client = proxies::client(request.peer, &fields.forwarded_for, &config.server.trusted_proxies);
        let in_flight = InFlightSlot::default();
        let head = Head {
            method: request.method,
            path: request.path,
            authorization: fields.authorization,
            content_type: fields.content_type,
            content_encoded: fields.content_encoded,
            content_length,
            client,
            in_flight: &in_flight,
        };
        let mut handling = pin!(self.gateway.handle(state, &head, body));
        let reply = match poll!(handling.as_mut()) {
            Poll::Ready(reply) => reply,
            Poll::Pending => tokio::select! {
                biased;
                reply = handling.as_mut() => reply,
                () = disconnected => {
                    in_flight.release();
                    on_disconnect();
                    handling.await
                }
            },
        };
        self.finished(config, &reply, client, request.arrived);
        Answer::Reply(reply)
    }

    /// Refuses, and reports, what never became a request that the gateway could handle.
    pub(super) fn refuse(&self, config: &Config, fault: Fault, peer: Option<IpAddr>, arrived: Instant) -> Answer {
        let reply = Reply { answer: Err(fault), details: RequestDetails::new(RequestId::random()) };
        self.finished(config, &reply, proxies::client(peer, &[], &[]), arrived);
        Answer::Reply(reply)
    }

    /// Reports the end of a request.
    fn finished(&self, config: &Config, reply: &Reply, client: IpAddr, arrived: Instant) {
        let details = &reply.details;
        let answered = Instant::now();
        let outcome = Outcome {
            unix_ms: self.gateway.clock().unix_ms(),
            client,
            operation: details.operation,
            status: answer::status(config, reply),
            code: reply.answer.as_ref().err().map(|fault| fault.code()),
            key: details.key.as_ref().map(|key| key.id.clone()),
            cache: details.cache.map(CacheStatus::kind),
            over_limit: details.over_limit.map(Limit::name).or(details.over_strangers.then_some("strangers")),
            over_candidate: details.over_candidate,
            took: answered.duration_since(arrived),
            id: details.id,
        };
        self.gateway.finished(details, answered.into_std(), outcome);
    }
}
