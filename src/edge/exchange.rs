//! Answers one request, whichever version of HTTP it came in: health checks, headers that are refused as malformed, the
//! gateway's rules, and the access log. The two versions parse a header and write an answer; all that lies between is
//! here. It may wait for the gateway and reads bodies through `Body` only.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::uri::PathAndQuery;
use tokio::time::Instant;

use super::answer::{Answer, Content};
use super::pass::{Passed, is_passed};
use super::request::RequestFields;
use super::{Edge, proxies};
use crate::config::{Config, is_trusted};
use crate::gateway::{Body, CacheStatus, Gateway, Reply, RequestDetails, RequestHeader, State};
use crate::keys::InFlightSlot;
use crate::model::Limit;
use crate::telemetry::AccessLine;
use crate::wire::{Fault, Operation, RequestId};
use crate::wire::{RequestSpan, TraceContext};

/// The methods of requests by which spans name them; others are `_OTHER`, since callers may send any number of them.
const METHODS: [&str; 9] = ["POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"];

/// A request whose header was received, as both versions of HTTP hand it over.
pub(super) struct ReceivedRequest<'h> {
    pub(super) method: &'h [u8],
    /// The path with the query.
    pub(super) target: &'h [u8],
    /// Without the query.
    pub(super) path: &'h [u8],
    /// The fields and the length of the body, where it is known. `None`: the header contradicts itself or the rules.
    pub(super) fields: Option<(&'h RequestFields<'h>, Option<u64>)>,
    /// `None`: over a Unix socket.
    pub(super) peer: Option<IpAddr>,
    /// When the bytes that held the header came.
    pub(super) arrived: Instant,
    /// When its turn on its connection began: at `arrived`, or when the request before it was answered.
    pub(super) began: Instant,
}

