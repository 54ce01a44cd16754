//! An HTTP origin: one service at several upstreams, over kept-alive HTTP/1.1 (contract section 1, "Upstream", and
//! section 3, `[origin]`). This module chooses an upstream's address, sends the request, and judges its answer, with
//! one address after another until there is an answer or none may be tried any more; its parts open connections and
//! read answers, keep health, and bound the requests in flight.

mod answer;
mod backend;
mod background;
mod connection;
mod health;
mod metrics;
mod pass;
mod permits;
mod tls;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use answer::AnswerHeader;
use arc_swap::ArcSwap;
use backend::{Backend, backends_at};
use connection::{Connection, RETRY_AFTER};
use permits::Permits;
use tokio::time::timeout;

use super::OriginRequest;
use crate::clock::{Clock, Tick};
use crate::config::Upstreams;
use crate::telemetry::UpstreamUse;
use crate::wire::{Fault, OriginSpan, RequestId, parse_origin_answer};

pub use connection::{Failed, IDLE_FOR};
pub use pass::{Attempts, Target};
pub use permits::{Owner, Permit};
pub use tls::Tls;

/// How many backends one request may fail to reach. Each failure may take `connect_timeout`; after three, an early
/// refusal serves the caller better.
const MAX_UNREACHED: usize = 3;

/// One service at one or more upstreams.
#[derive(Debug)]
pub struct HttpOrigin {
    settings: Upstreams,
    tls: Option<Tls>,
    /// One for each address; a request keeps the list that it began with.
    backends: ArcSwap<Vec<Arc<Backend>>>,
    next_turn: AtomicUsize,
    permits: Arc<Permits>,
    clock: Clock,
}

/// The backends that one request has tried, by their numbers in the list.
#[derive(Debug, Default)]
struct Tried {
    /// How often the request may be sent again where it was not answered.
    retries: u32,
    /// Nothing could be sent to them: they are not tried again.
    unreached: Vec<usize>,
    /// They got the request and did not answer: they are tried again only when no other one is left.
    silent: Vec<usize>,
}

impl Tried {
    /// Whether there may be another attempt after one at this backend, by its number, that failed.
    fn may_go_on(&mut self, at: usize, failed: &Failed) -> bool {
        match failed {
            Failed::Unsent(_) => {
                self.unreached.push(at);
                self.unreached.len() < MAX_UNREACHED
            }
            Failed::Silent(_) if self.retries > 0 => {
                self.retries -= 1;
                self.silent.push(at);
                true
            }
            Failed::Silent(_) | Failed::Broken(_) => false,
        }
    }
}

/// One attempt at one backend, which counts as in flight there until this is dropped.
#[derive(Debug)]
struct Attempt {
    backend: Arc<Backend>,
    began: Tick,
    /// Whether the backend may have something of the request.
    is_sent: bool,
    error: Option<Arc<str>>,
    ended: Option<Tick>,
}

impl Attempt {
    fn new(backend: &Arc<Backend>, began: Tick) -> Self {
        backend.in_flight.fetch_add(1, Ordering::Relaxed);
        Attempt { backend: backend.clone(), began, is_sent: false, error: None, ended: None }
    }

