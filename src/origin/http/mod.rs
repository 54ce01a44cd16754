//! An HTTP origin: one service at several upstreams, over kept-alive HTTP/1.1 (contract section 1, "Upstream", and
//! section 3, `[origin]`). This module sends a request to one backend after another until there is an answer or none
//! may be tried any more; its parts choose the backend, make the attempt, keep health, and bound the requests in
//! flight.

mod answer;
mod attempt;
mod backend;
mod backends;
mod background;
mod balance;
mod connection;
mod health;
mod metrics;
mod permits;
mod tls;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use attempt::{Attempt, AttemptLimits, NoAnswer, attempt};
use backend::{Backend, PreparedUpstream};
use backends::{BackendList, Backends};
use balance::Tried;
use connection::RETRY_AFTER;
use health::HealthState;
use http::Uri;
use permits::FairSemaphore;

use super::OriginRequest;
use crate::clock::{Clock, Tick};
use crate::config::Upstreams;
use crate::telemetry::UpstreamUse;
use crate::wire::OriginSpan;
use crate::wire::{Fault, RequestId};

pub use permits::{Owner, Permit};
pub use tls::Tls;

/// How many backends one request may fail to reach. Each failure may take `connect_timeout`; after three, an early
/// refusal serves the caller better.
const MAX_UNREACHABLE: u32 = 3;

/// One service at one or more upstreams.
#[derive(Debug)]
pub struct HttpOrigin {
    settings: Upstreams,
    tls: Option<Tls>,
    backends: Backends,
    /// The target of health checks.
    check_target: Option<Uri>,
    permits: Arc<FairSemaphore>,
    clock: Clock,
}

impl HttpOrigin {
    /// Prepares the upstreams. Their names are resolved (this waits 2 s at most) and their health is checked from here
    /// on, until the returned value is dropped. Connections, addresses, health and permits of the same upstreams in
    /// `before` are shared; `activate` puts the new settings in force for them.
    ///
    /// # Errors
    /// Which setting cannot be used, and why.
    pub async fn start(
        settings: Upstreams,
        tls: Option<Tls>,
        clock: Clock,
        before: Option<&HttpOrigin>,
    ) -> Result<Arc<Self>, String> {
        let prepare = |upstream| PreparedUpstream::new(upstream, tls.as_ref()).map(Arc::new);
        let upstreams = settings.list.iter().map(prepare).collect::<Result<_, _>>()?;
        let target = |path: &str| path.parse().map_err(|e| format!("origin.health.path: {path}: {e}"));
        let check_target = settings.health.as_ref().map(|health| target(&health.path)).transpose()?;
        let backends = Backends::new(upstreams, settings.health.clone(), before.map(|before| &before.backends));
        let permits =
            before.map_or_else(|| FairSemaphore::new(settings.max_in_flight), |before| before.permits.clone());
        let origin = Arc::new(HttpOrigin { settings, tls, backends, check_target, permits, clock });
        background::start(&origin).await;
        Ok(origin)
    }

    /// Whether it was started with exactly these settings.
    pub fn has_settings(&self, settings: &Upstreams, tls: &Option<Tls>) -> bool {
        self.settings == *settings && self.tls == *tls
    }

    pub(super) async fn permit(&self, owner: Owner, id: RequestId) -> Result<Permit, Fault> {
        let permit = self.permits.acquire(owner, self.settings.queue_timeout).await;
        permit.ok_or_else(|| {
            tracing::warn!(request_id = %id, "no place at the origin became free within origin.queue_timeout, or too many requests wait");
            Fault::Unavailable { retry_after: RETRY_AFTER }
        })
    }

    pub(super) fn activate(&self) {
        self.backends.activate();
        self.permits.resize(self.settings.max_in_flight);
    }

    /// Sends a request that has a permit. `origin.timeout` begins here.
    pub(super) async fn send(&self, request: &OriginRequest<'_>) -> (Result<Arc<str>, Fault>, Option<UpstreamUse>) {
        let list = self.backends.list();
        let mut current = None;
        let attempts = self.attempts(request, &list, &mut current);
        let answered = tokio::time::timeout(self.settings.timeout, attempts).await;
        let answer = answered.unwrap_or_else(|_| {
            if let Some((backend, since)) = current {
                tracing::warn!(request_id = %request.id, upstream = %backend, "the origin took longer than origin.timeout");
                // If another backend took most of the time, that one has failed.
                if self.clock.now().since(since) >= self.settings.timeout / 2 {
                    self.failed(backend, "it took longer than origin.timeout");
                }
            }
            Err(Fault::OriginTimeout)
        });
        if let Some(span) = request.forwarded.trace.span {
            span.end_attempt(self.clock.now());
        }
        let asked = |(backend, since): (&Backend, Tick)| UpstreamUse {
            name: backend.name.clone(),
            took: self.clock.now().since(since),
        };
        (answer, current.map(asked))
    }