impl Edge {
    /// Answers a request and reports its end; the error: it is to be passed on. If `disconnected` completes first, the request
    /// releases its key's slot in flight and continues to its end: other callers may wait for the same answer from the
    /// origin, and a write must not be left half done.
    pub(super) async fn answer<'s>(
        &self,
        state: &'s Arc<State>,
        request: &ReceivedRequest<'_>,
        body: &mut impl Body,
        disconnected: impl Future<Output = ()>,
    ) -> Result<Answer<'s>, Box<Passed>> {
        let config = &state.config;
        let origin = request.fields.and_then(|(fields, _)| fields.origin);
        let allow_origin = origin.and_then(|origin| config.answers.allow_origin(origin));
        if config.server.is_health(request.method, request.path) {
            let content = Content::Health { draining: self.health_fails.load(Ordering::Relaxed) };
            let nobody = [0; 4].into(); // health checks are not logged
            return Ok(finished(&self.gateway, config, content, allow_origin, (nobody, request.arrived)));
        }
        let Some((fields, content_length)) = request.fields else {
            return Ok(self.refuse(config, Fault::Malformed, request.peer, request.arrived));
        };
        let client = proxies::client(request.peer, &fields.forwarded_for, &config.server.trusted_proxies);
        let finished = |content| Ok(finished(&self.gateway, config, content, allow_origin, (client, request.arrived)));
        let id = fields.request_id.and_then(RequestId::from_proxy).unwrap_or_else(RequestId::random);
        let operation = Operation::at(request.path, &config.server.base_path);
        if allow_origin.is_some() && request.method == b"OPTIONS" && fields.requests_method && operation.is_some() {
            return finished(Content::Preflight(RequestDetails { id, operation, ..RequestDetails::default() }));
        }
        let in_flight = InFlightSlot::default();
        let trace = fields.trace;
        let span = self.start_span(config, (request, operation), &trace);
        let trace = TraceContext { span: span.as_ref(), ..trace };
        let header = RequestHeader {
            method: request.method,
            path: request.path,
            authorization: fields.authorization,
            content_type: fields.content_type,
            content_encoded: fields.content_encoded,
            content_length,
            trace,
            began: self.gateway.clock().at(request.began.into_std()),
            client,
            id,
            in_flight: &in_flight,
        };
        if operation.is_none() && is_passed(config, request.path) {
            return match Box::pin(self.pass(state, request, &header)).await {
                Ok(passed) => Err(passed(in_flight)),
                Err(reply) => finished(Content::Reply(reply)),
            };
        }
        let mut handling = pin!(self.gateway.handle(state, &header, body));
        let reply = tokio::select! {
            biased;
            reply = handling.as_mut() => reply,
            () = disconnected => {
                in_flight.release();
                handling.await
            }
        };
        finished(Content::Reply(reply))
    }

    /// Admits a request that is to be passed on; what is returned takes its slot in flight.
    async fn pass<'r>(
        &self,
        state: &Arc<State>,
        request: &'r ReceivedRequest<'_>,
        header: &RequestHeader<'_>,
    ) -> Result<impl FnOnce(InFlightSlot) -> Box<Passed> + use<'r>, Reply> {
        let mut details = RequestDetails { id: header.id, ..RequestDetails::default() };
        let admitted = match request.method {
            b"CONNECT" => Err(Fault::MethodNotPost),
            // Pingora would answer it without a line.
            _ if PathAndQuery::try_from(request.target).is_err() => Err(Fault::Malformed),
            _ => self.gateway.pass(state, header, &mut details).await,
        };
        let mut passage = match admitted {
            Ok(passage) => passage,
            Err(fault) => return Err(Reply { answer: Err(fault), details }),
        };
        let is_proxied = is_trusted(request.peer, &state.config.server.trusted_proxies);
        let client = header.client;
        Ok(move |in_flight| {
            passage.hold(in_flight);
            Passed::new(passage, details, (request, client, is_proxied))
        })
    }

    /// Starts the span of a request, if it is sampled.
    fn start_span(
        &self,
        config: &Config,
        (request, operation): (&ReceivedRequest<'_>, Option<Operation>),
        trace: &TraceContext<'_>,
    ) -> Option<Arc<RequestSpan>> {
        let trace = self.gateway.sample(trace)?;
        let clock = self.gateway.clock();
        let arrived = clock.at(request.arrived.into_std());
        Some(Arc::new(RequestSpan {
            trace,
            id: fastrand::u64(1..), // 0 is no id
            method: METHODS.into_iter().find(|name| name.as_bytes() == request.method).unwrap_or("_OTHER"),
            // A Unix socket has no TLS.
            scheme: if config.server.tls.is_some() && request.peer.is_some() { "https" } else { "http" },
            path: operation.map(|operation| format!("{}/{}", config.server.base_path, operation.name()).into()),
            started: clock.system_time(arrived),
            arrived,
            origin_spans: Default::default(),
        }))
    }

    /// Refuses, and reports, what never became a request that the gateway could handle.
    pub(super) fn refuse(
        &self,
        config: &Config,
        fault: Fault,
        peer: Option<IpAddr>,
        arrived: Instant,
    ) -> Answer<'static> {
        let details = RequestDetails { id: RequestId::random(), ..RequestDetails::default() };
        let content = Content::Reply(Reply { answer: Err(fault), details });
        finished(&self.gateway, config, content, None, (proxies::client(peer, &[], &[]), arrived))
    }
}

/// Reports the end of a request, which is now.
pub(super) fn finished<'s>(
    gateway: &Gateway,
    config: &Config,
    content: Content,
    allow_origin: Option<&'s str>,
    (client, arrived): (IpAddr, Instant),
) -> Answer<'s> {
    // Read once for all that is done with the answer.
    let (at, unix_ms) = (Instant::now(), gateway.clock().unix_ms());
    let (details, code) = match &content {
        Content::Reply(reply) => (&reply.details, reply.answer.as_ref().err().map(|fault| fault.code())),
        Content::Preflight(details) | Content::Passed(_, details) => (details, None),
        Content::Health { .. } => return Answer { content, allow_origin, at, unix_ms },
    };
    let upstream = details.upstream.as_ref();
    let outcome = AccessLine {
        unix_ms,
        client,
        operation: details.operation,
        status: content.status(config),
        code,
        key: details.key.as_ref().map(|key| key.id.clone()),
        cache: details.cache.map(CacheStatus::kind),
        over_limit: details
            .over_limit
            .map(Limit::name)
            .or(details.over_strangers.then_some("strangers"))
            .map(Into::into),
        over_candidate: details.over_candidate,
        took: at.duration_since(arrived),
        id: details.id,
        tier: details.key.as_ref().map(|key| key.tier_in_force.clone()),
        upstream: upstream.map(|upstream| upstream.name.clone()),
        upstream_us: upstream.map(|upstream| upstream.took_us),
        upstream_error: upstream.and_then(|upstream| upstream.error.clone()),
        config: config.hash,
        span: details.span.clone(),
    };
    gateway.finished(details, at.into_std(), outcome);
    Answer { content, allow_origin, at, unix_ms }
}
