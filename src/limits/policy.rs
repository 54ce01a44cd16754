//! The decision on one request: asks the limits of its key's tier in the contract's order, and says which one it is
//! over and for how long. What refuses without cost (in flight, the day) comes first, and the write bucket before the
//! main one, so that a refusal charges as little as possible. The gateway and `limits plan` call the same
//! `Policy::decide`. The values of the `RateLimit` header fields are made here too.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use super::day::until_midnight;
use super::{Bucket, Level, Meters, Tally, Usage, Verdict};
use crate::clock::{Tick, seconds_up};
use crate::config::{Rate, Tier};
use crate::model::Limit;
use crate::wire::Operation;

/// What a full set of limits in flight says: come again in the shortest time there is to say.
const IN_FLIGHT_WAIT: Duration = Duration::from_secs(1);

/// A tier as requests are held to it, with what never changes of its headers made beforehand.
#[derive(Debug)]
pub struct Policy {
    tier: Arc<Tier>,
    header: String,
    tally: Arc<Tally>,
}

/// What one request asks of its key's limits.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub operation: Operation,
    /// Requests of the key that are under way already.
    pub others: u32,
    pub now: Tick,
}

/// What a key's limits say to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The limit it is over, and how long until it would be let in, if nobody else comes first.
    pub over: Option<(Limit, Duration)>,
    /// Over the limit that is being tried out.
    pub over_candidate: bool,
    /// How much was counted on the UTC day before it; 0 where the tier does not count days.
    pub used_today: u64,
    pub spent: Spent,
}

/// What one request left of its key's budgets, for the `RateLimit` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    main: Level,
    /// Only for setPoints under a tier that limits it.
    write: Option<Level>,
    daily: Option<Level>,
}

/// The buckets were replaced by others, which are to decide.
#[derive(Debug)]
struct Replaced;

impl Policy {
    pub fn new(tier: Arc<Tier>) -> Self {
        Self::counting(tier, Arc::default())
    }

    /// As [`Policy::new`], going on with the counts of a tier of that name.
    pub fn counting(tier: Arc<Tier>, tally: Arc<Tally>) -> Self {
        let mut header = item(&tier.name, "", tier.main);
        if let Some(write) = tier.write {
            header += ", ";
            header += &item(&tier.name, "-write", write);
        }
        if let Some(daily) = tier.daily {
            let _ = write!(header, ", \"{}-daily\";q={daily};w=86400", tier.name); // a String takes everything
        }
        Policy { tier, header, tally }
    }

    pub fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// The value of `RateLimit-Policy` (contract section 1, "Headers on answers").
    pub fn header(&self) -> &str {
        &self.header
    }

    /// Decides one request and, if it is within its limits, counts it. Asked in this order: what
    /// is under way and the day, which cost nothing where they refuse; the write bucket; the candidate
    /// one, which refuses nothing; the main one, so that a refusal by the write bucket costs the main one nothing (contract
    /// section 3).
    /// The wall clock is read only where days are counted.
    ///
    /// Where others have replaced the buckets, those decide, under their policy: a reload has put the key under
    /// other limits since the request came.
    pub fn decide(&self, meters: &Meters, usage: &Usage, ask: Ask, unix: impl Fn() -> i64 + Copy) -> Decided {
        let mut decided = self.try_decide(meters, usage, ask, unix);
        loop {
            match decided {
                Ok(decided) => return decided,
                // Again only if there was another reload meanwhile.
                Err(Replaced) => {
                    if let Some((policy, meters)) = meters.successor() {
                        decided = policy.try_decide(&meters, usage, ask, unix);
                    }
                }
            }
        }
    }

    fn try_decide(
        &self,
        meters: &Meters,
        usage: &Usage,
        ask: Ask,
        unix: impl Fn() -> i64,
    ) -> Result<Decided, Replaced> {
        let Ask { operation, others, now } = ask;
        let tier = &*self.tier;
        let write = tier.write.filter(|_| operation == Operation::SetPoints);
        let day = tier.daily.map(|most| (most, unix()));
        let used_today = day.map_or(0, |(_, unix)| usage.day.used(unix));

        let mut over_candidate = false;
        let over = 'over: {
            if tier.in_flight.is_some_and(|most| others >= most) {
                break 'over Some((Limit::InFlight, IN_FLIGHT_WAIT));
            }
            if day.is_some_and(|(most, _)| used_today >= most) {
                break 'over Some((Limit::Daily, Duration::ZERO));
            }
            let ask = |bucket: &Bucket, rate| match bucket.decide(rate, now) {
                Verdict::Admitted => Ok(None),
                Verdict::Refused { wait } => Ok(Some(wait)),
                Verdict::Replaced => Err(Replaced),
            };
            if let Some(rate) = write
                && let Some(wait) = ask(&meters.write, rate)?
            {
                break 'over Some((Limit::WriteRate, wait));
            }
            if let Some(rate) = tier.candidate {
                over_candidate = ask(&meters.candidate, rate)?.is_some();
            }
            if let Some(wait) = ask(&meters.main, tier.main)? {
                break 'over Some((Limit::Rate, wait));
            }
            // Two at once may both have seen room for one.
            let full = day.is_some_and(|(most, unix)| !usage.day.admit(most, unix));
            full.then_some((Limit::Daily, Duration::ZERO))
        };

