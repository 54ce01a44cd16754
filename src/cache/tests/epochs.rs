//! Tests of invalidation by epochs: which answers a write of known or unknown outcome makes unusable, and which ones
//! (other members, other guilds, other reads) it leaves alone. They run in one thread; the interleavings are tested in
//! `tests/model`.

use std::time::Duration;

use crate::cache::{EntryKey, Epochs, Realm, Realms};
use crate::clock::Tick;
use crate::model::MemberId;
use crate::sync::AtomicU64;
use crate::wire::Operation;

const TTL: Duration = Duration::from_secs(30);

fn member(n: u64) -> MemberId {
    MemberId::new(n).unwrap()
}

const GUILD: Realms = Realms::One(Realm(1));

fn at(realm: u64, member_: u64, read: Operation) -> EntryKey {
    EntryKey { realm: Realm(realm), member: member(member_), read }
}

fn points(member: u64) -> EntryKey {
    at(1, member, Operation::GetPoints)
}

#[test]
fn what_was_asked_before_or_during_a_write_does_not_stand_after_it() {
    let epochs = Epochs::default();
    let before = epochs.epoch(&points(7));
    let write = epochs.begin_write(member(7), &[Operation::GetPoints], GUILD, TTL, Tick(0));
    let during = epochs.epoch(&points(7));
    assert!(!epochs.is_current(before, &points(7)));
    write.end_settled();
    assert!(!epochs.is_current(during, &points(7)));
    assert!(epochs.may_store(&points(7), Tick(0)));
}

#[test]
fn a_write_is_unsettled_until_the_origin_has_said() {
    let epochs = Epochs::default();
    let write = epochs.begin_write(member(7), &[Operation::GetPoints], GUILD, TTL, Tick(0));
    assert!(epochs.is_unsettled(&points(7), Tick(0)));
    write.end_settled();
    assert!(!epochs.is_unsettled(&points(7), Tick(0)));
    epochs.begin_write(member(7), &[Operation::GetPoints], GUILD, TTL, Tick(0)).end_unsettled(Tick(0), TTL);
    assert!(epochs.is_unsettled(&points(7), Tick(1)));
    assert!(!epochs.is_unsettled(&points(7), Tick(0).plus(TTL)));
    drop(epochs.begin_write(member(7), &[Operation::GetPoints], GUILD, TTL, Tick(0).plus(TTL)));
    assert!(epochs.is_unsettled(&points(7), Tick(1).plus(TTL)), "a write dropped without an end");
}

#[test]
fn a_write_is_unsettled_for_the_longer_time_for_which_answers_are_kept_since() {
    for before in [Duration::ZERO, TTL / 2] {
        let epochs = Epochs::default();
        let end = Tick(1).plus(TTL);
        let ends_unsettled = |n| {
            epochs
                .begin_write(member(n), &[Operation::GetPoints], GUILD, before, Tick(1))
                .end_unsettled(Tick(1), before)
        };
        ends_unsettled(7);
        for _ in 0..3 {
            epochs.store_later(TTL - before, TTL, Tick(1));
        }
        assert!(!epochs.may_store(&points(7), Tick(end.0 - 1)) && epochs.may_store(&points(8), Tick(1)));
        assert!(epochs.may_store(&points(7), end), "once, however often it changes");
    }
}

#[test]
fn a_write_of_points_leaves_warns_and_other_members_alone() {
    let epochs = Epochs::default();
    let warns = epochs.epoch(&at(1, 7, Operation::GetWarns));
    let other = epochs.epoch(&points(8));
    epochs.begin_write(member(7), &[Operation::GetPoints], GUILD, TTL, Tick(0)).end_settled();
    assert!(epochs.is_current(warns, &at(1, 7, Operation::GetWarns)));
    assert!(epochs.is_current(other, &points(8)));
}

