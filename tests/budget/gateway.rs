//! A gateway over a store of its own, and one request of each path through the rules: what `Gateway::handle` does and
//! what is reported of the request. No request that is counted waits but a miss, for the store's thread: one that would
//! is a failure.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use guildgate::clock::Clock;
use guildgate::config::{self, StoreAt};
use guildgate::gateway::{Body, CacheStatus, Gateway, KeyFile, KeyList, KeySource, Reply, RequestHeader, State};
use guildgate::keys::{InFlightSlot, ListedKey};
use guildgate::model::{Digest, Scope};
use guildgate::origin::{Builtin, Origin};
use guildgate::store::{IfMissing, Store};
use guildgate::telemetry::{AccessLine, DecisionLog, Observer};
use guildgate::wire::{Fault, RequestId, TraceContext};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const GUILD: &str = "81384788765712384";
const KEY: &str = "gg_vmdEUsM0rJngX08Jl4CcfYutJQSEZrqX5Anhtpkdnjs0r0nUY";
/// How many keys are listed.
const KEYS: u64 = 1000;

/// Limits that no request here reaches, but for a tier that is reached by its second request.
const CONFIG: &str = r#"
[limits.tiers.standard]
rate = "1000000/s"
burst = 1000000
[limits.tiers.tight]
rate = "1/h"
burst = 1
[limits.strangers]
rate = "1000000/s"
burst = 1000000
[cache.points]
ttl = "24h"
"#;

/// A path through the rules of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Hit,
    /// With `log.decisions`.
    RecordedHit,
    /// Answered by the built-in store, each request for another member.
    Miss,
    UnknownKey,
    OverLimit,
}

impl Path {
    pub const ALL: [Path; 5] = [Path::Hit, Path::RecordedHit, Path::Miss, Path::UnknownKey, Path::OverLimit];

    /// Its name in `budget.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Path::Hit => "hit",
            Path::RecordedHit => "hit_with_decision_recorded",
            Path::Miss => "miss_on_built_in_store",
            Path::UnknownKey => "refusal_of_unknown_key",
            Path::OverLimit => "refusal_over_limit",
        }
    }

    fn is_taken_by(self, reply: &Reply) -> bool {
        let (answer, cache) = (&reply.answer, reply.details.cache);
        match self {
            Path::Hit | Path::RecordedHit => answer.is_ok() && matches!(cache, Some(CacheStatus::Hit { .. })),
            Path::Miss => answer.is_ok() && cache == Some(CacheStatus::Forwarded { stale: false, stored: true }),
            Path::UnknownKey => *answer == Err(Fault::IncorrectKey),
            Path::OverLimit => reply.details.over_limit.is_some() && answer.is_err(),
        }
    }
}

struct Form(String);

impl Body for Form {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        Ok(self.0.as_bytes())
    }
}

/// A gateway whose next requests take one path.
pub struct Paths {
    gateway: Arc<Gateway>,
    path: Path,
    runtime: Runtime,
    _folder: TempDir,
}

impl Paths {
    pub fn new(path: Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let at = StoreAt::Sqlite(folder.path().join("budget.db"));
        let store = runtime.block_on(Store::open(&at, IfMissing::Make)).unwrap();
        let config = config::load_str(CONFIG, folder.path(), "budget").unwrap().config;
        runtime.block_on(store.add_guild(&GUILD.parse().unwrap(), "Night Watch")).unwrap();
        let tier = if path == Path::OverLimit { "tight" } else { "standard" };
        let keys = (0..KEYS).map(|n| ListedKey {
            id: format!("k{n}").into(),
            digest: if n == 0 { Digest::of(KEY.as_bytes()) } else { Digest::of(&n.to_be_bytes()) },
            guild: GUILD.parse().unwrap(),
            guild_departed: false,
            tier: Some(tier.into()),
            scope: Scope::Write,
            expires: None,
        });
        let clock = Clock::system();
        let origin = Arc::new(Origin::Builtin(Builtin::new(store, clock.clone())));
        let source = KeySource::File(KeyFile::new(keys.collect(), None));
        let state = State::new(config, origin, source, KeyList::default(), Vec::new(), &clock);
        let decisions = (path == Path::RecordedHit)
            .then(|| Arc::new(DecisionLog::open(&folder.path().join("decisions"), 1 << 20, clock.clone()).unwrap()));
        let decisions = Arc::new(decisions.into());
        let gateway = Arc::new(Gateway::new(clock, state, Observer { decisions, ..Observer::default() }));
        let paths = Paths { gateway, path, runtime, _folder: folder };
        // Fills the entry, and uses up the burst of the tight tier.
        paths.runtime.block_on(paths.send(0, answer));
        paths
    }

