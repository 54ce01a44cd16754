//! The rules that must not break: who may ask, how often, what may be answered from memory. No
//! socket and no Pingora type is here, so they run in a test with a clock that the test moves.

mod admit;
mod ask;
mod beside;
mod doubt;
mod follow;
mod notes;
mod prove;
mod read;
mod reload;
mod reply;
mod source;
mod tell;
mod write;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::future::Future;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;

use admit::{Admission, Admitted};
use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use beside::Beside;
use doubt::Doubt;
use futures_util::{FutureExt, poll};
use parking_lot::Mutex;
use prove::Asked;
use read::{Asking, Found};
use tokio::sync::{Notify, watch};

use crate::cache::Memory;
use crate::clock::{Clock, Tick};
use crate::config::Config;
use crate::keys::{Book, InFlightPlace};
use crate::limits::{Counted, Strangers};
use crate::model::{GuildId, KeyId};
use crate::origin::Origin;
use crate::telemetry::DecisionLog;
use crate::wire::{Fault, Form, Operation, Request, RequestId, is_form_type};

pub use beside::{TELLINGS, Telling, WriteNews};
pub use reply::{CacheUse, Facts, Reply};
pub use source::{Fresh, KeySource, Listing};
pub use tell::Told;

/// The gateway: what outlives a reload, and the state that a reload swaps.
#[derive(Debug)]
pub struct Gateway {
    clock: Clock,
    state: ArcSwap<State>,
    memory: Memory,
    /// Held while a new state is made: two changes at once would carry budgets over twice.
    changing: Mutex<()>,
    /// The book may be older than the store; the follower reads it again at its next look.
    book_is_old: Notify,
    /// Whether the book is too old to go by.
    doubt: Doubt,
    /// Held from when keys are listed until the list is in force: of two lists the older one must not come last. A key
    /// file is put in force without it.
    listing: tokio::sync::Mutex<()>,
    decisions: Option<Arc<DecisionLog>>,
    /// Held while the day's counts are written down.
    noting: tokio::sync::Mutex<()>,
    /// The process that takes this one's place.
    beside: ArcSwapOption<Beside>,
    /// The process whose place this one takes still answers callers.
    after_another: AtomicBool,
    /// Whether this process's own writes may begin.
    may_write: watch::Sender<bool>,
    /// Writes that have begun and are not over.
    writes: Mutex<beside::UnderWay>,
}

/// What one request sees from one wait to the next: a reload puts another one in its place and never changes it.
#[derive(Debug)]
pub struct State {
    pub config: Arc<Config>,
    pub origin: Arc<Origin>,
    pub keys: KeySource,
    /// The guilds that the bot has left, as the store last told them.
    guilds_gone: Arc<HashSet<GuildId>>,
    book: Arc<Book>,
    strangers: Arc<Strangers>,
}

impl State {
    /// The first state of a gateway; `listing` is that of `keys` now, `counted` what was counted
    /// of the day before the start.
    pub fn new(
        config: Config,
        origin: Arc<Origin>,
        keys: KeySource,
        listing: Listing,
        counted: Vec<(KeyId, Counted)>,
        clock: &Clock,
    ) -> Self {
        let before = Book::remembering(counted, &config.limits);
        let (listed, guilds_gone) = keys.listed(listing);
        let book = Arc::new(Book::new(listed, &config.limits, &before, clock.now(), clock.unix()));
        keys.hold_to(&config, &book, false, clock.now());
        let strangers = Arc::new(Strangers::new(config.limits.strangers));
        State { config: Arc::new(config), origin, book, keys, guilds_gone, strangers }
    }

    /// Whether what is in memory may become old by what others do to the store. Of an HTTP origin's answers
    /// to keys that are in a file the store says nothing.
    fn follows_store(&self) -> bool {
        matches!(self.keys, KeySource::Store(_)) || self.origin.is_builtin()
    }
}

/// A request's header, as far as the rules need it. The edge has judged its framing.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it holds the key in the clear")]
pub struct Head<'h> {
    pub method: &'h [u8],
    /// Without the query.
    pub path: &'h [u8],
    /// The whole value.
    pub authorization: Option<&'h [u8]>,
    pub content_type: Option<&'h [u8]>,
    pub content_encoded: bool,
    pub content_length: Option<u64>,
    /// Who pays as a stranger: the peer, or whom a trusted proxy names.
    pub client: IpAddr,
    /// What the request takes of its key's `in_flight`. Where the caller hangs up, it is to be given
    /// back, and the request to be polled to its end: others may wait for what it asks.
    pub in_flight: &'h InFlightPlace,
}

/// A request's body, read only once the key is accepted (contract section 1, "Order").
pub trait Body: Send {
    /// The whole body; 14, 16 or 17 where it is too large, malformed or too slow.
    fn whole(&mut self) -> impl Future<Output = Result<&[u8], Fault>> + Send;

