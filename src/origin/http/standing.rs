//! Whether an upstream is asked: put out where it fails, brought back where it does not. Pure: what
//! happened is told, and time is an argument.

use std::time::Duration;

use crate::clock::Tick;
use crate::config::Health;

/// Requests in a row that got nothing from an upstream and put it out. One or two are a restart or
/// bad luck; each more costs a caller.
const MOST_FAILURES: u32 = 3;

/// How long an upstream that requests put out is left alone. While it takes connections and answers
/// nothing, that is how often one request is spent on it; where it takes none, no request is.
pub(super) const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Standing {
    In,
    /// Back, but not yet asked: one request at a time, and the first failure puts it out again.
    Trial,
    /// Asked only where nobody else can be.
    Out,
}

/// What changed, to be told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    PutOut,
    Back,
}

/// What is known of one upstream.
#[derive(Clone, Debug)]
pub(super) struct Record {
    standing: Standing,
    /// Requests in a row that got nothing.
    failures: u32,
    /// Checks in a row that speak against the standing.
    against: u32,
    /// When it was put out, or last tried since.
    left_alone: Tick,
}

impl Default for Record {
    fn default() -> Self {
        Record { standing: Standing::In, failures: 0, against: 0, left_alone: Tick::default() }
    }
}

impl Record {
    pub(super) fn standing(&self) -> Standing {
        self.standing
    }

    /// Whether an answer would change nothing here.
    pub(super) fn is_clean(&self) -> bool {
        self.standing == Standing::In && self.failures == 0
    }

    /// A request was answered. Where there are checks, only they bring back what is out: an upstream
    /// that asks to be left alone by failing them may answer all the same.
    pub(super) fn answered(&mut self, has_checks: bool) -> Option<Change> {
        self.failures = 0;
        match self.standing {
            Standing::In => None,
            Standing::Trial => {
                self.standing = Standing::In;
                None
            }
            Standing::Out if has_checks => None,
            Standing::Out => Some(self.back(Standing::In)),
        }
    }

    /// A request got nothing. The last upstream is never put out (`alone`).
    pub(super) fn failed(&mut self, now: Tick, alone: bool) -> Option<Change> {
        self.failures = self.failures.saturating_add(1);
        let enough = self.standing == Standing::Trial || self.failures >= MOST_FAILURES;
        (self.standing != Standing::Out && enough && !alone).then(|| self.out(now))
    }

    /// A check went well or not.
    pub(super) fn checked(&mut self, well: bool, rules: &Health, now: Tick, alone: bool) -> Option<Change> {
        let is_out = self.standing == Standing::Out;
        if well != is_out {
            self.against = 0;
            return None;
        }
        self.against = self.against.saturating_add(1);
        match is_out {
            true => (self.against >= rules.rise).then(|| self.back(Standing::Trial)),
            false => (self.against >= rules.fall && !alone).then(|| self.out(now)),
        }
    }

    /// Whether it is out and was left alone long enough.
    pub(super) fn is_due(&self, now: Tick) -> bool {
        self.standing == Standing::Out && now.since(self.left_alone) >= TRY_AGAIN_AFTER
    }

    /// A connection to it was tried, aside of requests.
    pub(super) fn tried(&mut self, connected: bool, now: Tick) -> Option<Change> {
        self.left_alone = now;
        (self.standing == Standing::Out && connected).then(|| self.back(Standing::Trial))
    }

    /// Nobody else is left.
    pub(super) fn is_needed(&mut self) -> Option<Change> {
        (self.standing == Standing::Out).then(|| self.back(Standing::Trial))
    }

    fn out(&mut self, now: Tick) -> Change {
        *self = Record { standing: Standing::Out, failures: 0, against: 0, left_alone: now };
        Change::PutOut
    }

    fn back(&mut self, standing: Standing) -> Change {
        (self.standing, self.failures, self.against) = (standing, 0, 0);
        Change::Back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Tick = Tick(1_000_000_000);
    const RULES: Health = Health { path: String::new(), interval: Duration::from_secs(5), fall: 3, rise: 2 };

    fn out() -> Record {
        let mut record = Record::default();
        record.out(NOW);
        record
    }

    #[test]
    fn failures_in_a_row_put_one_out_and_an_answer_between_begins_anew() {
        let mut record = Record::default();
        for _ in 0..2 {
            assert_eq!(record.failed(NOW, false), None);
        }
        assert_eq!(record.answered(false), None);
        for _ in 0..2 {
            assert_eq!(record.failed(NOW, false), None);
        }
        assert_eq!(record.failed(NOW, false), Some(Change::PutOut));
        assert_eq!(record.failed(NOW, false), None, "it is told once");
    }

    #[test]
    fn the_last_one_is_never_put_out_until_another_is_back() {
        let mut record = Record::default();
        for _ in 0..100 {
            assert_eq!(record.failed(NOW, true), None);
            assert_eq!(record.checked(false, &RULES, NOW, true), None);
        }
        assert_eq!(record.standing(), Standing::In);
        assert_eq!(record.clone().failed(NOW, false), Some(Change::PutOut));
        assert_eq!(record.checked(false, &RULES, NOW, false), Some(Change::PutOut));
    }

    #[test]
    fn without_checks_one_is_tried_again_after_its_time_and_comes_back_on_trial() {
        let mut record = out();
        let later = NOW.plus(TRY_AGAIN_AFTER);
        assert!(!record.is_due(Tick(later.0 - 1)) && record.is_due(later));
        assert_eq!(record.tried(false, later), None);
        assert!(!record.is_due(later) && record.is_due(later.plus(TRY_AGAIN_AFTER)));
        assert_eq!(record.tried(true, later), Some(Change::Back));
        assert_eq!(record.standing(), Standing::Trial);
        // On trial one failure is enough, and one answer as well.
        assert_eq!(record.clone().failed(later, false), Some(Change::PutOut));
        assert_eq!(record.answered(false), None);
        assert_eq!(record.standing(), Standing::In);
        assert_eq!(record.failed(later, false), None);
    }

    #[test]
    fn checks_put_out_after_fall_and_bring_back_after_rise_in_a_row() {
        let mut record = Record::default();
        for (well, change) in [
            (false, None),
            (false, None),
            (true, None),
            (false, None),
            (false, None),
            (false, Some(Change::PutOut)),
            (false, None),
            (true, None),
            (false, None),
            (true, None),
            (true, Some(Change::Back)),
        ] {
            assert_eq!(record.checked(well, &RULES, NOW, false), change);
        }
    }

    #[test]
    fn an_answer_brings_back_what_is_out_unless_there_are_checks() {
        assert_eq!(out().answered(false), Some(Change::Back));
        assert_eq!(out().answered(true), None);
    }

    #[test]
    fn one_that_nobody_else_can_stand_in_for_comes_back() {
        assert_eq!(out().is_needed(), Some(Change::Back));
        assert_eq!(Record::default().is_needed(), None);
    }
}
