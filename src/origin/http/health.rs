//! Whether one address of an upstream is in use, as its requests and its health checks show. A few atomics, so that no
//! request waits for another; that an address which is down is used where no other is up is the choice's rule, not a state.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::clock::Tick;
use crate::config;

/// Requests in a row without an answer after which it is down. One or two are a restart or bad luck; each more costs a
/// caller.
const MAX_FAILURES: u32 = 3;

/// How long it is down then, until one request tries it again.
const DOWN_FOR: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Health {
    /// Requests in a row without an answer.
    failures: AtomicU32,
    /// From when on a request may try it again, as a [`Tick`]; 0: it is not down.
    down_until: AtomicU64,
    /// Checks in a row that failed; below 0, so many have to pass until it is up again.
    checks: AtomicI64,
}

impl Health {
    /// `has_checks`: a reload may have removed the checks since they failed.
    pub(super) fn is_up(&self, has_checks: bool) -> bool {
        self.down_until.load(Relaxed) == 0 && !(has_checks && self.checks.load(Relaxed) < 0)
    }

    /// Whether the request at hand is the one that tries it again: it was down for long enough, and no other was faster.
    pub(super) fn begin_trial(&self, now: Tick, has_checks: bool) -> bool {
        let until = self.down_until.load(Relaxed);
        let is_due = until != 0 && until <= now.0 && !(has_checks && self.checks.load(Relaxed) < 0);
        is_due && self.down_until.compare_exchange(until, now.plus(DOWN_FOR).0, Relaxed, Relaxed).is_ok()
    }

    /// A request was answered. Returns whether it was down.
    pub(super) fn answered(&self) -> bool {
        if self.failures.load(Relaxed) == 0 && self.down_until.load(Relaxed) == 0 {
            return false;
        }
        self.failures.store(0, Relaxed);
        self.down_until.swap(0, Relaxed) != 0
    }

    /// A request was not answered. Returns whether it is down since then.
    pub(super) fn failed(&self, now: Tick) -> bool {
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        failures >= MAX_FAILURES && self.down_until.swap(now.plus(DOWN_FOR).0, Relaxed) == 0
    }

    /// A health check passed or failed; one at a time is made. Returns whether that put it out or brought it back.
    pub(super) fn checked(&self, passed: bool, rules: &config::Health) -> bool {
        let before = self.checks.load(Relaxed);
        let after = match passed {
            true if before < 0 => before + 1,
            true => 0,
            false if (0..i64::from(rules.fall) - 1).contains(&before) => before + 1,
            false => -i64::from(rules.rise),
        };
        self.checks.store(after, Relaxed);
        (before < 0) != (after < 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Tick = Tick(1_000_000_000);

    fn down() -> Health {
        let health = Health::default();
        assert_eq!([(); 4].map(|()| health.failed(NOW)), [false, false, true, false], "it is told once");
        health
    }

    #[test]
    fn three_failures_in_a_row_put_one_out_and_an_answer_between_them_does_not() {
        let health = Health::default();
        for _ in 0..2 {
            assert!(!health.failed(NOW) && !health.failed(NOW));
            assert!(!health.answered());
        }
        assert!(health.is_up(true) && !down().is_up(true));
    }

    #[test]
    fn one_request_tries_it_again_in_each_five_seconds_and_an_answer_brings_it_back() {
        let (health, due) = (down(), NOW.plus(DOWN_FOR));
        assert!(!health.begin_trial(Tick(due.0 - 1), true));
        assert!(health.begin_trial(due, true) && !health.begin_trial(due, true), "one wins");
        assert!(!health.failed(due) && !health.is_up(true));
        let due = due.plus(DOWN_FOR);
        assert!(health.begin_trial(due, true) && !health.is_up(true));
        assert!(health.answered() && health.is_up(true));
        assert!(!health.failed(due) && health.is_up(true));
    }

    #[test]
    fn checks_put_one_out_after_fall_and_bring_it_back_after_rise_in_a_row() {
        let rules = config::Health { path: String::new(), interval: DOWN_FOR, fall: 3, rise: 2 };
        let health = Health::default();
        for (passed, is_up) in [
            (false, true),
            (false, true),
            (true, true),
            (false, true),
            (false, true),
            (false, false),
            (false, false),
            (true, false),
            (false, false),
            (true, false),
            (true, true),
        ] {
            let changes = health.is_up(true) != is_up;
            assert_eq!((health.checked(passed, &rules), health.is_up(true)), (changes, is_up));
            assert!(health.is_up(false), "a reload has removed the checks");
        }
        let health = down();
        assert_eq!([(); 3].map(|()| health.checked(false, &rules)), [false, false, true]);
        assert!(!health.begin_trial(NOW.plus(DOWN_FOR), true) && health.begin_trial(NOW.plus(DOWN_FOR), false));
    }
}
