//! An HTTP origin: one service at several upstreams, over kept-alive HTTP/1.1 (contract section 1,
//! "Upstream", and section 3, `[origin]`).

mod attempt;
mod backend;
mod backends;
mod choice;
mod connect;
mod places;
mod pool;
mod standing;
mod tls;
mod upkeep;

use std::sync::Arc;

use attempt::{Attempt, Bounds, Silence, attempt};
use backend::{Backend, Site};
use backends::{Backends, List};
use choice::Tried;
use connect::TRY_AGAIN_IN;
use hyper::Uri;
use places::Places;
use standing::Standing;

use super::{MaySend, Question};
use crate::clock::Clock;
use crate::config::Upstreams;
use crate::wire::{Fault, Request, RequestId};

pub use places::{Owner, Place};
pub use tls::Tls;

/// How many upstreams one request may fail to reach. The wait for each is `connect_timeout`; who
/// finds three dead in a row is better told than kept waiting.
const MOST_UNREACHABLE: u32 = 3;

/// One service at one or more upstreams.
#[derive(Debug)]
pub struct HttpOrigin {
    settings: Upstreams,
    tls: Option<Tls>,
    backends: Backends,
    /// What health checks ask for.
    check: Option<Uri>,
    places: Arc<Places>,
    clock: Clock,
}

impl HttpOrigin {
    /// Readies the upstreams: their names are resolved (for 2 s at most) and looked after from
    /// here on, until what is returned is dropped. Whatever `before` has of the same
    /// upstreams is taken over: connections, addresses, and who is out. The places and those who wait
    /// for one are the same; `takes_over` changes their number.
    ///
    /// # Errors
    /// Which setting cannot be used, and why.
    pub async fn start(
        settings: Upstreams,
        tls: Option<Tls>,
        clock: Clock,
        before: Option<&HttpOrigin>,
    ) -> Result<Arc<Self>, String> {
        let site = |upstream| Site::new(upstream, tls.as_ref()).map(Arc::new);
        let sites = settings.list.iter().map(site).collect::<Result<_, _>>()?;
        let check = |path: &str| path.parse().map_err(|e| format!("origin.health.path: {path}: {e}"));
        let check = settings.health.as_ref().map(|health| check(&health.path)).transpose()?;
        let there = before.map(|before| before.backends.list()).unwrap_or_default();
        let backends = Backends::new(sites, settings.health.clone(), &there);
        let places = before.map_or_else(|| Places::new(settings.max_in_flight), |before| before.places.clone());
        let origin = Arc::new(HttpOrigin { settings, tls, backends, check, places, clock });
        upkeep::begin(&origin).await;
        Ok(origin)
    }

    /// Whether it was made from just these.
    pub fn is_of(&self, settings: &Upstreams, tls: &Option<Tls>) -> bool {
        self.settings == *settings && self.tls == *tls
    }

    /// Asks once a place is had, which is held until this is over: `origin.timeout` begins here.
    pub(super) async fn ask(&self, question: &Question<'_>, may_send: MaySend<'_>) -> Result<String, Fault> {
        let list = self.backends.list();
        let mut asking = None;
        let attempts = self.attempts(question, may_send, &list, &mut asking);
        let answered = tokio::time::timeout(self.settings.timeout, attempts).await;
        answered.unwrap_or_else(|_| {
            let why = "it took longer than origin.timeout";
            if let Some(backend) = asking.and_then(|at: usize| list.get(at)) {
                tracing::warn!(request_id = %question.id, upstream = %backend, "the origin took longer than origin.timeout");
                self.failed(backend, why);
            }
            Err(Fault::OriginTimeout)
        })
    }

