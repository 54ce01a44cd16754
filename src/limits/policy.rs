//! The decision on one request: checks the limits of its key's tier in the contract's order, and returns which one it
//! is over and for how long. Limits that refuse without a charge (in flight, daily) come first, and the write bucket
//! before the main one, so that a refusal charges as little as possible. The gateway and `limits plan` call the same
//! `Policy::decide`. The values of the `RateLimit` header fields are made here too.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use super::day::until_midnight;
use super::{Bucket, Buckets, Level, OverLimitCounters, Usage, Verdict};
use crate::clock::{Tick, seconds_up};
use crate::config::{Rate, Tier};
use crate::model::Limit;
use crate::wire::Operation;

/// The wait of a request over `in_flight`: the shortest that `Retry-After` can express.
pub(super) const IN_FLIGHT_WAIT: Duration = Duration::from_secs(1);

/// A tier in force, with its counters and the parts of its headers that never change.
#[derive(Debug)]
pub struct Policy {
    tier: Arc<Tier>,
    header: String,
    over_limit: Arc<OverLimitCounters>,
    /// When it came into force; 0: with the start.
    pub(super) since: Tick,
}

/// What the limits need to know of one request.
#[derive(Clone, Copy, Debug)]
pub struct LimitQuery {
    pub operation: Operation,
    /// Requests of the key that are under way already.
    pub in_flight: u32,
    pub now: Tick,
}

/// The outcome for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOutcome {
    /// The limit that it is over, and the time until it would be admitted if no other request comes first.
    pub over: Option<(Limit, Duration)>,
    /// Whether it is over the tier's candidate limit, which refuses nothing.
    pub over_candidate: bool,
    /// Requests counted on the UTC day before it; 0 if the tier has no `daily`.
    pub used_today: u64,
    pub levels: BucketLevels,
}

/// What a key has left after one request, for the `RateLimit` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLevels {
    pub(super) main: Level,
    /// Only for writes under a tier with `write_rate`.
    pub(super) write: Option<Level>,
    pub(super) daily: Option<Level>,
}

/// How much of its limits a key has left at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLevels {
    pub main: Level,
    /// `None`: the tier has no `write_rate`.
    pub write: Option<Level>,
    /// Requests counted on this UTC day, and how many there may be; `None`: the tier has no `daily`.
    pub daily: Option<(u64, u64)>,
    /// Requests in flight, and how many there may be, if the tier has `in_flight`.
    pub in_flight: (u32, Option<u32>),
}

/// Other buckets have replaced these and are to decide.
#[derive(Debug)]
struct Replaced;

impl Policy {
    pub fn new(tier: Arc<Tier>) -> Self {
        Self::since(Tick(0), tier, Arc::default())
    }

    /// A tier that comes into force while serving, with the counters that the tier of that name had before.
    pub fn since(since: Tick, tier: Arc<Tier>, over_limit: Arc<OverLimitCounters>) -> Self {
        let mut header = item(&tier.name, "", tier.main);
        if let Some(write) = tier.write {
            header += ", ";
            header += &item(&tier.name, "-write", write);
        }
        if let Some(daily) = tier.daily {
            let _ = write!(header, ", \"{}-daily\";q={daily};w=86400", tier.name); // a String takes everything
        }
        Policy { tier, header, over_limit, since }
    }

    pub fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    pub fn over_limit(&self) -> &Arc<OverLimitCounters> {
        &self.over_limit
    }

    /// The value of `RateLimit-Policy` (contract section 1, "Headers on answers").
    pub fn header(&self) -> &str {
        &self.header
    }

    /// What a key has left. Nothing is charged.
    pub fn levels(&self, buckets: &Buckets, usage: &Usage, now: Tick, unix: i64) -> KeyLevels {
        let tier = &*self.tier;
        KeyLevels {
            main: buckets.main.level(tier.main, now),
            write: tier.write.map(|rate| buckets.write.level(rate, now)),
            daily: tier.daily.map(|max| (usage.day.used(unix), max)),
            in_flight: (usage.in_flight(), tier.in_flight),
        }
    }

