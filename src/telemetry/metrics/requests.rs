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
pub(super) const BOUNDS: [Duration; 19] = [
    Duration::from_micros(10),
    Duration::from_micros(25),
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// The classes of requests whose latencies differ by orders of magnitude, in the order of [`LATENCY_CLASSES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LatencyClass {
    Hit,
    Miss,
    Write,
    Refused,
    Pass,
}

/// The label `path` of the metric.
const LATENCY_CLASSES: [&str; 5] = ["hit", "miss", "write", "refused", "pass"];

impl LatencyClass {
    fn of(cache: Option<CacheUse>) -> Self {
        match cache {
            Some(CacheUse::Hit | CacheUse::StaleWhileRevalidate) => LatencyClass::Hit,
            Some(CacheUse::Miss | CacheUse::Stale | CacheUse::StaleIfError | CacheUse::Collapsed) => LatencyClass::Miss,
            Some(CacheUse::Write) => LatencyClass::Write,
            Some(CacheUse::Bypass) => LatencyClass::Pass,
            Some(CacheUse::Refused) | None => LatencyClass::Refused,
        }
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
    pub latency: [[u64; BOUNDS.len() + 1]; LATENCY_CLASSES.len()],
}

impl RequestTotals {
    pub const LATENCY_CLASSES: [&'static str; LATENCY_CLASSES.len()] = LATENCY_CLASSES;
    pub const BOUNDS: [Duration; BOUNDS.len()] = BOUNDS;
}

/// The counters of one thread.
#[derive(Debug, Default)]
struct Block {
    requests: [[[Counter; CACHE_USES]; CODES]; OPERATIONS],
    latency: [Latency; LATENCY_CLASSES.len()],
}

#[derive(Debug, Default)]
struct Latency {
    /// One more than there are bounds: above the last one.
    buckets: [Counter; BOUNDS.len() + 1],
    sum_ns: Counter,
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
        let latency = &block.latency[LatencyClass::of(outcome.cache) as usize];
        let bucket = BOUNDS.iter().position(|bound| outcome.took <= *bound).unwrap_or(BOUNDS.len());
        latency.buckets[bucket].add(1);
        latency.sum_ns.add(u64::try_from(outcome.took.as_nanos()).unwrap_or(u64::MAX));
    }

    fn sum(&self, of: impl Fn(&Block) -> &Counter) -> u64 {
        self.blocks.iter().fold(0, |sum, block| sum.wrapping_add(of(block).get()))
    }

    /// How many requests had this outcome; `None` stands for no operation, success and no use of the cache.
    fn requests(&self) -> impl Iterator<Item = ([(&'static str, String); 3], u64)> {
        let all = (0..OPERATIONS).flat_map(|o| (0..CODES).flat_map(move |c| (0..CACHE_USES).map(move |u| (o, c, u))));
        all.filter_map(|(operation, code, cache)| {
            let n = self.sum(|block| &block.requests[operation][code][cache]);
            let operation = match operation {
                Operation::COUNT => Operation::Pass.name(),
                _ => Operation::ALL.get(operation).map_or("none", |operation| operation.name()),
            };
            let code = if code == 0 { "ok".to_owned() } else { format!("{code:02}") };
            let cache = CacheUse::ALL.get(cache).map_or("none", |cache| cache.name());
            let labels = [("operation", operation.to_owned()), ("code", code), ("cache", cache.to_owned())];
            (n > 0).then_some((labels, n))
        })
    }

    /// The counts so far.
    pub fn totals(&self) -> RequestTotals {
        let mut totals = RequestTotals {
            by_code: [0; CODES],
            by_cache: [[0; CACHE_USES]; OPERATIONS],
            latency: [[0; BOUNDS.len() + 1]; LATENCY_CLASSES.len()],
        };
        for block in &self.blocks {
            for (operation, codes) in block.requests.iter().enumerate() {
                for (code, uses) in codes.iter().enumerate() {
                    for (cache, counter) in uses.iter().enumerate() {
                        totals.by_code[code] += counter.get();
                        totals.by_cache[operation][cache] += counter.get();
                    }
                }
            }
            for (sums, latency) in totals.latency.iter_mut().zip(&block.latency) {
                sums.iter_mut().zip(&latency.buckets).for_each(|(sum, counter)| *sum += counter.get());
            }
        }
        totals
    }

    pub(in crate::telemetry) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        counters(
            encoder,
            "guildgate_requests",
            "Requests by operation, outcome (ok, or the code of the refusal) and use of the cache",
            self.requests(),
        )?;
        let help = "From the arrival of a request's header to its answer, by path: hit, miss, write or refused";
        let mut family =
            encoder.encode_descriptor("guildgate_request_duration_seconds", help, None, MetricType::Histogram)?;
        for (class, name) in LATENCY_CLASSES.into_iter().enumerate() {
            let bounds = BOUNDS.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds
                .enumerate()
                .map(|(i, bound)| (bound, self.sum(|block| &block.latency[class].buckets[i])))
                .collect();
            let count = buckets.iter().map(|(_, n)| n).sum();
            let sum = Duration::from_nanos(self.sum(|block| &block.latency[class].sum_ns));
            family.encode_family(&[("path", name)])?.encode_histogram::<NoLabels>(
                sum.as_secs_f64(),
                count,
                &buckets,
                None,
            )?;
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
