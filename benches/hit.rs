//! The hit path without sockets, whole and in its parts: what a request costs beside the kernel.
//!
//! `cargo bench --bench hit`. Compare lines of one run only.

#![expect(clippy::expect_used, reason = "a bench that cannot set itself up has nothing to measure")]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use guildgate::clock::{Clock, Tick};
use guildgate::config::{self, Limits, Rate, StoreAt, Tier};
use guildgate::gateway::{Body, CacheStatus, Gateway, KeyFile, KeyList, KeySource, RequestHeader, State};
use guildgate::keys::{InFlightSlot, KeyTable, LearnedKeyRules, LearnedKeys, ListedKey};
use guildgate::limits::{Bucket, Budget, DecidedBy, LimitQuery, Limiter, Policy};
use guildgate::model::{Digest, Scope};
use guildgate::origin::{Builtin, Origin};
use guildgate::store::{IfMissing, Store};
use guildgate::telemetry::{AccessLine, Decision, DecisionLog, Observer};
use guildgate::wire::{Fault, Form, Operation, RequestId, TraceContext};

const KEY: &[u8] = b"gg_vmdEUsM0rJngX08Jl4CcfYutJQSEZrqX5Anhtpkdnjs0r0nUY";
const BODY: &[u8] = b"memberID=190551803669118976";
const PLENTY: &str = "[limits.tiers.standard]\nrate = \"1000000/s\"\nburst = 1000000\n[cache.points]\nttl = \"24h\"\n";

struct Bytes(&'static [u8]);

impl Body for Bytes {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        Ok(self.0)
    }
}

fn listed(n: usize) -> ListedKey {
    ListedKey {
        id: format!("k{n}").into(),
        digest: if n == 0 { Digest::of(KEY) } else { Digest::of(&n.to_be_bytes()) },
        guild: GUILD.parse().expect("a guild id"),
        guild_departed: false,
        tier: None,
        scope: Scope::Write,
        expires: None,
    }
}

const GUILD: &str = "81384788765712384";

fn book(keys: usize, limits: &Limits) -> KeyTable {
    KeyTable::new((0..keys).map(listed).collect(), limits, &KeyTable::default(), Tick(0), 0)
}

/// Runs a future that must be ready at once: a hit never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a hit waited"),
    }
}

fn handle(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let config = config::load_str(PLENTY, folder.path(), "bench").expect("a good config").config;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let at = StoreAt::Sqlite(folder.path().join("bench.db"));
    let store = runtime.block_on(Store::open(&at, IfMissing::Make)).expect("a store");
    runtime.block_on(store.add_guild(&GUILD.parse().expect("a guild id"), "Bench")).expect("a guild");
    let clock = Clock::system();
    let origin = Arc::new(Origin::Builtin(Builtin::new(store, clock.clone())));
    let keys: Vec<ListedKey> = (0..1000).map(listed).collect();
    let source = KeySource::File(KeyFile::new(keys, None));
    let state = State::new(config, origin, source, KeyList::default(), Vec::new(), &clock);
    let gateway = Arc::new(Gateway::new(clock, state, Observer::default()));
    let slot = InFlightSlot::default();
    let header = RequestHeader {
        method: b"POST",
        path: b"/getPoints",
        authorization: Some(KEY),
        content_type: Some(b"application/x-www-form-urlencoded"),
        content_encoded: false,
        content_length: Some(BODY.len() as u64),
        trace: TraceContext::default(),
        began: Tick(0),
        client: [127, 0, 0, 1].into(),
        id: RequestId::random(),
        in_flight: &slot,
    };
    let ask = || {
        let (state, slot) = (gateway.state(), InFlightSlot::default());
        now(gateway.handle(
            &state,
            &RequestHeader { in_flight: &slot, began: gateway.clock().now(), ..header },
            &mut Bytes(BODY),
        ))
    };
    let first = RequestHeader { began: gateway.clock().now(), ..header };
    let filled = runtime.block_on(gateway.handle(&gateway.state(), &first, &mut Bytes(BODY)));
    assert!(filled.answer.is_ok(), "the entry is filled");
    c.bench_function("handle, a hit", |b| b.iter(|| black_box(ask())));
    let reply = ask();
    c.bench_function("finished, a hit", |b| {
        let outcome = || AccessLine {
            unix_ms: 1_790_000_000_000,
            client: header.client,
            operation: reply.details.operation,
            status: 200,
            code: None,
            key: reply.details.key.as_ref().map(|key| key.id.clone()),
            cache: reply.details.cache.map(CacheStatus::kind),
            over_limit: None,
            over_candidate: false,
            took: Duration::from_micros(9),
            id: reply.details.id,
            tier: reply.details.key.as_ref().map(|key| key.tier_in_force.clone()),
            upstream: None,
            upstream_us: None,
            upstream_error: None,
            config: gateway.state().config.hash,
            span: None,
        };
        let answered = Instant::now();
        b.iter(|| gateway.finished(&reply.details, answered, black_box(outcome())))
    });
    let strange = RequestHeader { authorization: Some(b"an unknown key"), ..header };
    c.bench_function("handle, an unknown key", |b| {
        b.iter(|| {
            let (state, slot) = (gateway.state(), InFlightSlot::default());
            black_box(now(gateway.handle(
                &state,
                &RequestHeader { in_flight: &slot, began: gateway.clock().now(), ..strange },
                &mut Bytes(BODY),
            )))
        })
    });
}

