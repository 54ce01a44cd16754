//! The last refusals of each code, for people who ask why a request was refused. A request never waits for it: where
//! two are refused at the very same moment, one of them may be left out.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::AccessLine;

/// The codes of the contract, up to 22.
const CODES: usize = 23;

/// Refusals that are kept of each code, so that a flood of one does not hide the others. Each has some 200 bytes.
const KEPT: usize = 50;

#[derive(Debug, Default)]
pub struct LastRefusals([Mutex<VecDeque<AccessLine>>; CODES]);

impl LastRefusals {
    pub(super) fn add(&self, outcome: &AccessLine) {
        let of_code = outcome.code.and_then(|code| self.0.get(usize::from(code)));
        let Some(mut last) = of_code.and_then(Mutex::try_lock) else { return };
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(outcome.clone());
    }

    /// All that are kept, the latest first.
    pub fn list(&self) -> Vec<AccessLine> {
        let mut all: Vec<AccessLine> =
            self.0.iter().flat_map(|last| last.lock().iter().cloned().collect::<Vec<_>>()).collect();
        all.sort_by_key(|outcome| std::cmp::Reverse(outcome.unix_ms));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::access_line::tests::example;

    #[test]
    fn a_flood_of_one_code_does_not_hide_another() {
        let last = LastRefusals::default();
        let outcome = |unix_ms, code| AccessLine { unix_ms, code, ..example() };
        last.add(&outcome(0, None));
        last.add(&outcome(1, Some(12)));
        (2..1000).for_each(|unix_ms| last.add(&outcome(unix_ms, Some(2))));
        let times: Vec<i64> = last.list().iter().map(|outcome| outcome.unix_ms).collect();
        assert_eq!(times, (950..1000).rev().chain([1]).collect::<Vec<i64>>());
    }
}