        let spent = Spent {
            main: meters.main.level(tier.main, now),
            write: write.map(|rate| meters.write.level(rate, now)),
            daily: day.map(|(most, unix)| Level {
                remaining: most.saturating_sub(usage.day.used(unix)),
                next: until_midnight(unix),
            }),
        };
        if let Some((limit, _)) = over {
            self.tally.count_over(limit);
        }
        if over_candidate {
            self.tally.count_over_candidate();
        }
        let over = over.map(|(limit, wait)| (limit, wait.max(spent.wait())));
        Ok(Decided { over, over_candidate, used_today, spent })
    }

    /// Writes the value of `RateLimit`: what would be let in now, and seconds until that grows.
    pub fn write_level(&self, spent: &Spent, out: &mut Vec<u8>) {
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
        one(out, b"", spent.main);
        if let Some(write) = spent.write {
            out.extend_from_slice(b", ");
            one(out, b"-write", write);
        }
        if let Some(daily) = spent.daily {
            out.extend_from_slice(b", ");
            one(out, b"-daily", daily);
        }
    }
}

impl Spent {
    /// How long until no budget stands in the way: told the wait of one alone, a caller would come
    /// back too soon for another.
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
    let window = (u128::from(rate.period_ns) * u128::from(burst)).div_ceil(1_000_000_000);
    let mut out = String::new();
    let _ = write!(out, "\"{name}{suffix}\";q={burst};w={window}");
    out
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::wire::Read;

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
        meters: Meters,
        usage: Usage,
    }

    const NOON: i64 = 43_200;
    const SECOND: u64 = 1_000_000_000;

    impl Caller {
        fn ask(&self, policy: &Policy, operation: Operation, tick: u64) -> Decided {
            let ask = Ask { operation, others: 0, now: Tick(tick) };
            policy.decide(&self.meters, &self.usage, ask, || NOON + (tick / SECOND) as i64)
        }
    }

    fn level(policy: &Policy, spent: &Spent) -> String {
        let mut out = Vec::new();
        policy.write_level(spent, &mut out);
        String::from_utf8(out).unwrap()
    }

    const GET: Operation = Operation::Read(Read::Points);
    const SET: Operation = Operation::SetPoints;

    #[test]
    fn the_headers_read_as_the_contract_shows_them() {
        let (policy, caller) = (standard(), Caller::default());
        assert_eq!(policy.header(), r#""standard";q=40;w=2, "standard-write";q=10;w=2"#);
        let decided = caller.ask(&policy, GET, 0);
        assert_eq!((decided.over, level(&policy, &decided.spent).as_str()), (None, r#""standard";r=39;t=1"#));
        let decided = caller.ask(&policy, SET, 0);
        assert_eq!(level(&policy, &decided.spent), r#""standard";r=38;t=1, "standard-write";r=9;t=1"#);
    }

    #[test]
    fn a_refusal_by_the_write_bucket_costs_the_main_one_nothing() {
        let (policy, caller) = (standard(), Caller::default());
        assert!((0..10).all(|_| caller.ask(&policy, SET, 0).over.is_none()));
        let decided = caller.ask(&policy, SET, 0);
        assert_eq!(decided.over, Some((Limit::WriteRate, Duration::from_millis(200))));
        assert_eq!(decided.spent.main.remaining, 30);
        assert_eq!(policy.tally().read().over[Limit::WriteRate.index()], 1);
    }

    #[test]
    fn a_day_has_so_many_requests_and_midnight_gives_them_back() {
        let policy = Policy::new(Arc::new(Tier { daily: Some(3), ..tier("standard") }));
        let caller = Caller::default();
        assert!(policy.header().ends_with(r#", "standard-daily";q=3;w=86400"#), "{}", policy.header());
        let used: Vec<u64> = (0..3).map(|_| caller.ask(&policy, GET, 0).used_today).collect();
        assert_eq!(used, [0, 1, 2]);
        let decided = caller.ask(&policy, SET, 0);
        assert_eq!(decided.over, Some((Limit::Daily, Duration::from_secs(43_200))));
        assert_eq!(
            (decided.spent.main.remaining, decided.spent.write.unwrap().remaining),
            (37, 10),
            "it costs nothing"
        );
        assert!(level(&policy, &decided.spent).ends_with(r#""standard-daily";r=0;t=43200"#));
        assert_eq!(caller.ask(&policy, GET, 43_199 * SECOND).over, Some((Limit::Daily, Duration::from_secs(1))));
        assert_eq!(caller.ask(&policy, GET, 43_200 * SECOND).over, None);
    }

    #[test]
    fn a_request_over_what_may_be_under_way_is_to_come_again_in_a_second() {
        let policy = Policy::new(Arc::new(Tier { in_flight: Some(2), ..tier("standard") }));
        let caller = Caller::default();
        let ask = |others| {
            let ask = Ask { operation: GET, others, now: Tick(0) };
            policy.decide(&caller.meters, &caller.usage, ask, || NOON)
        };
        assert_eq!(ask(1).over, None);
        let decided = ask(2);
        assert_eq!(decided.over, Some((Limit::InFlight, Duration::from_secs(1))));
        assert_eq!(decided.spent.main.remaining, 39, "it costs nothing");
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
        assert_eq!(policy.tally().read().over_candidate, 2);
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