    /// Decides one request and, if it is within its limits, counts it. The order is that of the contract (section 3):
    /// `in_flight` and `daily`, which charge nothing when they refuse; the write bucket; the candidate bucket, which
    /// refuses nothing; the main bucket, so that a refusal by the write bucket charges nothing to it. The wall clock is
    /// read only if the tier has `daily`.
    ///
    /// If other buckets have replaced these, because a reload has changed the key's limits since the request came,
    /// those decide under their policy.
    pub fn decide(
        &self,
        buckets: &Buckets,
        usage: &Usage,
        query: LimitQuery,
        unix: impl Fn() -> i64 + Copy,
    ) -> LimitOutcome {
        let mut decided = self.try_decide(buckets, usage, query, unix);
        loop {
            match decided {
                Ok(decided) => return decided,
                // Repeated only if there was another reload meanwhile.
                Err(Replaced) => {
                    if let Some((policy, buckets)) = buckets.successor() {
                        decided = policy.try_decide(&buckets, usage, query, unix);
                    }
                }
            }
        }
    }

    fn try_decide(
        &self,
        buckets: &Buckets,
        usage: &Usage,
        query: LimitQuery,
        unix: impl Fn() -> i64,
    ) -> Result<LimitOutcome, Replaced> {
        let LimitQuery { operation, in_flight, now } = query;
        let tier = &*self.tier;
        let write = tier.write.filter(|_| operation.is_write());
        let day = tier.daily.map(|max| (max, unix()));
        let used_today = day.map_or(0, |(_, unix)| usage.day.used(unix));

        let mut over_candidate = false;
        let over = 'over: {
            if tier.in_flight.is_some_and(|max| in_flight >= max) {
                break 'over Some((Limit::InFlight, IN_FLIGHT_WAIT));
            }
            if day.is_some_and(|(max, _)| used_today >= max) {
                break 'over Some((Limit::Daily, Duration::ZERO));
            }
            let ask = |bucket: &Bucket, rate| match bucket.decide(rate, now) {
                Verdict::Admitted => Ok(None),
                Verdict::Refused { wait } => Ok(Some(wait)),
                Verdict::Replaced => Err(Replaced),
            };
            if let Some(rate) = write
                && let Some(wait) = ask(&buckets.write, rate)?
            {
                break 'over Some((Limit::WriteRate, wait));
            }
            if let Some(rate) = tier.candidate {
                over_candidate = ask(&buckets.candidate, rate)?.is_some();
            }
            if let Some(wait) = ask(&buckets.main, tier.main)? {
                break 'over Some((Limit::Rate, wait));
            }
            // Two requests at once may both have read a count that is one below the maximum.
            let full = day.is_some_and(|(max, unix)| !usage.day.admit(max, unix));
            full.then_some((Limit::Daily, Duration::ZERO))
        };

