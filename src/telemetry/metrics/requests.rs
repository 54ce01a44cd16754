//! Counts requests by operation, outcome and use of the cache, and their latency. Each thread counts in a block that it
//! alone writes to, so that a request shares no cache line with another; a scrape adds the blocks up.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use thread_local::ThreadLocal;

use super::encode::{NoLabels, counters};
use crate::telemetry::{AccessLine, CacheUse};
use crate::wire::{MAX_CODE, Operation};

/// Operations, what is passed on, and requests that name none.
const OPERATIONS: usize = Operation::COUNT + 2;

/// All codes; 0 is success.
const CODES: usize = MAX_CODE as usize + 1;

/// Uses of the cache, and requests that were refused before the cache was looked up.
const CACHE_USES: usize = CacheUse::ALL.len() + 1;

/// The upper bounds of the latency's buckets. Hits fall into the first ones.
pub(super) const BOUNDS: [Duration; 19] = {
    const MICROSECONDS: [u64; 19] = [
        10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
        2_500_000, 5_000_000, 10_000_000,
    ];
    let (mut bounds, mut at) = ([Duration::ZERO; 19], 0);
    while at < bounds.len() {
        bounds[at] = Duration::from_micros(MICROSECONDS[at]);
        at += 1;
    }
    bounds
};

/// The classes of requests whose latencies differ by orders of magnitude: the label `path` of the metric.
const LATENCY_CLASSES: [&str; 5] = ["hit", "miss", "write", "refused", "pass"];

/// The index in [`LATENCY_CLASSES`].
fn latency_class(cache: Option<CacheUse>) -> usize {
    match cache {
        Some(CacheUse::Hit | CacheUse::StaleWhileRevalidate) => 0,
        Some(CacheUse::Miss | CacheUse::Stale | CacheUse::StaleIfError | CacheUse::Collapsed) => 1,
        Some(CacheUse::Write) => 2,
        Some(CacheUse::Refused) | None => 3,
        Some(CacheUse::Bypass) => 4,
    }
}

/// A counter that one thread writes and any thread reads.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, n: u64) {
        // Not `fetch_add`, which would lock the cache line: no other thread writes.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The sums of all threads at one moment, for people who look at them.
#[derive(Clone, Debug)]
pub struct RequestTotals {
    /// By the code of the refusal; 0 is success.
    pub by_code: [u64; CODES],
    /// By [`Operation::index`], and without an operation; each by [`CacheUse::index`], and without a use.
    pub by_cache: [[u64; CACHE_USES]; OPERATIONS],
    /// By class, in the order of [`RequestTotals::LATENCY_CLASSES`]; each by the upper bounds of
    /// [`RequestTotals::BOUNDS`], and above the last one.
    pub latency: [[u64; BUCKETS]; LATENCY_CLASSES.len()],
}

impl RequestTotals {
    pub const LATENCY_CLASSES: [&'static str; LATENCY_CLASSES.len()] = LATENCY_CLASSES;
    pub const BOUNDS: [Duration; BOUNDS.len()] = BOUNDS;
}

/// Buckets of the latency: one more than there are bounds, for what is above the last one.
const BUCKETS: usize = BOUNDS.len() + 1;

/// The counters of one thread.
#[derive(Debug, Default)]
struct Block {
    requests: [[[Counter; CACHE_USES]; CODES]; OPERATIONS],
    /// The buckets of each class, and the sum in nanoseconds.
    latency: [[Counter; BUCKETS + 1]; LATENCY_CLASSES.len()],
}

/// The counts of all threads.
#[derive(Debug, Default)]
pub struct RequestMetrics {
    blocks: ThreadLocal<Box<Block>>,
}

impl RequestMetrics {
    /// Counts the end of one request.
    pub fn count(&self, outcome: &AccessLine) {
        let block = self.blocks.get_or_default();
        let operation = outcome.operation.map_or(OPERATIONS - 1, Operation::index);
        let code = usize::from(outcome.code.unwrap_or(0));
        let cache = outcome.cache.map_or(CACHE_USES - 1, CacheUse::index);
        block.requests[operation][code][cache].add(1);
        let latency = &block.latency[latency_class(outcome.cache)];
        let bucket = BOUNDS.iter().position(|bound| outcome.took <= *bound).unwrap_or(BOUNDS.len());
        latency[bucket].add(1);
        latency[BUCKETS].add(u64::try_from(outcome.took.as_nanos()).unwrap_or(u64::MAX));
    }