    /// Sends a request to one backend after another until there is an answer, or none may be tried any more. `current`
    /// is the one that is being tried, or was tried last, and since when.
    async fn attempts<'l>(
        &self,
        request: &OriginRequest<'_>,
        list: &'l BackendList,
        current: &mut Option<(&'l Backend, Tick)>,
    ) -> Result<Arc<str>, Fault> {
        // The edge refuses values that cannot be a field's. Should one come, no key is like it.
        if !request.forwarded.authorization.0.iter().all(|b| matches!(b, b'\t' | b' '..=b'~' | 0x80..)) {
            return Err(Fault::IncorrectKey);
        }
        // setPoints is sent at most once (guarantee 5); a read as often as the operator allows.
        let mut retries = if request.request.operation.is_write() { 0 } else { self.settings.retries };
        let mut tried = Tried::default();
        let mut may_reuse = true;
        let mut fault = Fault::Unavailable { retry_after: RETRY_AFTER };
        while tried.unreachable() < MAX_UNREACHABLE
            && let Some(at) = self.backends.choose(list, tried)
        {
            let backend = &*list[at];
            let _counted = backend.count_request();
            let began = self.clock.now();
            *current = Some((backend, began));
            let span_id = fastrand::u64(1..); // 0 is no id
            begin_span(request, backend, span_id, began);
            let idle = if may_reuse { backend.idle.take() } else { None };
            let was_idle = idle.is_some();
            let connected = match idle {
                Some(connection) => Ok(connection),
                // Boxed, so that a request that needs none reserves no memory for it.
                None => Box::pin(backend.connect(self.settings.connect_timeout)).await,
            };
            // After an idle connection has failed, no other is used.
            may_reuse &= !was_idle;
            let connection = match connected {
                Ok(connection) => connection,
                // Nothing was sent, so any request may go to another backend.
                Err(error) => {
                    tracing::warn!(request_id = %request.id, upstream = %backend, %error, "request to upstream failed");
                    self.failed(backend, &error.to_string());
                    tried.mark_unreachable(at);
                    fault = error.fault();
                    continue;
                }
            };
            match attempt(backend, connection, (request, span_id), self.attempt_limits(list)).await {
                Attempt::Answered(answer) => {
                    backend.answers.observe(self.clock.now().since(began).as_secs_f64());
                    self.backends.request_answered(backend);
                    return answer;
                }
                Attempt::Broken(answer) => {
                    self.failed(backend, "its answers break off or are malformed");
                    return answer;
                }
                Attempt::NoAnswer(no_answer) => {
                    // Many idle connections close at once when a healthy upstream restarts.
                    if !was_idle || no_answer == NoAnswer::TimedOut {
                        self.failed(backend, no_answer.reason());
                    }
                    tried.mark_silent(at);
                    fault = no_answer.fault();
                    if retries == 0 {
                        break;
                    }
                    retries -= 1;
                }
            }
        }
        Err(fault)
    }

    fn failed(&self, backend: &Backend, why: &str) {
        backend.failures.fetch_add(1, Ordering::Relaxed);
        self.backends.request_failed(backend, self.clock.now(), why);
    }

    fn attempt_limits(&self, list: &BackendList) -> AttemptLimits {
        // All backends together keep no more connections than may be in use at once; an ejected one keeps none.
        let sharing = list.iter().filter(|backend| backend.health() != HealthState::Ejected).count();
        let max_idle = self.settings.max_in_flight.div_ceil(sharing.max(1));
        AttemptLimits { first_byte_timeout: self.settings.first_byte_timeout.map(|timeout| timeout.0), max_idle }
    }
}

/// Begins the span of an attempt, if the request is sampled.
fn begin_span(request: &OriginRequest<'_>, backend: &Backend, id: u64, began: Tick) {
    if let Some(span) = request.forwarded.trace.span {
        let (operation, upstream) = (request.request.operation, backend.name.clone());
        let (address, ended, status) = (backend.address, None, None);
        span.begin_attempt(OriginSpan { id, operation, upstream, address, began, ended, status });
    }
}
