//! Which upstream is asked next. Pure.

use super::standing::Standing;

/// The most addresses that are asked: what one request has tried is one bit each.
pub(super) const MAX_BACKENDS: usize = 64;

/// What one request has tried so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tried {
    /// Nothing could be sent to them: not again.
    unreachable: u64,
    /// They were asked and said nothing: again only before what is out.
    silent: u64,
}

impl Tried {
    pub(super) fn unreachable(&mut self, at: usize) {
        self.unreachable |= 1 << at;
    }

    pub(super) fn silent(&mut self, at: usize) {
        self.silent |= 1 << at;
    }
}

/// The best of those there are, each by its standing and the requests at it now: the one with the
/// fewest. Who answers quickly has few and gets more; who stalls keeps those it has and gets no
/// more than the others have. Among equals the one at `from` or next after it, so that they take
/// turns.
pub(super) fn choose(
    there: impl ExactSizeIterator<Item = (Standing, usize)>,
    from: usize,
    tried: Tried,
) -> Option<usize> {
    let count = there.len();
    let rated = there.enumerate().filter(|(at, _)| tried.unreachable & (1 << at) == 0);
    let rated = rated.map(|(at, (standing, in_flight))| {
        let was_silent = tried.silent & (1 << at) != 0;
        let rank = match standing {
            Standing::Out => 3,
            _ if was_silent => 2,
            Standing::Trial if in_flight > 0 => 1,
            Standing::In | Standing::Trial => 0,
        };
        let turn = (at + count - from % count) % count;
        ((rank, in_flight, turn), at)
    });
    rated.min().map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::Standing::*;
    use super::*;

    fn chosen(there: &[(Standing, usize)], from: usize, tried: Tried) -> Option<usize> {
        choose(there.iter().copied(), from, tried)
    }

    #[test]
    fn equals_take_turns() {
        let turns: Vec<_> = (0..6).map(|from| chosen(&[(In, 0), (In, 0), (In, 0)], from, Tried::default())).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2].map(Some));
        assert_eq!(chosen(&[(In, 0)], usize::MAX, Tried::default()), Some(0));
        assert_eq!(chosen(&[], 3, Tried::default()), None);
    }

    #[test]
    fn the_one_with_the_fewest_requests_is_asked_so_one_that_stalls_gets_no_more() {
        for from in 0..3 {
            assert_eq!(chosen(&[(In, 9), (In, 1), (In, 2)], from, Tried::default()), Some(1));
        }
    }

    #[test]
    fn one_on_trial_is_asked_one_thing_at_a_time() {
        assert_eq!(chosen(&[(Trial, 0), (In, 2)], 1, Tried::default()), Some(0));
        assert_eq!(chosen(&[(Trial, 1), (In, 50)], 0, Tried::default()), Some(1));
        assert_eq!(chosen(&[(Trial, 1), (Out, 0)], 0, Tried::default()), Some(0));
    }

    #[test]
    fn what_is_out_is_asked_only_where_nobody_else_can_be() {
        assert_eq!(chosen(&[(Out, 0), (In, 99)], 0, Tried::default()), Some(1));
        let mut tried = Tried::default();
        tried.silent(1);
        assert_eq!(chosen(&[(Out, 0), (In, 99)], 0, tried), Some(1), "it may answer on another connection");
        tried.unreachable(1);
        assert_eq!(chosen(&[(Out, 0), (In, 99)], 0, tried), Some(0));
        tried.unreachable(0);
        assert_eq!(chosen(&[(Out, 0), (In, 99)], 0, tried), None);
    }

    #[test]
    fn one_that_was_silent_is_asked_again_only_after_the_others() {
        let mut tried = Tried::default();
        tried.silent(0);
        assert_eq!(chosen(&[(In, 0), (In, 7)], 0, tried), Some(1));
        assert_eq!(chosen(&[(In, 0), (Trial, 7)], 0, tried), Some(1));
        assert_eq!(chosen(&[(In, 0)], 0, tried), Some(0));
    }
}
