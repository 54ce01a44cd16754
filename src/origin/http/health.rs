//! The health of one backend, as its requests and health checks show it: when it is ejected, and when it comes back.
//! Pure: each event returns what changed, and time is an argument.

use std::time::Duration;

use crate::clock::Tick;
use crate::config::Health;

/// Requests in a row without an answer that eject a backend. One or two are a restart or bad luck; each more costs a
/// caller.
const MAX_FAILURES: u32 = 3;

/// How long a backend that requests ejected is not probed. While it accepts connections and answers nothing, one
/// request in that time is lost to it; where it accepts none, no request is.
pub(super) const PROBE_AFTER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthState {
    Healthy,
    /// Back, but without an answered request yet: it gets one request at a time, and the first failure ejects it.
    Probation,
    /// Used only where no other backend can be.
    Ejected,
}

/// A change that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    Ejected,
    Restored,
}

#[derive(Clone, Debug)]
pub(super) struct HealthRecord {
    state: HealthState,
    /// Requests in a row without an answer.
    failures: u32,
    /// Health checks in a row whose result contradicts the state.
    opposing_checks: u32,
    /// When it was ejected, or last probed since.
    last_probe: Tick,
}

impl Default for HealthRecord {
    fn default() -> Self {
        HealthRecord { state: HealthState::Healthy, failures: 0, opposing_checks: 0, last_probe: Tick::default() }
    }
}

impl HealthRecord {
    pub(super) fn state(&self) -> HealthState {
        self.state
    }

    /// Whether [`HealthRecord::request_answered`] would change nothing.
    pub(super) fn has_no_failures(&self) -> bool {
        self.state == HealthState::Healthy && self.failures == 0
    }

    /// A request was answered. With health checks, only they restore an ejected backend: one that fails its checks in
    /// order to get no requests may answer all the same.
    pub(super) fn request_answered(&mut self, has_checks: bool) -> Option<Transition> {
        self.failures = 0;
        match self.state {
            HealthState::Healthy | HealthState::Probation => {
                self.state = HealthState::Healthy;
                None
            }
            HealthState::Ejected if has_checks => None,
            HealthState::Ejected => Some(self.restore(HealthState::Healthy)),
        }
    }

    /// Whether enough requests, or health checks by `rules`, failed to eject it. The last available backend stays in
    /// use all the same.
    pub(super) fn is_failing(&self, rules: Option<&Health>) -> bool {
        let max_failures = if self.state == HealthState::Probation { 1 } else { MAX_FAILURES };
        let checks_fail = self.state != HealthState::Ejected && rules.is_some_and(|r| self.opposing_checks >= r.fall);
        self.failures >= max_failures || checks_fail
    }

    /// A request was not answered. The last available backend is never ejected.
    pub(super) fn request_failed(&mut self, now: Tick, is_last: bool) -> Option<Transition> {
        self.failures = self.failures.saturating_add(1);
        (self.state != HealthState::Ejected && self.is_failing(None) && !is_last).then(|| self.eject(now))
    }

    /// A health check passed or failed.
    pub(super) fn check_ended(&mut self, passed: bool, rules: &Health, now: Tick, is_last: bool) -> Option<Transition> {
        let is_ejected = self.state == HealthState::Ejected;
        if passed != is_ejected {
            self.opposing_checks = 0;
            return None;
        }
        self.opposing_checks = self.opposing_checks.saturating_add(1);
        match is_ejected {
            true => (self.opposing_checks >= rules.rise).then(|| self.restore(HealthState::Probation)),
            false => (self.opposing_checks >= rules.fall && !is_last).then(|| self.eject(now)),
        }
    }

    /// Whether it is ejected and was not probed for long enough.
    pub(super) fn is_probe_due(&self, now: Tick) -> bool {
        self.state == HealthState::Ejected && now.since(self.last_probe) >= PROBE_AFTER
    }

    /// A probe could or could not connect.
    pub(super) fn probed(&mut self, connected: bool, now: Tick) -> Option<Transition> {
        self.last_probe = now;
        (self.state == HealthState::Ejected && connected).then(|| self.restore(HealthState::Probation))
    }

    /// No other backend is available.
    pub(super) fn became_last(&mut self) -> Option<Transition> {
        (self.state == HealthState::Ejected).then(|| self.restore(HealthState::Probation))
    }

    fn eject(&mut self, now: Tick) -> Transition {
        *self = HealthRecord { state: HealthState::Ejected, last_probe: now, ..HealthRecord::default() };
        Transition::Ejected
    }

