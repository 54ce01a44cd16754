//! Bugs that were thought of, planted one at a time: a check that passes with one of them is none.

use crate::scenarios::{one_writer, two_realms, two_writers};
use crate::world::Way;

/// The most tries a bug is given; each is caught within a tenth of them.
const MOST: usize = 100_000;

/// Steps at which the checker changes its mind about who goes first: what the rarest bug needs.
const CHANGES: usize = 5;

#[test]
#[should_panic(expected = "not linearizable")]
fn a_write_that_moves_the_epoch_only_before_it_is_caught() {
    shuttle::check_pct(|| one_writer(Way::NoSecondAdvance), MOST, CHANGES);
}

#[test]
#[should_panic(expected = "not linearizable")]
fn a_fill_without_a_look_at_the_epoch_is_caught() {
    shuttle::check_pct(|| one_writer(Way::FillWithoutCheck), MOST, CHANGES);
}

#[test]
#[should_panic(expected = "not linearizable")]
fn joining_a_flight_that_began_before_the_write_is_caught() {
    shuttle::check_random(|| two_writers(Way::JoinOldFlight), MOST);
}

#[test]
#[should_panic(expected = "not linearizable")]
fn realms_of_one_guild_taken_apart_are_caught() {
    shuttle::check_pct(|| two_realms(Way::RealmsTakenAsDisjoint), MOST, CHANGES);
}

#[test]
#[should_panic(expected = "not linearizable")]
fn a_write_that_reaches_one_realm_of_a_guild_of_two_is_caught() {
    shuttle::check_pct(|| two_realms(Way::WriteOfOneRealm), MOST, CHANGES);
}