    /// Makes two requests and checks that they take the path. Returns the allocations of the second one, which alone is
    /// counted: moka tidies its records up in a request that comes 0.3 s after the last time, and callgrind is slow.
    #[inline(never)] // callgrind finds it by its name
    pub fn request(&self, n: u64) -> u64 {
        let mut allocations = 0;
        let counted = async |gateway: &Arc<Gateway>, header: &RequestHeader<'_>, body: &mut Form| {
            let mut reply = None;
            let counts = allocation_counter::measure(|| reply = Some(counted_request(self, gateway, header, body)));
            allocations = counts.count_total;
            reply.unwrap()
        };
        let member = |n| if self.path == Path::Miss { n + 1 } else { 0 };
        let first = self.run(self.send(member(2 * n), answer));
        for reply in [first, now(self.send(member(2 * n + 1), counted))] {
            assert!(self.path.is_taken_by(&reply), "{:?}: {reply:?}", self.path);
        }
        allocations
    }

    /// Runs a request, which must be ready at once unless the store is asked.
    fn run<T>(&self, request: impl Future<Output = T>) -> T {
        if self.path == Path::Miss { self.runtime.block_on(request) } else { now(request) }
    }

    async fn send(
        &self,
        member: u64,
        send: impl AsyncFnOnce(&Arc<Gateway>, &RequestHeader<'_>, &mut Form) -> Reply,
    ) -> Reply {
        let mut body = Form(format!("memberID={}", 190_551_803_669_118_976 + member));
        let slot = InFlightSlot::default();
        let header = RequestHeader {
            method: b"POST",
            path: b"/getPoints",
            authorization: Some(if self.path == Path::UnknownKey { b"an unknown key" } else { KEY.as_bytes() }),
            content_type: Some(b"application/x-www-form-urlencoded"),
            content_encoded: false,
            content_length: Some(body.0.len() as u64),
            trace: TraceContext::default(),
            began: self.gateway.clock().now(),
            client: [127, 0, 0, 1].into(),
            id: RequestId::random(),
            in_flight: &slot,
        };
        send(&self.gateway, &header, &mut body).await
    }
}

#[inline(never)] // callgrind finds it by its name
fn counted_request(paths: &Paths, gateway: &Arc<Gateway>, header: &RequestHeader<'_>, body: &mut Form) -> Reply {
    paths.run(answer(gateway, header, body))
}

/// Answers and reports one request as `edge` does, without reading it from a socket and without writing its answer.
async fn answer(gateway: &Arc<Gateway>, header: &RequestHeader<'_>, body: &mut Form) -> Reply {
    let state = gateway.state();
    let reply = gateway.handle(&state, header, body).await;
    let details = &reply.details;
    let outcome = AccessLine {
        unix_ms: gateway.clock().unix_ms(),
        client: header.client,
        operation: details.operation,
        status: reply.answer.as_ref().map_or_else(|fault| fault.status(), |_| 200),
        code: reply.answer.as_ref().err().map(|fault| fault.code()),
        key: details.key.as_ref().map(|key| key.id.clone()),
        cache: details.cache.map(CacheStatus::kind),
        over_limit: details.over_limit.map(|limit| limit.name().into()),
        over_candidate: details.over_candidate,
        took: Duration::from_micros(9),
        id: details.id,
        tier: details.key.as_ref().map(|key| key.tier_in_force.clone()),
        upstream: None,
        upstream_us: None,
        upstream_error: None,
        config: state.config.hash,
        span: None,
    };
    gateway.finished(details, Instant::now(), outcome);
    reply
}

/// Runs a future that must be ready at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a request waited"),
    }
}