        let levels = BucketLevels {
            main: buckets.main.level(tier.main, now),
            write: write.map(|rate| buckets.write.level(rate, now)),
            daily: day.map(|(max, unix)| Level {
                remaining: max.saturating_sub(usage.day.used(unix)),
                next: until_midnight(unix),
            }),
        };
        Ok(self.outcome(over, over_candidate, used_today, levels))
    }

    /// Counts a decision, and returns it.
    pub(super) fn outcome(
        &self,
        over: Option<(Limit, Duration)>,
        over_candidate: bool,
        used_today: u64,
        levels: BucketLevels,
    ) -> LimitOutcome {
        if let Some((limit, _)) = over {
            self.over_limit.count_over(limit);
        }
        if over_candidate {
            self.over_limit.count_over_candidate();
        }
        let over = over.map(|(limit, wait)| (limit, wait.max(levels.wait())));
        LimitOutcome { over, over_candidate, used_today, levels }
    }

    /// Writes the value of `RateLimit`: the requests that would be admitted now, and the seconds until one more is.
    pub fn write_rate_limit(&self, levels: &BucketLevels, out: &mut Vec<u8>) {
        let mut digits = itoa::Buffer::new();
        let mut one = |out: &mut Vec<u8>, suffix: &[u8], level: Level| {
            out.push(b'"');
            out.extend_from_slice(self.tier.name.as_bytes());
            out.extend_from_slice(suffix);
            out.extend_from_slice(b"\";r=");
            out.extend_from_slice(digits.format(level.remaining).as_bytes());
            out.extend_from_slice(b";t=");
            out.extend_from_slice(digits.format(seconds_up(level.next)).as_bytes());
        };
        one(out, b"", levels.main);
        if let Some(write) = levels.write {
            out.extend_from_slice(b", ");
            one(out, b"-write", write);
        }
        if let Some(daily) = levels.daily {
            out.extend_from_slice(b", ");
            one(out, b"-daily", daily);
        }
    }
}

impl BucketLevels {
    /// The time until no bucket is empty: a caller that waits for one bucket only would come back too soon for another.
    fn wait(&self) -> Duration {
        let levels = [Some(self.main), self.write, self.daily];
        levels
            .into_iter()
            .flatten()
            .filter(|level| level.remaining == 0)
            .map(|level| level.next)
            .max()
            .unwrap_or_default()
    }
}