    fn sum(&self, of: impl Fn(&Block) -> &Counter) -> u64 {
        self.blocks.iter().fold(0, |sum, block| sum.wrapping_add(of(block).get()))
    }

    /// How many requests had each outcome: operation, code and use of the cache by their numbers.
    fn requests(&self) -> impl Iterator<Item = ([usize; 3], u64)> {
        let all = (0..OPERATIONS).flat_map(|o| (0..CODES).flat_map(move |c| (0..CACHE_USES).map(move |u| [o, c, u])));
        all.map(|[o, c, u]| ([o, c, u], self.sum(|block| &block.requests[o][c][u]))).filter(|(_, n)| *n > 0)
    }

    /// The counts so far.
    pub fn totals(&self) -> RequestTotals {
        let latency = |class: usize| std::array::from_fn(|i| self.sum(|block| &block.latency[class][i]));
        let (by_code, by_cache) = ([0; CODES], [[0; CACHE_USES]; OPERATIONS]);
        let mut totals = RequestTotals { by_code, by_cache, latency: std::array::from_fn(latency) };
        for ([operation, code, cache], n) in self.requests() {
            totals.by_code[code] += n;
            totals.by_cache[operation][cache] += n;
        }
        totals
    }

    pub fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let requests = self.requests().map(|([operation, code, cache], n)| {
            let named = Operation::ALL.into_iter().chain([Operation::Pass]).nth(operation);
            let operation = named.map_or("none", Operation::name);
            let code = if code == 0 { "ok".to_owned() } else { format!("{code:02}") };
            let cache = CacheUse::ALL.get(cache).map_or("none", |cache| cache.name());
            ([("operation", operation.to_owned()), ("code", code), ("cache", cache.to_owned())], n)
        });
        let help = "Requests by operation, outcome (ok, or the code of the refusal) and use of the cache";
        counters(encoder, "guildgate_requests", help, requests)?;
        let help = "From the arrival of a request's header to its answer, by path: hit, miss, write or refused";
        let mut family =
            encoder.encode_descriptor("guildgate_request_duration_seconds", help, None, MetricType::Histogram)?;
        let bounds = || BOUNDS.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
        for (class, (name, counts)) in LATENCY_CLASSES.into_iter().zip(self.totals().latency).enumerate() {
            let sum = Duration::from_nanos(self.sum(|block| &block.latency[class][BUCKETS])).as_secs_f64();
            let buckets: Vec<(f64, u64)> = bounds().zip(counts).collect();
            let (labels, count) = ([("path", name)], counts.iter().sum());
            family.encode_family(&labels)?.encode_histogram::<NoLabels>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::access_line::tests::example;
    use crate::telemetry::metrics::{Collector, Metrics};

    fn outcome(code: Option<u8>, cache: Option<CacheUse>, took: Duration) -> AccessLine {
        AccessLine { code, cache, took, ..example() }
    }

    #[derive(Debug, Default)]
    struct TestCollector(RequestMetrics);

    impl Collector for TestCollector {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            self.0.encode(&mut encoder)
        }
    }

    #[test]
    fn requests_of_all_threads_are_added_up_by_outcome_and_latency() {
        let metrics = std::sync::Arc::new(TestCollector::default());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        metrics.0.count(&outcome(None, Some(CacheUse::Hit), Duration::from_micros(10)));
                    }
                    metrics.0.count(&outcome(Some(12), None, Duration::from_secs(11)));
                });
            }
        });
        let totals = metrics.0.totals();
        assert_eq!((totals.by_code[0], totals.by_code[12], totals.latency[0][0]), (3000, 3, 3000));
        assert_eq!(totals.by_cache.as_flattened().iter().sum::<u64>(), 3003);
        let text = Metrics::new(vec![Box::new(metrics)]).encode();
        for line in [
            "guildgate_requests_total{operation=\"getPoints\",code=\"ok\",cache=\"hit\"} 3000",
            "guildgate_requests_total{operation=\"getPoints\",code=\"12\",cache=\"none\"} 3",
            "guildgate_request_duration_seconds_bucket{le=\"0.00001\",path=\"hit\"} 3000",
            "guildgate_request_duration_seconds_sum{path=\"hit\"} 0.03",
            "guildgate_request_duration_seconds_bucket{le=\"10.0\",path=\"refused\"} 0",
            "guildgate_request_duration_seconds_bucket{le=\"+Inf\",path=\"refused\"} 3",
            "guildgate_request_duration_seconds_count{path=\"write\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