    /// The origin is about to be asked: whoever waits for answers on the same connection should
    /// be given them now.
    fn will_wait(&mut self) -> impl Future<Output = ()> + Send;
}

impl Gateway {
    /// A gateway that records what limits decide in `decisions`, if anywhere.
    pub fn new(clock: Clock, state: State, decisions: Option<Arc<DecisionLog>>) -> Self {
        let now = clock.now();
        Gateway {
            clock,
            memory: Memory::new(state.config.cache.max_size),
            state: ArcSwap::from_pointee(state),
            changing: Mutex::new(()),
            book_is_old: Notify::new(),
            doubt: Doubt::none(now),
            listing: tokio::sync::Mutex::new(()),
            decisions,
            noting: tokio::sync::Mutex::new(()),
            beside: ArcSwapOption::empty(),
            after_another: AtomicBool::new(false),
            may_write: watch::Sender::new(true),
            writes: Mutex::default(),
        }
    }

    /// The state that a request beginning now is answered under.
    pub fn state(&self) -> Guard<Arc<State>> {
        self.state.load()
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Answers one request. Up to a fresh hit this never waits and allocates nothing. A defect (a
    /// panic) is this caller's 20 and nobody else's: what the request held is let go by guards.
    pub async fn handle<B: Body>(self: &Arc<Self>, state: &Arc<State>, head: &Head<'_>, body: &mut B) -> Reply {
        let mut facts = Facts::new(RequestId::random());
        let answer = AssertUnwindSafe(self.answer(state, head, body, &mut facts)).catch_unwind().await;
        facts.panicked = answer.is_err();
        Reply { answer: answer.unwrap_or(Err(Fault::NoUsableAnswer)), facts }
    }

    /// The contract's order of refusals, top to bottom (section 1, "Order").
    async fn answer<B: Body>(
        self: &Arc<Self>,
        state: &Arc<State>,
        head: &Head<'_>,
        body: &mut B,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let server = &state.config.server;
        let operation = Operation::at(head.path, &server.base_path).ok_or(Fault::UnknownOperation)?;
        facts.operation = Some(operation);
        if head.method != b"POST" {
            return Err(Fault::MethodNotPost);
        }
        if head.content_length.is_some_and(|length| length > server.max_body as u64) {
            return Err(Fault::BodyTooLarge);
        }
        let admission = self.admit(state, operation, head, facts)?;
        if head.content_encoded || head.content_type.is_some_and(|t| !t.is_empty() && !is_form_type(t)) {
            return Err(Fault::NotAForm);
        }
        let (request, has_waited) = {
            let mut whole = std::pin::pin!(body.whole());
            let (bytes, has_waited) = match poll!(whole.as_mut()) {
                Poll::Ready(bytes) => (bytes?, false),
                Poll::Pending => (whole.await?, true),
            };
            (Form::read(bytes).request(operation), has_waited)
        };
        // A body may be held back for `body_timeout`, so the key and the configuration are looked at again after it.
        let later = has_waited.then(|| self.state.load_full());
        let (state, admission) = match &later {
            None => (state, admission),
            Some(later) => (later, self.readmit(later, admission, operation)?),
        };
        let request = request?;
        if admission.guild_is_gone() {
            return Err(Fault::GuildGone);
        }
        match (admission, &state.keys) {
            (Admission::Admitted(admitted), _) => self.perform(state, admitted, request, body, facts).await,
            (Admission::Unproven(unproven), KeySource::Origin(learned)) => {
                body.will_wait().await;
                let asked = Asked { request, client: head.client, in_flight: head.in_flight };
                Box::pin(self.prove(learned, unproven, asked, body, facts)).await
            }
            // Only keys that are learned are ever unproven.
            (Admission::Unproven(_), KeySource::Store(_) | KeySource::File { .. }) => Err(Fault::IncorrectKey),
        }
    }

    /// The operation itself, by one who may ask for it.
    async fn perform<B: Body>(
        self: &Arc<Self>,
        state: &Arc<State>,
        admitted: Admitted<'_>,
        request: Request,
        body: &mut B,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        match request {
            Request::Read { read, member } => match self.look(state, &admitted, read, member, facts) {
                Found::Answer(text) => Ok(text),
                Found::Nothing(held) => {
                    body.will_wait().await;
                    // Boxed, so that a connection that only ever hits carries no room for a miss.
                    Box::pin(self.miss(admitted.caller(), read, member, Asking::ForWant(held), None, facts)).await
                }
            },
            Request::SetPoints { member, amount } => {
                body.will_wait().await;
                Box::pin(self.write(admitted.caller(), member, amount, None, facts.id)).await
            }
        }
    }

    fn now(&self) -> Tick {
        self.clock.now()
    }
}