    fn restore(&mut self, state: HealthState) -> Transition {
        *self = HealthRecord { state, last_probe: self.last_probe, ..HealthRecord::default() };
        Transition::Restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Tick = Tick(1_000_000_000);
    const RULES: Health = Health { path: String::new(), interval: Duration::from_secs(5), fall: 3, rise: 2 };

    fn ejected() -> HealthRecord {
        let mut record = HealthRecord::default();
        record.eject(NOW);
        record
    }

    #[test]
    fn failures_in_a_row_eject_one_and_an_answer_between_them_resets_the_count() {
        let mut record = HealthRecord::default();
        for _ in 0..2 {
            assert_eq!(record.request_failed(NOW, false), None);
        }
        assert_eq!(record.request_answered(false), None);
        for _ in 0..2 {
            assert_eq!(record.request_failed(NOW, false), None);
        }
        assert_eq!(record.request_failed(NOW, false), Some(Transition::Ejected));
        assert_eq!(record.request_failed(NOW, false), None, "it is logged once");
    }

    #[test]
    fn the_last_one_is_never_ejected_until_another_is_back() {
        let mut record = HealthRecord::default();
        for _ in 0..100 {
            assert_eq!(record.request_failed(NOW, true), None);
            assert_eq!(record.check_ended(false, &RULES, NOW, true), None);
        }
        assert_eq!(record.state(), HealthState::Healthy);
        assert_eq!(record.clone().request_failed(NOW, false), Some(Transition::Ejected));
        assert_eq!(record.check_ended(false, &RULES, NOW, false), Some(Transition::Ejected));
    }

    #[test]
    fn the_last_one_is_failing_after_as_many_failures_as_eject_another() {
        let mut record = HealthRecord::default();
        for failures in 1..=MAX_FAILURES {
            record.request_failed(NOW, true);
            assert_eq!(record.is_failing(None), failures == MAX_FAILURES, "{failures} failures");
        }
        record.request_answered(true);
        assert!(!record.is_failing(Some(&RULES)));
        for failed in 1..=RULES.fall {
            record.check_ended(false, &RULES, NOW, true);
            assert_eq!(record.is_failing(Some(&RULES)), failed == RULES.fall, "{failed} checks");
        }
        assert!(!record.is_failing(None), "a reload has removed the checks");
        record.check_ended(true, &RULES, NOW, true);
        assert!(!record.is_failing(Some(&RULES)));
        let mut on_probation = ejected();
        on_probation.became_last();
        assert!(!on_probation.is_failing(None));
        on_probation.request_failed(NOW, true);
        assert!(on_probation.is_failing(None));
    }

    #[test]
    fn without_checks_one_is_probed_after_its_time_and_comes_back_on_probation() {
        let mut record = ejected();
        let later = NOW.plus(PROBE_AFTER);
        assert!(!record.is_probe_due(Tick(later.0 - 1)) && record.is_probe_due(later));
        assert_eq!(record.probed(false, later), None);
        assert!(!record.is_probe_due(later) && record.is_probe_due(later.plus(PROBE_AFTER)));
        assert_eq!(record.probed(true, later), Some(Transition::Restored));
        assert_eq!(record.state(), HealthState::Probation);
        // On probation one failure is enough, and one answer as well.
        assert_eq!(record.clone().request_failed(later, false), Some(Transition::Ejected));
        assert_eq!(record.request_answered(false), None);
        assert_eq!(record.state(), HealthState::Healthy);
        assert_eq!(record.request_failed(later, false), None);
    }

    #[test]
    fn checks_eject_after_fall_and_restore_after_rise_in_a_row() {
        let mut record = HealthRecord::default();
        for (passed, change) in [
            (false, None),
            (false, None),
            (true, None),
            (false, None),
            (false, None),
            (false, Some(Transition::Ejected)),
            (false, None),
            (true, None),
            (false, None),
            (true, None),
            (true, Some(Transition::Restored)),
        ] {
            assert_eq!(record.check_ended(passed, &RULES, NOW, false), change);
        }
    }

    #[test]
    fn an_answer_restores_an_ejected_one_unless_there_are_checks() {
        assert_eq!(ejected().request_answered(false), Some(Transition::Restored));
        assert_eq!(ejected().request_answered(true), None);
    }

    #[test]
    fn one_that_became_the_last_comes_back() {
        assert_eq!(ejected().became_last(), Some(Transition::Restored));
        assert_eq!(HealthRecord::default().became_last(), None);
    }
}