#[test]
fn a_write_leaves_the_same_member_of_other_guilds_alone_unless_it_reaches_all_or_its_outcome_is_unknown() {
    let epochs = Epochs::default();
    let other_guild = at(2, 7, Operation::GetPoints);
    let before = epochs.epoch(&other_guild);
    let write = epochs.begin_write(member(7), &[Operation::GetPoints], GUILD, TTL, Tick(0));
    assert!(!epochs.is_unsettled(&other_guild, Tick(0)));
    write.end_settled();
    assert!(epochs.is_current(before, &other_guild) && epochs.may_store(&other_guild, Tick(0)));

    let write = epochs.begin_write(member(7), &[Operation::GetPoints], Realms::All, TTL, Tick(0));
    assert!(!epochs.is_current(before, &other_guild) && epochs.is_unsettled(&other_guild, Tick(0)));
    write.end_settled();

    let before = epochs.epoch(&other_guild);
    epochs.begin_write(member(7), &[Operation::GetPoints], GUILD, Duration::ZERO, Tick(0)).end_unsettled(Tick(0), TTL);
    assert!(!epochs.is_current(before, &other_guild), "the key may be listed under that guild by now");
    let end = Tick(0).plus(TTL);
    assert!(!epochs.may_store(&other_guild, Tick(end.0 - 1)) && epochs.may_store(&other_guild, end));
}

#[test]
fn what_others_changed_of_a_member_reaches_it_in_every_guild() {
    let epochs = Epochs::default();
    let held: Vec<_> =
        [1, 2].into_iter().map(|realm| at(realm, 7, Operation::GetWarns)).map(|at| (epochs.epoch(&at), at)).collect();
    epochs.invalidate_member(member(7));
    assert!(held.iter().all(|(epoch, at)| !epochs.is_current(*epoch, at)));
}

#[test]
fn after_a_write_of_unknown_outcome_nothing_of_the_member_is_kept_for_one_ttl() {
    let epochs = Epochs::default();
    let warns = epochs.epoch(&at(1, 7, Operation::GetWarns));
    epochs.begin_write(member(7), &[Operation::GetPoints], GUILD, TTL, Tick(0)).end_unsettled(Tick(5), TTL);
    assert!(!epochs.is_current(warns, &at(1, 7, Operation::GetWarns)));
    assert!(!epochs.may_store(&points(7), Tick(5).plus(TTL - Duration::from_nanos(1))));
    assert!(epochs.may_store(&points(7), Tick(5).plus(TTL)));
}

#[test]
fn a_flight_is_shared_by_callers_of_one_side_of_the_time_at_which_a_write_of_unknown_outcome_is_over() {
    let (epochs, end) = (Epochs::default(), Tick(5).plus(TTL));
    let ends_unsettled =
        |at| epochs.begin_write(member(7), &[Operation::GetPoints], GUILD, TTL, at).end_unsettled(at, TTL);
    ends_unsettled(Tick(5));
    let [within, last, first, later] =
        [Tick(5), Tick(end.0 - 1), end, end.plus(TTL)].map(|now| epochs.flight_epoch(&points(7), now));
    assert!(within == last && first == later && within != first && within.of_answer == first.of_answer);
    // Another member's write has its place in the same slot.
    epochs.unsettled(member(7), Realms::All).unsettled_until(end.plus(3 * TTL).0, end.plus(TTL));
    let other = epochs.flight_epoch(&points(7), end.plus(2 * TTL));
    assert!(other != within && other == first);
}

#[test]
fn moving_all_moves_each() {
    let epochs = Epochs::default();
    let epoch = epochs.epoch(&at(1, 7, Operation::GetReviews));
    epochs.invalidate_all();
    assert!(!epochs.is_current(epoch, &at(1, 7, Operation::GetReviews)));
}

#[test]
fn snowflakes_of_one_second_spread_over_the_table() {
    let epochs = Epochs::default();
    let slots: std::collections::HashSet<*const AtomicU64> = (0..1000u64)
        .map(|n| {
            std::ptr::from_ref(epochs.slot(
                member(190_551_803_669_118_976 + n * 4_194_304),
                Operation::GetPoints,
                GUILD,
            ))
        })
        .collect();
    assert!(slots.len() > 980, "{}", slots.len());
}