fn parse(c: &mut Criterion) {
    let operation = Operation::ALL[0];
    c.bench_function("parse a body", |b| b.iter(|| Form::read(black_box(BODY)).request(operation)));
}

fn keys(c: &mut Criterion) {
    let config = config::load_str("", std::path::Path::new(""), "bench").expect("defaults").config;
    let mut group = c.benchmark_group("find a key by its digest");
    for keys in [100, 100_000] {
        let book = book(keys, &config.limits);
        group.bench_function(format!("among {keys}"), |b| {
            b.iter(|| book.find(&Digest::of(black_box(KEY)), || 0).is_some())
        });
    }
}

/// What each limit of a tier adds to a decision.
fn limits(c: &mut Criterion) {
    let rate = Rate { period_ns: 1000, burst: NonZeroU32::MAX };
    let plain = Tier::new("standard", rate);
    let clock = Clock::system();
    let read = Operation::GetPoints;
    let tiers = [
        ("rate alone", read, plain.clone()),
        ("with write_rate, a read", read, Tier { write: Some(rate), ..plain.clone() }),
        ("with write_rate, setPoints", Operation::SetPoints, Tier { write: Some(rate), ..plain.clone() }),
        ("with daily", read, Tier { daily: Some(1 << 39), ..plain.clone() }),
        ("with in_flight", read, Tier { in_flight: Some(1000), ..plain.clone() }),
        ("with candidate", read, Tier { candidate: Some(rate), ..plain.clone() }),
    ];
    let mut group = c.benchmark_group("decide by a tier");
    for (name, operation, tier) in tiers {
        let (policy, budget) = (Policy::new(Arc::new(tier)), Budget::default());
        group.bench_function(name, |b| {
            b.iter(|| {
                let ask = LimitQuery { operation, in_flight: budget.begin(), now: clock.now() };
                let decided = budget.decide(&policy, ask, DecidedBy::ALONE, || clock.unix());
                budget.end();
                black_box(decided)
            })
        });
    }
}

/// A key that was learned from the origin, among as many as are remembered.
fn learned(c: &mut Criterion) {
    let limits = config::load_str("", std::path::Path::new(""), "bench").expect("defaults").config.limits;
    let policy = Arc::new(Policy::new(limits.default_tier));
    let (accepted_for, refused_for) = (Duration::from_secs(3600), Duration::from_secs(3600));
    let mut group = c.benchmark_group("find a learned key by its digest");
    for keys in [100u64, 100_000] {
        let learned = LearnedKeys::new(
            LearnedKeyRules { policy: policy.clone(), accepted_for, refused_for, since: Tick(0) },
            Vec::new(),
        );
        for n in 0..keys {
            let digest = Digest::of(&n.to_be_bytes());
            learned.accept(&learned.unproven(&digest).key, Tick(1));
        }
        let digest = Digest::of(&1u64.to_be_bytes());
        group.bench_function(format!("among {keys}"), |b| b.iter(|| learned.is_proven(black_box(&digest), Tick(2))));
    }
}

fn gcra(c: &mut Criterion) {
    let limiter = Limiter::new(Rate { period_ns: 1000, burst: NonZeroU32::MAX });
    let (bucket, clock) = (Bucket::default(), Clock::system());
    c.bench_function("decide by GCRA, clock read included", |b| {
        b.iter(|| bucket.charge(black_box(&limiter), clock.now()))
    });
}

/// What a request pays for its decision's record. The writer empties the queue beside it; it is
/// waited for outside of the time, since a full queue would be another, cheaper way.
fn record(c: &mut Criterion) {
    const HALF: u64 = 8_192;
    let folder = tempfile::tempdir().expect("a folder");
    let log = DecisionLog::open(&folder.path().join("d.log"), 1 << 30, Clock::system()).expect("a record");
    let (key, tier): (Arc<str>, Arc<str>) = ("k_00000000".into(), "standard".into());
    let decision = |n: u64| Decision {
        unix_ms: 1_790_000_000_000,
        at: Tick(n),
        key: key.clone(),
        tier: Some(tier.clone()),
        ..Decision::default()
    };
    let mut group = c.benchmark_group("record a decision");
    group.sample_size(20).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
    group.bench_function("into the queue", |b| {
        // Always half a queue, whatever is asked for: one alone would be timed with cold caches.
        b.iter_custom(|iterations| {
            std::thread::sleep(Duration::from_millis(40));
            let start = Instant::now();
            (0..HALF).for_each(|n| log.writer.record(black_box(decision(n))));
            start.elapsed().mul_f64(iterations as f64 / HALF as f64)
        });
    });
}

criterion_group!(benches, handle, parse, keys, learned, gcra, limits, record);
criterion_main!(benches);
