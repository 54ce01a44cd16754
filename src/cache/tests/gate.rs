//! Tests of the gate in one thread: which answers a write of known or unknown outcome makes unusable, and which ones
//! (other members, other guilds, other reads) it leaves alone. The interleavings are tested in `tests/model`.

use std::collections::HashSet;

use crate::cache::GateState::Ask;
use crate::cache::{EntryKey, Gate, Realm, Realms, WriteGuard};
use crate::clock::Tick;
use crate::model::MemberId;
use crate::wire::Operation;

const GUILD: Realms = Realms::One(Realm(1));

fn member(n: u64) -> MemberId {
    MemberId::new(n).unwrap()
}

fn at(realm: u64, member_: u64, read: Operation) -> EntryKey {
    EntryKey { realm: Realm(realm), member: member(member_), read }
}

fn points(member: u64) -> EntryKey {
    at(1, member, Operation::GetPoints)
}

/// A write to member 7 that can take effect until tick 9 if nobody says how it ended.
fn write(gate: &Gate, realms: Realms) -> WriteGuard<'_> {
    gate.begin_write(member(7), &[Operation::GetPoints], realms, Tick(9))
}

#[test]
fn during_a_write_each_question_is_asked_and_what_was_kept_before_is_not_current_after_it() {
    let gate = Gate::default();
    let before = gate.state(&points(7), Tick(0));
    let (write, other) = (write(&gate, GUILD), write(&gate, GUILD));
    assert_eq!(gate.state(&points(7), Tick(0)), Ask);
    write.end(None);
    assert_eq!(gate.state(&points(7), Tick(0)), Ask, "the other one is under way");
    other.end(None);
    let after = gate.state(&points(7), Tick(0));
    assert!(after != Ask && after != before);
}

#[test]
fn a_write_of_points_leaves_warns_other_members_and_other_guilds_alone() {
    let gate = Gate::default();
    let others = [at(1, 7, Operation::GetWarns), points(8), at(2, 7, Operation::GetPoints)];
    let states = || others.map(|key| gate.state(&key, Tick(0)));
    let before = states();
    let write = write(&gate, GUILD);
    assert_eq!(states(), before);
    write.end(None);
    assert_eq!(states(), before);
}

#[test]
fn a_write_with_a_learned_key_concerns_the_member_in_every_realm() {
    let gate = Gate::default();
    let before = gate.state(&at(2, 7, Operation::GetPoints), Tick(0));
    let write = write(&gate, Realms::All);
    assert_eq!(gate.state(&at(2, 7, Operation::GetPoints), Tick(0)), Ask);
    write.end(None);
    assert_ne!(gate.state(&at(2, 7, Operation::GetPoints), Tick(0)), before);
}

#[test]
fn after_a_write_of_unknown_outcome_nothing_of_the_member_is_kept_in_any_guild_until_it_can_take_effect_no_more() {
    let of_member = [points(7), at(1, 7, Operation::GetWarns), at(2, 7, Operation::GetPoints)];
    for (is_dropped, until) in [(false, 20), (true, 9)] {
        let gate = Gate::default();
        let write = write(&gate, GUILD);
        match is_dropped {
            true => drop(write),
            false => write.end(Some(Tick(until))),
        }
        for key in of_member {
            assert_eq!([2, until - 1].map(|now| gate.state(&key, Tick(now))), [Ask; 2], "{key:?}");
            assert_ne!(gate.state(&key, Tick(until)), Ask, "{key:?}");
        }
        assert_ne!(gate.state(&points(8), Tick(2)), Ask);
        assert_eq!(gate.unsettled_until(), Tick(until));
    }
}

#[test]
fn beside_another_process_and_after_the_end_of_another_node_each_question_is_asked() {
    let gate = Gate::default();
    let before = gate.state(&points(7), Tick(0));
    gate.not_alone();
    assert_eq!(gate.state(&points(7), Tick(0)), Ask);
    gate.alone(Tick(3));
    assert_eq!(gate.state(&points(7), Tick(2)), Ask, "its writes may take effect yet");
    let alone = gate.state(&points(7), Tick(3));
    assert!(alone != Ask && alone != before);
    gate.ask_until(Tick(9));
    gate.ask_until(Tick(4));
    assert_eq!((gate.state(&points(7), Tick(8)), gate.unsettled_until()), (Ask, Tick(9)));
    assert!(![Ask, alone].contains(&gate.state(&points(7), Tick(9))));
}

#[test]
fn each_change_of_others_drops_what_it_says_and_nothing_else() {
    type Change = fn(&Gate);
    let keys = [
        points(7),
        at(1, 7, Operation::GetReviews),
        at(2, 7, Operation::GetPoints),
        points(8),
        at(2, 8, Operation::GetPoints),
    ];
    let changes: [(Change, [bool; 5]); 4] = [
        (|gate| gate.invalidate_member(member(7), Realms::All), [true, true, true, false, false]),
        (|gate| gate.invalidate_member(member(7), GUILD), [true, true, false, false, false]),
        (|gate| gate.invalidate_realm(Realm(1)), [true, true, false, true, false]),
        (|gate| gate.invalidate_all(), [true; 5]),
    ];
    for (change, dropped) in changes {
        let gate = Gate::default();
        let before = keys.map(|key| gate.state(&key, Tick(0)));
        change(&gate);
        let after = keys.map(|key| gate.state(&key, Tick(0)));
        assert_eq!(std::array::from_fn(|i| before[i] != after[i]), dropped);
    }
}

#[test]
fn snowflakes_of_one_second_spread_over_the_table() {
    let gate = Gate::default();
    let slot = |n: u64| gate.read(member(190_551_803_669_118_976 + n * 4_194_304), Operation::GetPoints, GUILD);
    let slots: HashSet<_> = (0..1000).map(|n| std::ptr::from_ref(slot(n))).collect();
    assert!(slots.len() > 980, "{}", slots.len());
}
