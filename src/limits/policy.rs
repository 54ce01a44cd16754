use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Bucket, Level, Verdict};
use crate::clock::{Tick, seconds_up};
use crate::config::{Rate, Tier};
use crate::wire::Operation;

/// The buckets of one key under one policy. They outlive changes of the key's record; under another
/// policy there are new ones, which take over what is used up when they are first asked. (Not
/// before: until the new policy is in force, requests are still counted under the old one.)
#[derive(Debug, Default)]
pub struct Meters {
    main: Bucket,
    write: Bucket,
    /// Set once there is nothing to take over any more.
    settled: AtomicBool,
    before: Mutex<Option<(Arc<Policy>, Arc<Meters>)>>,
}

impl Meters {
    /// The buckets of a key that was held to another policy until now.
    pub fn after(policy: &Arc<Policy>, meters: &Arc<Meters>, now: Tick) -> Self {
        // Nobody may have asked since the last change; settled now, no chain of changes builds up.
        meters.settle(policy, now);
        Meters { before: Mutex::new(Some((policy.clone(), meters.clone()))), ..Meters::default() }
    }

    fn settle(&self, policy: &Policy, now: Tick) {
        if self.settled.load(Ordering::Acquire) {
            return;
        }
        let mut before = self.before.lock();
        if let Some((old, meters)) = before.take() {
            self.main.inherit(&meters.main, old.tier.main, policy.tier.main, now);
            if let (Some(from), Some(to)) = (old.tier.write, policy.tier.write) {
                self.write.inherit(&meters.write, from, to, now);
            }
        }
        self.settled.store(true, Ordering::Release);
    }

    /// Whether nothing is used up: a key that is gone need not be remembered any longer.
    pub fn are_full(&self, policy: &Policy, now: Tick) -> bool {
        self.settle(policy, now);
        self.main.is_full(now) && self.write.is_full(now)
    }
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
        meters.settle(self, now);
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
        let (old, meters) = (Arc::new(old), Arc::new(meters));
        let after = Meters::after(&old, &meters, Tick(0));
        // Still counted under the old policy, as long as that is in force.
        assert!(old.decide(&meters, GET, Tick(0)).0.is_some());
        assert!(new.decide(&after, GET, Tick(0)).0.is_some());
        assert!(!after.are_full(&new, Tick(0)));
    }
}
