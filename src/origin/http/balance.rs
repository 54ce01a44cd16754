//! Which backend gets the next request: the healthy one with the fewest requests in flight. Pure: state goes in, a
//! choice comes out.

use super::health::HealthState;

/// The most addresses that are used: what one request has tried is one bit for each.
pub(super) const MAX_BACKENDS: usize = 64;

/// The backends that one request has tried so far, by their numbers in the list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tried {
    /// Nothing could be sent to them: they are not tried again.
    unreachable: u64,
    /// They got the request and did not answer: they are tried again only when no healthy one is left.
    silent: u64,
}

impl Tried {
    pub(super) fn mark_unreachable(&mut self, at: usize) {
        self.unreachable |= 1 << at;
    }

    pub(super) fn unreachable(self) -> u32 {
        self.unreachable.count_ones()
    }

    pub(super) fn mark_silent(&mut self, at: usize) {
        self.silent |= 1 << at;
    }
}

/// The number of the backend to use, each given by its health and its requests in flight. A backend that answers
/// quickly has few requests and gets more of them; one that stalls gets no more than the others have. Equals take turns,
/// beginning at `first`.
pub(super) fn least_loaded(
    backends: impl ExactSizeIterator<Item = (HealthState, usize)>,
    first: usize,
    tried: Tried,
) -> Option<usize> {
    let count = backends.len();
    let usable = backends.enumerate().filter(|(at, _)| tried.unreachable & (1 << at) == 0);
    let ranked = usable.map(|(at, (health, in_flight))| {
        let was_silent = tried.silent & (1 << at) != 0;
        let rank = match health {
            HealthState::Ejected => 3,
            _ if was_silent => 2,
            HealthState::Probation if in_flight > 0 => 1,
            HealthState::Healthy | HealthState::Probation => 0,
        };
        let turn = (at + count - first % count) % count;
        ((rank, in_flight, turn), at)
    });
    ranked.min().map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::HealthState::*;
    use super::*;

    fn chosen(backends: &[(HealthState, usize)], first: usize, tried: Tried) -> Option<usize> {
        least_loaded(backends.iter().copied(), first, tried)
    }

    #[test]
    fn equals_take_turns() {
        let equals = [(Healthy, 0), (Healthy, 0), (Healthy, 0)];
        let turns: Vec<_> = (0..6).map(|first| chosen(&equals, first, Tried::default())).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2].map(Some));
        assert_eq!(chosen(&[(Healthy, 0)], usize::MAX, Tried::default()), Some(0));
        assert_eq!(chosen(&[], 3, Tried::default()), None);
    }

    #[test]
    fn the_one_with_the_fewest_requests_is_used_so_one_that_stalls_gets_no_more() {
        for first in 0..3 {
            assert_eq!(chosen(&[(Healthy, 9), (Healthy, 1), (Healthy, 2)], first, Tried::default()), Some(1));
        }
    }

    #[test]
    fn one_on_probation_gets_one_request_at_a_time() {
        assert_eq!(chosen(&[(Probation, 0), (Healthy, 2)], 1, Tried::default()), Some(0));
        assert_eq!(chosen(&[(Probation, 1), (Healthy, 50)], 0, Tried::default()), Some(1));
        assert_eq!(chosen(&[(Probation, 1), (Ejected, 0)], 0, Tried::default()), Some(0));
    }

    #[test]
    fn an_ejected_one_is_used_only_where_no_other_can_be() {
        assert_eq!(chosen(&[(Ejected, 0), (Healthy, 99)], 0, Tried::default()), Some(1));
        let mut tried = Tried::default();
        tried.mark_silent(1);
        assert_eq!(chosen(&[(Ejected, 0), (Healthy, 99)], 0, tried), Some(1), "it may answer on another connection");
        tried.mark_unreachable(1);
        assert_eq!(chosen(&[(Ejected, 0), (Healthy, 99)], 0, tried), Some(0));
        tried.mark_unreachable(0);
        assert_eq!(chosen(&[(Ejected, 0), (Healthy, 99)], 0, tried), None);
    }

    #[test]
    fn one_that_was_silent_is_used_again_only_after_the_others() {
        let mut tried = Tried::default();
        tried.mark_silent(0);
        assert_eq!(chosen(&[(Healthy, 0), (Healthy, 7)], 0, tried), Some(1));
        assert_eq!(chosen(&[(Healthy, 0), (Probation, 7)], 0, tried), Some(1));
        assert_eq!(chosen(&[(Healthy, 0)], 0, tried), Some(0));
    }
}
