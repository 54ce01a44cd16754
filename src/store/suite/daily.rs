//! Part of the suite for every store: the counts of requests by key and UTC day. They add up within a day, survive
//! restarts, and are not in the change feed. Clocks of several nodes may differ, so a day may arrive late or too early.

use super::*;
use crate::model::KeyId;

pub(crate) fn counts<const N: usize>(counts: [(&str, u64); N]) -> Vec<(KeyId, u64)> {
    counts.into_iter().map(|(key, count)| (key.into(), count)).collect()
}

pub(crate) async fn add<const N: usize>(test: &TestStore, day: i64, more: [(&str, u64); N]) -> Vec<(KeyId, u64)> {
    test.store().add_daily(day, counts(more)).await.unwrap()
}

pub(crate) async fn counts_add_up_within_a_day_and_restart_with_the_next(kind: Kind) {
    const MOST: u64 = i64::MAX as u64;
    type Counts = &'static [(&'static str, u64)];
    /// The day, what is added, and the totals of these keys.
    type Step = (i64, Counts, Counts);
    /// Steps, and each key's count of two days afterwards.
    type Story<'s> = (&'s [Step], [(i64, Counts); 2]);
    let stories: [Story<'_>; 4] = [
        // No such keys are in the store: they may be a file's, or known by the origin alone.
        (
            &[
                (10, &[("b", 1), ("a", 3)], &[("b", 1), ("a", 3)]),
                (10, &[("a", 2), ("c", 0)], &[("a", 5), ("c", 0)]),
                (11, &[("a", 4)], &[("a", 4)]),
            ],
            [(10, &[("a", 4), ("b", 1), ("c", 0)]), (11, &[("a", 4)])],
        ),
        // A node before midnight adds to the new day, and removes no count.
        (
            &[
                (10, &[("a", 7), ("b", 9)], &[("a", 7), ("b", 9)]),
                (11, &[("a", 2)], &[("a", 2)]),
                (10, &[("a", 3), ("b", 1)], &[("a", 5), ("b", 10)]),
            ],
            [(10, &[("a", 5), ("b", 10)]), (11, &[("a", 5)])],
        ),
        // A day further ahead came from a wrong clock.
        (
            &[(12, &[("a", 7), ("b", 9)], &[("a", 7), ("b", 9)]), (10, &[("a", 1)], &[("a", 1)])],
            [(10, &[("a", 1)]), (12, &[("b", 9)])],
        ),
        // A count stops at the largest number that is kept.
        (
            &[
                (10, &[("a", MOST - 1), ("b", u64::MAX)], &[("a", MOST - 1), ("b", MOST)]),
                (10, &[("a", u64::MAX), ("b", 1)], &[("a", MOST), ("b", MOST)]),
            ],
            [(10, &[("a", MOST), ("b", MOST)]), (11, &[])],
        ),
    ];
    let counts = |counts: Counts| counts.iter().map(|(key, count)| ((*key).into(), *count)).collect::<Vec<_>>();
    for (steps, left) in stories {
        let test = TestStore::new(kind).await;
        for (day, more, totals) in steps {
            assert_eq!(test.store().add_daily(*day, counts(more)).await.unwrap(), counts(totals));
        }
        for (day, left) in left {
            assert_eq!(test.store().daily(day).await.unwrap(), counts(left), "{day} after {steps:?}");
        }
    }
}

pub(crate) async fn counts_survive_restarts_are_seen_by_others_and_are_no_change(kind: Kind) {
    let test = TestStore::new(kind).await;
    let second = test.open_second().await;
    add(&test, 10, [("a", 7)]).await;
    assert_eq!(others_changes(&second).await, []);
    assert_eq!(second.add_daily(10, counts([("a", 1)])).await.unwrap(), counts([("a", 8)]));
    drop(second);
    let test = test.reopen().await;
    assert_eq!(test.store().daily(10).await.unwrap(), counts([("a", 8)]));
}

pub(crate) async fn a_day_is_reset_for_keys_that_are_known_and_others_are_told(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let second = test.open_second().await;
    assert!(refused(test.store().reset_day("a", false).await).contains("no key a"));
    add(&test, 10, [("a", 7), ("b", 2)]).await;
    // One that is counted, one that is in the store, and two that only the caller knows.
    test.store().create_key(super::records::key("k1", b"one")).await.unwrap();
    for (key, is_known) in [("a", false), ("k1", false), ("in a\nfile", true), ("listed", true)] {
        test.store().reset_day(key, is_known).await.unwrap();
    }
    let mut changes = vec![Change::Directory];
    changes.extend(["a", "in a\nfile", "k1", "listed"].map(|key| Change::DayReset(key.into())));
    assert_eq!(others_changes(&second).await, changes);
    assert_eq!(test.store().daily(10).await.unwrap(), counts([("a", 0), ("b", 2)]));
    assert_eq!(add(&test, 10, [("a", 1)]).await, counts([("a", 1)]));
    test.store().clear_daily(vec!["a".into(), "b".into(), "c".into()]).await.unwrap();
    assert_eq!(others_changes(&second).await, []);
    assert_eq!(test.store().daily(10).await.unwrap(), counts([("a", 0), ("b", 0)]));
    let test = test.reopen().await;
    assert_eq!(test.store().daily(10).await.unwrap(), counts([("a", 0), ("b", 0)]));
}

pub(crate) async fn days_long_past_are_removed_a_thousand_at_a_time_and_yesterday_is_not(kind: Kind) {
    let test = TestStore::new(kind).await;
    let many: Vec<(KeyId, u64)> = (0..1500).map(|n| (format!("k{n}").into(), 1)).collect();
    test.store().add_daily(10, many).await.unwrap();
    add(&test, 11, [("y", 1)]).await;
    let left = async |day| test.store().daily(day).await.unwrap().len();
    add(&test, 12, [("t", 1)]).await;
    assert_eq!((left(10).await, left(11).await), (501, 2), "yesterday's count is one of tomorrow's of the day before");
    add(&test, 12, [("t", 1)]).await;
    assert_eq!((left(10).await, left(11).await), (1, 2));
}

pub(crate) async fn requests_of_31_days_are_kept_and_those_of_many_processes_are_added(kind: Kind) {
    let test = TestStore::new(kind).await;
    let second = test.open_second().await;
    let add = async |store: &Store, day, counts: &[(&str, i64)]| {
        let counts = counts.iter().map(|(key, count)| ((*key).into(), *count)).collect();
        store.add_requests(day, counts).await.unwrap();
    };
    let of = async |key, day| test.store().requests_by_day(key, day).await.unwrap();
    assert_eq!(of("a", 100).await, []);
    add(test.store(), 100, &[("b", 7), ("a", 1)]).await;
    add(&second, 100, &[("a", 2)]).await;
    add(&second, 130, &[("a", 5)]).await;
    assert_eq!((of("a", 130).await, of("b", 130).await), (vec![(100, 3), (130, 5)], vec![(100, 7)]));
    assert_eq!(of("a", 131).await, [(130, 5)], "the day before the last 31");
    add(&second, 131, &[("' OR 1", 9)]).await;
    assert_eq!((of("a", 130).await, of("' OR 1", 131).await), (vec![(130, 5)], vec![(131, 9)]));
    assert_eq!(others_changes(test.store()).await, []);
}
