use std::cell::Cell;

use super::*;
use crate::keys::{InFlightSlot, Key};

/// The table of a burst of four after `before`, at the same moment.
fn next(listed: Vec<ListedKey>, before: &KeyTable) -> KeyTable {
    table_at(listed, 4, before, 0)
}

#[test]
fn a_key_that_stays_or_is_removed_added_again_or_renamed_is_not_refilled() {
    let both = vec![listed("a", "A"), listed("b", "B")];
    let first = first_table(both.clone(), 2);
    assert_eq!(let_in(&first, "A", 0), 2);
    let raised = table_at(both, 8, &first, 0);
    assert_eq!(let_in(&raised, "A", 0), 0);
    // It is remembered until a burst of 8 would have come back.
    let without = table_at(vec![listed("b", "B")], 2, &raised, 0);
    let removed = |second| table_at(vec![], 2, &without, second).removed.states.len();
    assert_eq!((removed(7), removed(8)), (1, 0));
    let back = table_at(vec![listed("a", "A")], 2, &without, 0);
    assert_eq!(let_in(&back, "A", 0), 0);
    let renamed = table_at(vec![listed("c", "A")], 2, &back, 0);
    assert_eq!(let_in(&renamed, "A", 0), 0);
    let removed = table_at(vec![], 2, &table_at(vec![], 2, &back, 0), 0);
    assert_eq!(let_in(&table_at(vec![listed("c", "A")], 2, &removed, 0), "A", 0), 0, "renamed while it was removed");
}

#[test]
fn a_key_that_was_away_while_the_burst_was_lowered_and_raised_is_let_in_no_oftener() {
    let all = first_table(vec![listed("a", "A")], 40);
    assert_eq!(let_in(&all, "A", 0), 40);
    let lowered = table_at(vec![listed("a", "A")], 1, &all, 0);
    assert_eq!(let_in(&lowered, "A", 5), 1);
    // It is removed with a full bucket of one, and remembered for as long as forty take to come back.
    let removed = [6, 20, 44].iter().fold(lowered, |before, second| table_at(vec![], 1, &before, *second));
    assert_eq!(removed.removed.states.len(), 1);
    let forgotten = table_at(vec![], 1, &removed, 45);
    assert_eq!(forgotten.removed.states.len(), 0);
    let back = table_at(vec![listed("a", "A")], 40, &removed, 44);
    assert_eq!((let_in(&back, "A", 44), let_in(&back, "A", 45)), (1, 1));
    let back = table_at(vec![listed("a", "A")], 40, &forgotten, 45);
    assert_eq!(let_in(&back, "A", 45), 40, "41 seconds after its last request: as if nothing had been changed");
}

#[test]
fn two_secrets_of_a_key_that_become_two_keys_begin_with_what_is_left_of_it() {
    // With one request left.
    let one = || {
        let one = first_table(vec![listed("a", "A"), listed("a", "B")], 4);
        assert_eq!((let_in(&one, "A", 0), let_in(&one, "B", 1)), (4, 1), "it is one key");
        one
    };
    for burst in [4, 9] {
        let two = table_at(vec![listed("a", "A"), listed("b", "B")], burst, &one(), 2);
        assert_eq!((let_in(&two, "A", 2), let_in(&two, "B", 2)), (1, 1));
        let renamed = table_at(vec![listed("c", "A"), listed("b", "B")], burst, &two, 2);
        assert_eq!((let_in(&renamed, "A", 2), let_in(&renamed, "B", 2)), (0, 0));
        assert!(renamed.removed.states.is_empty(), "the id that no key has any more is forgotten");
        let both_renamed = table_at(vec![listed("c", "A"), listed("d", "B")], burst, &one(), 2);
        assert_eq!((let_in(&both_renamed, "A", 2), let_in(&both_renamed, "B", 2)), (1, 1));
    }
}

#[test]
fn two_keys_that_become_one_have_no_more_left_than_either() {
    let first = first_table(vec![listed("a", "A"), listed("b", "B")], 4);
    assert_eq!(let_in(&first, "B", 0), 4);
    let one = next(vec![listed("a", "A"), listed("a", "B")], &first);
    assert_eq!((let_in(&one, "A", 0), let_in(&one, "B", 0)), (0, 0));
}

#[test]
fn a_used_up_secret_gets_no_second_burst_while_its_id_has_another_secret() {
    let first = first_table(vec![listed("a", "A")], 4);
    assert_eq!(let_in(&first, "A", 0), 4);
    let both = || vec![listed("a", "B"), listed("c", "A")];
    for between in [vec![], vec![listed("a", "B")], vec![listed("a", "C")]] {
        let between = next(between, &first);
        for listed in [both(), both().into_iter().rev().collect()] {
            let after = next(listed, &between);
            assert_eq!((let_in(&after, "A", 0), let_in(&after, "B", 0)), (0, 0));
        }
    }
    let refilled = table_at(vec![listed("a", "B")], 4, &first, 4);
    assert!(refilled.removed.secrets.is_empty(), "a secret is forgotten when its burst has come back");
}