/// `"name";q=BURST;w=WINDOW`, the window being burst / rate in seconds, rounded up.
fn item(name: &str, suffix: &str, rate: Rate) -> String {
    let burst = rate.burst.get();
    // The period was rounded up to a whole nanosecond, which must not add a second to the window of the burst.
    let rounding = u128::from(burst) - 1;
    let window = (u128::from(rate.period_ns) * u128::from(burst) - rounding).div_ceil(1_000_000_000);
    let mut out = String::new();
    let _ = write!(out, "\"{name}{suffix}\";q={burst};w={window}");
    out
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn rate(per_second: u64, burst: u32) -> Rate {
        Rate { period_ns: 1_000_000_000 / per_second, burst: NonZeroU32::new(burst).unwrap() }
    }

    fn standard() -> Policy {
        Policy::new(Arc::new(tier("standard")))
    }

    fn tier(name: &str) -> Tier {
        let (main, write) = (rate(20, 40), Some(rate(5, 10)));
        Tier { name: name.into(), main, write, daily: None, in_flight: None, candidate: None }
    }

    /// One key under a policy, asked at whatever time, with the wall clock at noon and the tick's seconds.
    #[derive(Default)]
    struct Caller {
        buckets: Buckets,
        usage: Usage,
    }

    const NOON: i64 = 43_200;
    const SECOND: u64 = 1_000_000_000;

    impl Caller {
        fn ask(&self, policy: &Policy, operation: Operation, tick: u64) -> LimitOutcome {
            let ask = LimitQuery { operation, in_flight: 0, now: Tick(tick) };
            policy.decide(&self.buckets, &self.usage, ask, || NOON + (tick / SECOND) as i64)
        }
    }

    fn level(policy: &Policy, levels: &BucketLevels) -> String {
        let mut out = Vec::new();
        policy.write_rate_limit(levels, &mut out);
        String::from_utf8(out).unwrap()
    }

    const GET: Operation = Operation::GetPoints;
    const SET: Operation = Operation::SetPoints;

    #[test]
    fn the_headers_read_as_the_contract_shows_them() {
        let (policy, caller) = (standard(), Caller::default());
        assert_eq!(policy.header(), r#""standard";q=40;w=2, "standard-write";q=10;w=2"#);
        let decided = caller.ask(&policy, GET, 0);
        assert_eq!((decided.over, level(&policy, &decided.levels).as_str()), (None, r#""standard";r=39;t=1"#));
        let decided = caller.ask(&policy, SET, 0);
        assert_eq!(level(&policy, &decided.levels), r#""standard";r=38;t=1, "standard-write";r=9;t=1"#);
    }

    #[test]
    fn a_refusal_by_the_write_bucket_costs_the_main_one_nothing() {
        let (policy, caller) = (standard(), Caller::default());
        assert!((0..10).all(|_| caller.ask(&policy, SET, 0).over.is_none()));
        let decided = caller.ask(&policy, SET, 0);
        assert_eq!(decided.over, Some((Limit::WriteRate, Duration::from_millis(200))));
        assert_eq!(decided.levels.main.remaining, 30);
        assert_eq!(policy.over_limit().read().over[Limit::WriteRate.index()], 1);
    }

    #[test]
    fn a_day_has_its_number_of_requests_and_midnight_gives_them_back() {
        let policy = Policy::new(Arc::new(Tier { daily: Some(3), ..tier("standard") }));
        let caller = Caller::default();
        assert!(policy.header().ends_with(r#", "standard-daily";q=3;w=86400"#), "{}", policy.header());
        let used: Vec<u64> = (0..3).map(|_| caller.ask(&policy, GET, 0).used_today).collect();
        assert_eq!(used, [0, 1, 2]);
        let decided = caller.ask(&policy, SET, 0);
        assert_eq!(decided.over, Some((Limit::Daily, Duration::from_secs(43_200))));
        assert_eq!(
            (decided.levels.main.remaining, decided.levels.write.unwrap().remaining),
            (37, 10),
            "it costs nothing"
        );
        assert!(level(&policy, &decided.levels).ends_with(r#""standard-daily";r=0;t=43200"#));
        assert_eq!(caller.ask(&policy, GET, 43_199 * SECOND).over, Some((Limit::Daily, Duration::from_secs(1))));
        assert_eq!(caller.ask(&policy, GET, 43_200 * SECOND).over, None);
    }

    #[test]
    fn a_request_over_what_may_be_under_way_is_to_come_again_in_a_second() {
        let policy = Policy::new(Arc::new(Tier { in_flight: Some(2), ..tier("standard") }));
        let caller = Caller::default();
        let ask = |in_flight| {
            let ask = LimitQuery { operation: GET, in_flight, now: Tick(0) };
            policy.decide(&caller.buckets, &caller.usage, ask, || NOON)
        };
        assert_eq!(ask(1).over, None);
        let decided = ask(2);
        assert_eq!(decided.over, Some((Limit::InFlight, Duration::from_secs(1))));
        assert_eq!(decided.levels.main.remaining, 39, "it costs nothing");
    }

    #[test]
    fn a_candidate_is_decided_on_the_same_requests_and_refuses_nothing() {
        let policy = Policy::new(Arc::new(Tier { candidate: Some(rate(1, 2)), ..tier("standard") }));
        let caller = Caller::default();
        let over: Vec<bool> = (0..4)
            .map(|_| caller.ask(&policy, GET, 0))
            .map(|d| {
                assert_eq!(d.over, None);
                d.over_candidate
            })
            .collect();
        assert_eq!(over, [false, false, true, true]);
        assert_eq!(policy.over_limit().read().over_candidate, 2);
    }

    #[test]
    fn a_wait_is_long_enough_for_every_budget() {
        // The main bucket gives a second later what the write bucket gives now and then.
        let main = Rate { period_ns: 10 * SECOND, burst: NonZeroU32::MIN };
        let policy = Policy::new(Arc::new(Tier { main, ..tier("standard") }));
        let caller = Caller::default();
        assert_eq!(caller.ask(&policy, SET, 0).over, None);
        assert!((0..9).all(|_| caller.ask(&policy, SET, 0).over.is_some()));
        assert_eq!(caller.ask(&policy, SET, 0).over, Some((Limit::WriteRate, Duration::from_secs(10))));
    }
}
