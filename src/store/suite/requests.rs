//! Part of the suite for every store: what the operations of the gateway read and write. A store answers an unknown
//! member with nothing, and a guild that is missing or was left with one error for every operation.

use super::*;
use crate::model::{MAX_MEMBER_NAME, REVIEW, WARN};

pub(crate) async fn points_may_be_any_signed_64_bit_number_of_the_largest_member(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let store = test.store();
    for amount in [i64::MAX, i64::MIN, -1, 0] {
        store.set_points(&guild("g"), member(i64::MAX as u64), amount).await.unwrap();
        assert_eq!(store.points(&guild("g"), member(i64::MAX as u64)).await.unwrap(), amount);
    }
}

pub(crate) async fn a_guild_that_is_missing_or_departed_is_refused_for_every_operation(kind: Kind) {
    let test = TestStore::new(kind).await;
    let store = test.store();
    test.add_guild(&guild("departed")).await;
    store.set_points(&guild("departed"), member(7), 3).await.unwrap();
    store.set_guild(&guild("departed"), None, Some(true)).await.unwrap();
    for id in ["departed", "never"] {
        is_departed(store.points(&guild(id), member(7)).await);
        is_departed(store.notes_of(&WARN, &guild(id), member(7), 0).await);
        is_departed(store.notes_of(&REVIEW, &guild(id), member(7), 0).await);
        is_departed(store.set_points(&guild(id), member(7), 4).await);
    }
    store.set_guild(&guild("departed"), None, Some(false)).await.unwrap();
    assert_eq!(store.points(&guild("departed"), member(7)).await.unwrap(), 3);
}

pub(crate) async fn warn_and_review_ids_count_up_by_guild_and_are_sorted(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let store = test.store();
    for expected in 1..=11 {
        assert_eq!(warn(store, member(expected as u64 % 2), 100).await, expected);
        assert_eq!(review(store, member(expected as u64 % 2), "kind").await, expected);
    }
    let warns = store.notes_of(&WARN, &guild("g"), member(1), 0).await.unwrap();
    assert_eq!(warns.iter().map(|w| w.id).collect::<Vec<_>>(), [1, 3, 5, 7, 9, 11]);
    let reviews = store.notes_of(&REVIEW, &guild("g"), member(0), 0).await.unwrap();
    assert_eq!(reviews.iter().map(|r| r.id).collect::<Vec<_>>(), [2, 4, 6, 8, 10]);
}

pub(crate) async fn a_warn_is_hidden_from_the_second_of_its_expiry(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let store = test.store();
    warn(store, member(7), 100).await;
    assert_eq!(store.notes_of(&WARN, &guild("g"), member(7), 99).await.unwrap().len(), 1);
    assert_eq!(store.notes_of(&WARN, &guild("g"), member(7), 100).await.unwrap(), []);
}

pub(crate) async fn a_members_name_is_at_most_64_kib_long(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let store = test.store();
    let name = "é".repeat(MAX_MEMBER_NAME / 2);
    store.set_member(&guild("g"), member(7), Some(&name), None).await.unwrap();
    let why = refused(store.set_member(&guild("g"), member(7), Some(&format!("{name}x")), None).await);
    assert!(why.contains("at most 65536 bytes long, and this one has 65537"), "{why}");
    assert_eq!(store.members(&guild("g"), None, usize::MAX).await.unwrap()[0].name, name);
}