#[test]
fn a_used_up_secret_gets_no_second_burst_under_the_id_of_a_removed_key() {
    for (used_before, left) in [(["A"].as_slice(), 0), (&["B"], 0), (&[], 4)] {
        let first = first_table(vec![listed("a", "A"), listed("b", "B")], 4);
        used_before.iter().for_each(|secret| assert_eq!(let_in(&first, secret, 0), 4));
        assert_eq!(let_in(&next(vec![listed("b", "A")], &first), "A", 0), left, "{used_before:?}");
    }
}

#[test]
fn the_largest_burst_of_a_secret_counts_also_under_the_id_of_another_key() {
    let tiers = |a: &str, b: &str| {
        let tier = |name: &str, burst| Arc::new(Tier { name: name.into(), ..(*limits(burst).default_tier).clone() });
        let keys = [("a", "A", a), ("b", "B", b)].map(|(id, secret, tier)| (listed(id, secret), tier.to_owned()));
        let keys = keys.map(|(key, tier)| ListedKey { tier: Some(tier.into()), ..key });
        (keys, Limits { tiers: vec![tier("small", 1), tier("large", 40)], ..limits(1) })
    };
    let ([a, b], limits) = tiers("large", "small");
    let at = |second: u64| Tick(second * SECOND);
    let first = KeyTable::new(vec![a.clone(), b.clone()], &limits, &KeyTable::default(), || at(0), 0);
    assert_eq!(let_in(&first, "A", 0), 40);
    let moved = KeyTable::new(vec![ListedKey { digest: a.digest, ..b }], &limits, &first, || at(0), 0);
    // The bucket of one is full after a second, and one of forty would not be.
    let removed = KeyTable::new(vec![], &limits, &moved, || at(1), 0);
    let back = KeyTable::new(vec![ListedKey { id: "c".into(), ..a }], &limits, &removed, || at(1), 0);
    assert_eq!(let_in(&back, "A", 1), 1);
}

#[test]
fn what_a_key_has_left_is_measured_when_its_own_limits_change() {
    let before = first_table(vec![listed("a", "A"), listed("b", "B")], 3);
    // It is asked with while the limits of the key before it are changed, after five idle seconds.
    assert_eq!(let_in_of(&before, "B", 5, 1), 1);
    let slow = Rate { period_ns: 10 * SECOND, ..limits(3).strangers };
    let tier = Arc::new(Tier { main: slow, ..(*limits(3).default_tier).clone() });
    let limits = Limits { default_tier: tier.clone(), tiers: vec![tier], ..limits(3) };
    let second = Cell::new(0);
    let now = || Tick(second.replace(5) * SECOND);
    let after = KeyTable::new(vec![listed("a", "A"), listed("b", "B")], &limits, &before, now, 0);
    assert_eq!(let_in(&after, "B", 5), 2);
}

#[test]
fn a_used_up_write_limit_counts_also_under_the_id_of_a_key_that_never_had_one() {
    let tier = |name: &str, write| Arc::new(Tier { name: name.into(), write, ..(*limits(40).default_tier).clone() });
    let with_write = tier("with", Some(limits(2).strangers));
    let limits = Limits { tiers: vec![with_write, tier("without", None)], ..limits(40) };
    let in_tier = |tier: &str, key| ListedKey { tier: Some(tier.into()), ..key };
    let writes_let_in = |key_table: &KeyTable| {
        let key = key_table.find(&Digest::of(b"A"), never).unwrap();
        let ask = LimitQuery { operation: Operation::SetPoints, in_flight: 0, now: Tick(0) };
        (0..10).filter(|_| key.policy.decide(&key.buckets, &key.usage, ask, || 0).over.is_none()).count()
    };
    let first = vec![in_tier("with", listed("a", "A")), in_tier("without", listed("b", "B"))];
    let first = KeyTable::new(first, &limits, &KeyTable::default(), || Tick(0), 0);
    assert_eq!(writes_let_in(&first), 2);
    let moved = KeyTable::new(vec![in_tier("without", listed("b", "A"))], &limits, &first, || Tick(0), 0);
    let back = KeyTable::new(vec![in_tier("with", listed("b", "A"))], &limits, &moved, || Tick(0), 0);
    assert_eq!(writes_let_in(&back), 0);
}

#[test]
fn secrets_that_change_places_or_ids_get_no_second_burst() {
    // Two that change secrets, and three that move up by one.
    let swapped = |n: usize| {
        if n.is_multiple_of(2) {
            vec![listed("a", "A"), listed("b", "B")]
        } else {
            vec![listed("a", "B"), listed("b", "A")]
        }
    };
    let shifted = |n: usize| vec![listed(&format!("k{n}"), "A"), listed(&format!("k{}", n + 1), "B")];
    for lists in [&swapped as &dyn Fn(usize) -> Vec<ListedKey>, &shifted] {
        let mut before = first_table(lists(0), 4);
        assert_eq!((let_in(&before, "A", 0), let_in(&before, "B", 0)), (4, 4));
        for n in 1..5 {
            before = next(lists(n), &before);
            assert_eq!((let_in(&before, "A", 0), let_in(&before, "B", 0)), (0, 0), "round {n}");
        }
    }
    // One whose id got another secret and was renamed then.
    let mut before = first_table(vec![listed("a", "A")], 4);
    assert_eq!(let_in(&before, "A", 0), 4);
    for list in [vec![listed("a", "X")], vec![listed("b", "X")], vec![listed("b", "X"), listed("n", "A")]] {
        before = next(list, &before);
    }
    assert_eq!((let_in(&before, "A", 0), let_in(&before, "X", 0)), (0, 0));
}