    fn upstream_use(&self, now: Tick) -> UpstreamUse {
        let took_us = now.since(self.began).as_micros().try_into().unwrap_or(u64::MAX);
        UpstreamUse { name: self.backend.name.clone(), took_us, error: self.error.clone() }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.backend.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HttpOrigin {
    /// Prepares the upstreams. Their names are resolved (this waits 2 s at most) and their health is checked from here
    /// on, until the returned value is dropped. Connections, addresses and health of the same upstreams in `before` are
    /// shared, and so are its permits; `activate` gives out as many as the new settings say.
    pub async fn start(settings: Upstreams, tls: Option<Tls>, clock: Clock, before: Option<&HttpOrigin>) -> Arc<Self> {
        let there = before.filter(|before| before.tls == tls).map(|before| before.backends.load_full());
        let there = there.unwrap_or_default();
        let backends = settings.list.iter().flat_map(|upstream| match upstream.address() {
            Some(address) => backends_at(&there, upstream, &[address]),
            None => there.iter().filter(|backend| backend.upstream == *upstream).cloned().collect(),
        });
        let (backends, next_turn) = (ArcSwap::from_pointee(backends.collect()), AtomicUsize::new(0));
        let permits = before.map_or_else(|| Permits::new(settings.max_in_flight), |before| before.permits.clone());
        let origin = Arc::new(HttpOrigin { settings, tls, backends, next_turn, permits, clock });
        background::start(&origin).await;
        origin
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
        self.permits.resize(self.settings.max_in_flight);
    }

    /// Sends a request that has a permit. `origin.timeout` begins here.
    pub(super) async fn send(&self, request: &OriginRequest<'_>) -> (Result<Arc<str>, Fault>, Option<UpstreamUse>) {
        let (list, mut current) = (self.backends.load_full(), None);
        let attempts = timeout(self.settings.timeout, self.attempts(request, &list, &mut current)).await;
        let now = current.as_ref().and_then(|attempt| attempt.ended).unwrap_or_else(|| self.clock.now());
        let answer = attempts.unwrap_or_else(|_| {
            let error = io::Error::new(io::ErrorKind::TimedOut, "origin.timeout has passed");
            let is_sent = current.as_ref().is_some_and(|attempt| attempt.is_sent);
            let failed = if is_sent { Failed::Silent(error) } else { Failed::Unsent(error) };
            if let Some(attempt) = &mut current {
                // If another backend took most of the time, that one has failed.
                let is_its_fault = now.since(attempt.began) >= self.settings.timeout / 2;
                self.failed(request.id, attempt, &failed, is_its_fault);
            }
            Err(failed.fault())
        });
        if let Some(span) = request.trace.span {
            span.end_attempt(now);
        }
        (answer, current.as_ref().map(|attempt| attempt.upstream_use(now)))
    }

    /// Sends a request to one backend after another until there is an answer, or none may be tried any more. `current`
    /// is the last attempt so far.
    async fn attempts(
        &self,
        request: &OriginRequest<'_>,
        list: &[Arc<Backend>],
        current: &mut Option<Attempt>,
    ) -> Result<Arc<str>, Fault> {
        // setPoints is sent at most once (guarantee 5); a read as often as the operator allows.
        let is_write = request.request.operation.is_write();
        let retries = if is_write { 0 } else { self.settings.retries };
        let (mut tried, mut may_reuse) = (Tried { retries, ..Tried::default() }, true);
        let (mut fault, mut now) = (Fault::Unavailable { retry_after: RETRY_AFTER }, request.asked);
        while let Some(at) = self.choose(list, &tried, now) {
            let backend = &list[at];
            let idle = if may_reuse { backend.idle.take(is_write, now) } else { None };
            let was_idle = idle.is_some();
            // After an idle connection has failed, no other is used.
            may_reuse &= !was_idle;
            let attempt = current.insert(Attempt::new(backend, now));
            let failed = match self.attempt(request, attempt, idle).await {
                Ok(answer) => return answer,
                Err(failed) => failed,
            };
            self.failed(request.id, attempt, &failed, failed.counts(was_idle));
            fault = failed.fault();
            if !tried.may_go_on(at, &failed) {
                break;
            }
            now = self.clock.now();
        }
        Err(fault)
    }

    /// The backend for the next attempt, by its number in the list: one that this request is to try again, or the one
    /// with the fewest requests in flight among those that are up, or else among all. One that answers quickly has few
    /// and gets more of them; one that stalls gets no more than the others have. Equals take turns.
    fn choose(&self, list: &[Arc<Backend>], tried: &Tried, now: Tick) -> Option<usize> {
        let has_checks = self.settings.health.is_some();
        let reachable = || (0..list.len()).filter(|at| !tried.unreached.contains(at));
        let is_trial = |at: &usize| !tried.silent.contains(at) && list[*at].health.begin_trial(now, has_checks);
        reachable().find(is_trial).or_else(|| {
            let first = self.next_turn.fetch_add(1, Ordering::Relaxed) % list.len().max(1);
            let turn = |at: usize| (at + list.len() - first) % list.len();
            reachable().min_by_key(|&at| {
                let (is_down, was_silent) = (!list[at].health.is_up(has_checks), tried.silent.contains(&at));
                (is_down, was_silent, list[at].in_flight.load(Ordering::Relaxed), turn(at))
            })
        })
    }

    /// One request to one backend, on an idle connection or a new one, up to the end of its answer. A connection is kept
    /// only after an answer that came whole.
    async fn attempt(
        &self,
        request: &OriginRequest<'_>,
        attempt: &mut Attempt,
        idle: Option<Connection>,
    ) -> Result<Result<Arc<str>, Fault>, Failed> {
        let (backend, settings, began) = (attempt.backend.clone(), &self.settings, attempt.began);
        let span_id = fastrand::u64(1..); // 0 is no id
        let span = request.trace.span;
        if let Some(span) = span {
            let (operation, upstream) = (request.request.operation, backend.name.clone());
            let (address, ended, status) = (backend.address, None, None);
            span.begin_attempt(OriginSpan { id: span_id, operation, upstream, address, began, ended, status });
        }
        let mut connection = match idle {
            Some(connection) => connection,
            // Boxed, so that a request that needs none reserves no memory for it.
            None => {
                Box::pin(backend.connect(self.tls.as_ref(), settings.connect_timeout)).await.map_err(Failed::Unsent)?
            }
        };
        backend.write_request(request, span_id, connection.request());
        attempt.is_sent = true;
        let header = match settings.first_byte_timeout {
            None => connection.send().await?,
            Some(limit) => timeout(limit.0, connection.send()).await.map_err(|_| {
                let why = "no answer began within origin.first_byte_timeout";
                Failed::Silent(io::Error::new(io::ErrorKind::TimedOut, why))
            })??,
        };
        if let Some(span) = span {
            span.answered(header.status);
        }
        let body = connection.read_body(&header).await.map_err(|error| Failed::Broken(error.to_string()))?;
        let answer = judge(request, &backend, &header, body);
        let now = self.clock.now();
        backend.idle.put(connection, settings.max_in_flight, now);
        backend.answered(now.since(began));
        attempt.ended = Some(now);
        Ok(answer)
    }

    /// An attempt has failed. `is_its_fault`: that counts against the backend's health.
    fn failed(&self, id: RequestId, attempt: &mut Attempt, failed: &Failed, is_its_fault: bool) {
        let backend = &attempt.backend;
        attempt.error = Some(failed.kind().into());
        tracing::warn!(request_id = %id, upstream = %backend.name, error = %failed, "request to upstream failed");
        if is_its_fault {
            backend.failures.fetch_add(1, Ordering::Relaxed);
            if backend.health.failed(self.clock.now()) {
                backend.went_down(self.clock.unix(), &failed.to_string());
            }
        }
    }
}

/// What a whole answer says, by the rules of the contract's "Upstream" paragraph.
fn judge(
    request: &OriginRequest<'_>,
    backend: &Backend,
    header: &AnswerHeader,
    body: &[u8],
) -> Result<Arc<str>, Fault> {
    let status = header.status;
    match (parse_origin_answer(request.request.operation, status, body), status) {
        (Ok(answer), _) => answer.map(Arc::from),
        (Err(_), 429 | 503) => Err(Fault::Unavailable { retry_after: header.retry_after.unwrap_or(RETRY_AFTER) }),
        (Err(why), _) => {
            tracing::warn!(request_id = %request.id, upstream = %backend.name, status, %why, "the origin's answer is not usable");
            Err(Fault::NoUsableAnswer)
        }
    }
}