    /// Asks one upstream after the other until there is an answer, or none of them may be asked.
    /// `asking` tells whom, should the time be over meanwhile.
    async fn attempts(
        &self,
        question: &Question<'_>,
        may_send: MaySend<'_>,
        list: &List,
        asking: &mut Option<usize>,
    ) -> Result<String, Fault> {
        // setPoints is sent at most once (guarantee 5); a read as often as the operator allows.
        let mut retries = match question.request {
            Request::Read { .. } => self.settings.retries,
            Request::SetPoints { .. } => 0,
        };
        let mut tried = Tried::default();
        let mut unreachable = 0;
        let (mut trust_kept, mut has_waited) = (true, false);
        let mut fault = Fault::Unavailable { retry_after: TRY_AGAIN_IN };
        let bounds = self.bounds(list);
        while unreachable < MOST_UNREACHABLE
            && let Some(at) = self.backends.choose(list, tried)
        {
            *asking = Some(at);
            let backend = &*list[at];
            let _here = backend.enter();
            let request = backend.site.request(question)?;
            let kept = if trust_kept { backend.pool.kept() } else { None };
            let was_kept = kept.is_some();
            let connected = match kept {
                Some(connection) => Ok(connection),
                None => backend.connect(self.settings.connect_timeout).await,
            };
            // A retry is on a new connection as well.
            has_waited |= !was_kept;
            let became = match connected {
                Ok(_) if has_waited && let Err(refused) = may_send() => return Err(refused),
                Ok(connection) => attempt(backend, connection, request, question, bounds).await,
                Err(error) => {
                    tracing::warn!(request_id = %question.id, upstream = %backend, %error, "request to upstream failed");
                    self.failed(backend, &error.to_string());
                    tried.unreachable(at);
                    unreachable += 1;
                    fault = error.fault();
                    continue;
                }
            };
            match became {
                Attempt::Answered(answer) => {
                    self.backends.answered(backend);
                    return answer;
                }
                Attempt::Broken(answer) => {
                    self.failed(backend, "its answers break off or are none");
                    return answer;
                }
                // A kept connection may have died unseen; what it did not send goes out on another.
                Attempt::Unsent if was_kept => {}
                Attempt::Unsent => {
                    self.failed(backend, "it closes connections at once");
                    tried.unreachable(at);
                    unreachable += 1;
                    fault = Fault::NoUsableAnswer;
                }
                Attempt::Silent(silence) => {
                    match silence {
                        Silence::TooLong => self.failed(backend, "no answer began within origin.first_byte_timeout"),
                        // Many kept connections die at once where a healthy upstream starts anew.
                        Silence::Closed if was_kept => {}
                        Silence::Closed => self.failed(backend, "it closes connections without an answer"),
                    }
                    tried.silent(at);
                    fault = silence.fault();
                    if retries == 0 {
                        break;
                    }
                    retries -= 1;
                }
            }
            // Where one kept connection was dead, the others are likely to be: the next is a new one.
            trust_kept = false;
        }
        Err(fault)
    }

    fn failed(&self, backend: &Backend, why: &str) {
        self.backends.failed(backend, self.clock.now(), why);
    }

    fn bounds(&self, list: &List) -> Bounds {
        // All together keep no more connections than may be in use at once; who is out keeps none.
        let sharing = list.iter().filter(|backend| backend.standing() != Standing::Out).count();
        let most_kept = self.settings.max_in_flight.div_ceil(sharing.max(1));
        Bounds { first_byte_timeout: self.settings.first_byte_timeout, most_kept }
    }

    pub(super) async fn place(&self, owner: Owner, id: RequestId) -> Result<Place, Fault> {
        let place = self.places.take(owner, self.settings.queue_timeout).await;
        place.ok_or_else(|| {
            tracing::warn!(request_id = %id, "no place at the origin became free within origin.queue_timeout");
            Fault::Unavailable { retry_after: TRY_AGAIN_IN }
        })
    }

    pub(super) fn place_at_once(&self, owner: Owner) -> Option<Place> {
        self.places.try_take(owner)
    }

    pub(super) fn takes_over(&self) {
        self.places.resize(self.settings.max_in_flight);
    }
}