#[test]
fn where_all_ids_move_by_one_place_what_a_key_used_up_passes_to_the_one_that_gets_its_id_and_no_further() {
    let used_up = || {
        let first = first_table(vec![listed("k0", "A"), listed("k1", "B"), listed("k2", "C"), listed("k3", "D")], 4);
        assert_eq!(let_in(&first, "A", 0), 4);
        first
    };
    let removed = next(vec![listed("k0", "B"), listed("k1", "C"), listed("k2", "D")], &used_up());
    assert_eq!(["B", "C", "D"].map(|secret| let_in(&removed, secret, 0)), [0, 4, 4]);
    let new_in_front =
        vec![listed("k0", "X"), listed("k1", "A"), listed("k2", "B"), listed("k3", "C"), listed("k4", "D")];
    let added = next(new_in_front, &used_up());
    assert_eq!(["X", "A", "B", "C", "D"].map(|secret| let_in(&added, secret, 0)), [0, 0, 4, 4, 4]);
    let in_a_ring = next(vec![listed("k3", "A"), listed("k0", "B"), listed("k1", "C"), listed("k2", "D")], &used_up());
    assert_eq!(["A", "B", "C", "D"].map(|secret| let_in(&in_a_ring, secret, 0)), [0, 0, 4, 4]);
}

#[test]
fn a_new_secret_under_an_id_whose_key_was_renamed_is_a_new_key() {
    let first = first_table(vec![listed("a", "A")], 4);
    assert_eq!(let_in(&first, "A", 0), 4);
    let renamed = next(vec![listed("b", "A")], &first);
    let after = next(vec![listed("b", "A"), listed("a", "B")], &renamed);
    assert_eq!((let_in(&after, "A", 0), let_in(&after, "B", 0)), (0, 4));
}

/// The key with this secret.
fn find(key_table: &KeyTable, secret: &str) -> Arc<Key> {
    key_table.find(&Digest::of(secret.as_bytes()), never).unwrap().clone()
}

#[test]
fn a_key_removed_during_requests_and_put_back_still_counts_them() {
    let first = first_table(vec![listed("a", "A")], 2);
    let (one, two, three) = (InFlightSlot::default(), InFlightSlot::default(), InFlightSlot::default());
    let request = one.take(&find(&first, "A"));
    let back = table_at(vec![listed("a", "A")], 2, &table_at(vec![], 2, &first, 0), 0);
    assert_eq!(two.take(&find(&back, "A")).others(), 1);
    drop(request);
    assert_eq!(three.take(&find(&back, "A")).others(), 0);
}

#[test]
fn a_key_removed_while_it_holds_permits_and_put_back_is_the_same_owner() {
    let first = first_table(vec![listed("a", "A")], 2);
    let held = find(&first, "A").usage.id.clone();
    let removed = next(vec![], &next(vec![], &first));
    assert_eq!(find(&next(vec![listed("b", "A")], &removed), "A").usage.id, held);
    drop(held);
    assert_eq!(next(vec![], &removed).removed.states.len(), 0, "nothing of it is held any more");
}

#[test]
fn a_secret_takes_its_permits_and_its_requests_in_flight_along_to_the_id_of_another_key() {
    let first = first_table(["a", "b", "c"].map(|id| listed(id, &id.to_uppercase())).to_vec(), 2);
    let slots: [InFlightSlot; 2] = std::array::from_fn(|_| InFlightSlot::default());
    let held = ["A", "B"].map(|secret| find(&first, secret).usage.id.clone());
    let _requests: Vec<_> = slots.iter().map(|slot| slot.take(&find(&first, "A"))).collect();
    let mut before = first;
    // The id of a key that is removed, then each other's ids, and a third one while the other is away and comes back.
    for list in [
        vec![listed("b", "A"), listed("c", "C")],
        vec![listed("a", "B"), listed("b", "A")],
        vec![listed("a", "A"), listed("b", "B")],
        vec![listed("c", "A")],
        vec![listed("c", "A"), listed("a", "B")],
    ] {
        let after = next(list.clone(), &before);
        assert_eq!((find(&after, "A").usage.in_flight(), &find(&after, "A").usage.id), (2, &held[0]), "{list:?}");
        if list.iter().any(|key| key.digest == Digest::of(b"B")) {
            assert_eq!(find(&after, "B").usage.id, held[1], "{list:?}");
        }
        before = after;
    }
}
