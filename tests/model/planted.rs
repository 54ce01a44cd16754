//! Bugs that were thought of, planted one at a time: a check that passes with one of them is none.

use crate::scenarios::{a_hand_over, a_reload, a_write, a_write_of_unknown_outcome};
use crate::world::Way;

/// The most tries a bug is given; each is caught within a tenth of them.
const MOST: usize = 100_000;

macro_rules! is_caught {
    ($($test:ident: $scenario:ident, $way:ident;)*) => { $(
        #[test]
        #[should_panic(expected = "not linearizable")]
        fn $test() {
            shuttle::check_random(|| $scenario(Way::$way), MOST);
        }
    )* };
}

is_caught! {
    an_answer_kept_across_a_write_is_caught: a_write, KeptAcrossAWrite;
    a_sent_flight_joined_under_ask_is_caught: a_write, SentFlightJoined;
    no_ask_while_a_write_is_under_way_is_caught: a_write, NoAskDuringAWrite;
    no_ask_after_an_unknown_outcome_is_caught: a_write_of_unknown_outcome, NoAskAfterAnUnknownOutcome;
    no_ask_beside_another_process_is_caught: a_hand_over, NoAskBesideAnotherProcess;
    the_epoch_not_moved_at_a_writes_begin_is_caught: a_write, EpochNotMovedAtTheBegin;
    epochs_moved_before_the_swap_are_caught: a_reload, EpochsMovedBeforeTheSwap;
}
