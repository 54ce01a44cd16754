use super::*;
use crate::limits::DayCount;

#[test]
fn a_rotated_key_and_one_that_gets_another_tier_keep_what_they_have_left() {
    let first = first_table(vec![listed("a", "A")], 5);
    assert_eq!(let_in(&first, "A", 0, 3), 3);
    let rotated = table_at(vec![listed("a", "A"), listed("a", "B")], 9, &first, 0);
    assert_eq!((let_in(&rotated, "B", 0, 1), let_in(&rotated, "A", 0, 9), let_in(&rotated, "B", 0, 9)), (1, 1, 0));
    assert_eq!(let_in(&first, "A", 0, 9), 0, "a request that came before the reload pays from the same budget");
}

#[test]
fn a_budget_belongs_to_the_id_whatever_the_secret_is() {
    let first = first_table(vec![listed("a", "A"), listed("b", "B")], 5);
    assert_eq!((let_in(&first, "A", 0, 9), let_in(&first, "B", 0, 1)), (5, 1));
    let swapped = table_at(vec![listed("a", "B"), listed("b", "A")], 5, &first, 0);
    assert_eq!((let_in(&swapped, "B", 0, 9), let_in(&swapped, "A", 0, 9)), (0, 4));
}

#[test]
fn a_removed_key_is_remembered_until_its_largest_burst_has_come_back() {
    for (second, left) in [(39, 1), (40, 40)] {
        let first = first_table(vec![listed("a", "A")], 40);
        assert_eq!(let_in(&first, "A", 0, 99), 40);
        let lowered = table_at(vec![listed("a", "A")], 1, &first, 0);
        let removed = table_at(Vec::new(), 1, &lowered, second);
        let again = table_at(vec![listed("a", "A")], 40, &removed, second);
        assert_eq!(let_in(&again, "A", second, 99), left, "after {second} s");
    }
}

#[test]
fn the_days_count_of_a_key_is_known_before_it_is_listed() {
    let before = KeyTable::with_day_counts(vec![("a".into(), DayCount { day: 0, count: 7 })]);
    let table = table_at(vec![listed("a", "A"), listed("b", "B")], 5, &before, 0);
    let day = |secret: &str| table.find(&Digest::of(secret.as_bytes()), never).unwrap().budget.day().known.count;
    assert_eq!((day("A"), day("B")), (7, 0));
}
