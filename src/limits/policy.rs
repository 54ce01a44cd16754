use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use super::{Bucket, Level, Verdict};
use crate::clock::{Tick, seconds_up};
use crate::config::{Rate, Tier};
use crate::wire::Operation;

/// The buckets of one key. They outlive reloads and changes of the key's record.
#[derive(Debug, Default)]
pub struct Meters {
    main: Bucket,
    write: Bucket,
}

/// A tier as requests are held to it, with what never changes of its headers made beforehand.
#[derive(Debug, PartialEq)]
pub struct Policy {
    tier: Arc<Tier>,
    header: String,
}

/// What one request did to its key's buckets, for the `RateLimit` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    main: Level,
    /// Only for setPoints under a tier that limits it.
    write: Option<Level>,
}

impl Policy {
    pub fn new(tier: Arc<Tier>) -> Self {
        let mut header = item(&tier.name, "", tier.main);
        if let Some(write) = tier.write {
            header += ", ";
            header += &item(&tier.name, "-write", write);
        }
        Policy { tier, header }
    }

    pub fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    /// The value of `RateLimit-Policy` (contract section 1, "Headers on answers").
    pub fn header(&self) -> &str {
        &self.header
    }

    /// Asks the write bucket first, then the main one: a refusal by the write bucket costs the
    /// main one nothing (contract section 3). `Some` is how long to wait.
    pub fn decide(&self, meters: &Meters, operation: Operation, now: Tick) -> (Option<Duration>, Spent) {
        let write = self.tier.write.filter(|_| operation == Operation::SetPoints);
        let by_write = write.map(|rate| meters.write.decide(rate, now));
        let verdict = match by_write {
            Some(Verdict::Refused { wait }) => {
                // The wait is the longer of the two, or the answer would send the caller back too soon.
                let main = meters.main.level(self.tier.main, now);
                let main_wait = if main.remaining == 0 { main.next } else { Duration::ZERO };
                Verdict::Refused { wait: wait.max(main_wait) }
            }
            Some(Verdict::Admitted) | None => meters.main.decide(self.tier.main, now),
        };
        let spent = Spent {
            main: meters.main.level(self.tier.main, now),
            write: write.map(|rate| meters.write.level(rate, now)),
        };
        match verdict {
            Verdict::Admitted => (None, spent),
            Verdict::Refused { wait } => {
                // Refused by the main bucket alone: the write bucket was charged, and may now be the later one.
                let write_wait = spent.write.filter(|w| w.remaining == 0).map_or(Duration::ZERO, |w| w.next);
                (Some(wait.max(write_wait)), spent)
            }
        }
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
    }

    /// Carries what is used up of `meters` from the policy it was counted under to this one.
    pub fn take_over(&self, meters: &Meters, before: &Policy, now: Tick) {
        meters.main.carry(before.tier.main, self.tier.main, now);
        if let (Some(from), Some(to)) = (before.tier.write, self.tier.write) {
            meters.write.carry(from, to, now);
        }
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
        Policy::new(Arc::new(Tier { name: "standard".into(), main: rate(20, 40), write: Some(rate(5, 10)) }))
    }

    fn level(policy: &Policy, spent: &Spent) -> String {
        let mut out = Vec::new();
        policy.write_level(spent, &mut out);
        String::from_utf8(out).unwrap()
    }

    const GET: Operation = Operation::Read(Read::Points);

    #[test]
    fn the_headers_read_as_the_contract_shows_them() {
        let (policy, meters) = (standard(), Meters::default());
        assert_eq!(policy.header(), r#""standard";q=40;w=2, "standard-write";q=10;w=2"#);
        let (refused, spent) = policy.decide(&meters, GET, Tick(0));
        assert_eq!((refused, level(&policy, &spent).as_str()), (None, r#""standard";r=39;t=1"#));
        let (_, spent) = policy.decide(&meters, Operation::SetPoints, Tick(0));
        assert_eq!(level(&policy, &spent), r#""standard";r=38;t=1, "standard-write";r=9;t=1"#);
    }

    #[test]
    fn a_refusal_by_the_write_bucket_costs_the_main_one_nothing() {
        let (policy, meters) = (standard(), Meters::default());
        for _ in 0..10 {
            assert_eq!(policy.decide(&meters, Operation::SetPoints, Tick(0)).0, None);
        }
        let (refused, spent) = policy.decide(&meters, Operation::SetPoints, Tick(0));
        assert_eq!(refused, Some(Duration::from_millis(200)));
        assert_eq!(spent.main.remaining, 30);
    }

    #[test]
    fn a_reload_with_another_tier_refills_no_bucket() {
        let (old, meters) = (standard(), Meters::default());
        for _ in 0..40 {
            old.decide(&meters, GET, Tick(0));
        }
        let new = Policy::new(Arc::new(Tier { name: "gold".into(), main: rate(100, 400), write: None }));
        new.take_over(&meters, &old, Tick(0));
        assert!(new.decide(&meters, GET, Tick(0)).0.is_some());
    }
}
