//! What every store must do, whatever it is made of: `store_suite!(world)` makes a test of each
//! sentence here, on a new store from `world`.

use std::future::Future;

use super::*;
use crate::model::{GuildId, MemberId};

/// A store that can be filled by a test.
pub(crate) trait Seed: Store {
    fn add(&self, guild: &GuildId) -> impl Future<Output = ()>;
    fn leave(&self, guild: &GuildId, left: bool) -> impl Future<Output = ()>;
    fn warn(&self, guild: &GuildId, member: MemberId, expires: i64) -> impl Future<Output = i64>;
    fn review(&self, guild: &GuildId, member: MemberId, text: &str) -> impl Future<Output = i64>;
}

pub(crate) fn guild(id: &str) -> GuildId {
    id.parse().unwrap()
}

pub(crate) fn member(id: u64) -> MemberId {
    MemberId::new(id).unwrap()
}

pub(crate) fn gone<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    assert!(matches!(answer, Err(StoreError::GuildGone(_))), "{answer:?}");
}

pub(crate) mod cases {
    use super::*;

    pub(crate) async fn a_member_unknown_to_the_guild_has_nothing(store: &impl Seed) {
        store.add(&guild("g")).await;
        assert_eq!(store.points(&guild("g"), member(7)).await.unwrap(), 0);
        assert_eq!(store.warns(&guild("g"), member(7), 0).await.unwrap(), []);
        assert_eq!(store.reviews(&guild("g"), member(7)).await.unwrap(), []);
    }

    pub(crate) async fn set_points_makes_the_member_named_by_its_id(store: &impl Seed) {
        store.add(&guild("g")).await;
        assert_eq!(store.set_points(&guild("g"), member(7), 5).await.unwrap(), "7");
        assert_eq!(store.points(&guild("g"), member(7)).await.unwrap(), 5);
    }

    pub(crate) async fn points_may_be_any_signed_64_bit_number_of_the_largest_member(store: &impl Seed) {
        store.add(&guild("g")).await;
        for amount in [i64::MAX, i64::MIN, -1, 0] {
            store.set_points(&guild("g"), member(i64::MAX as u64), amount).await.unwrap();
            assert_eq!(store.points(&guild("g"), member(i64::MAX as u64)).await.unwrap(), amount);
        }
    }

    pub(crate) async fn a_member_is_another_one_in_another_guild(store: &impl Seed) {
        store.add(&guild("a")).await;
        store.add(&guild("b")).await;
        store.set_points(&guild("a"), member(7), 1).await.unwrap();
        store.set_points(&guild("b"), member(7), 2).await.unwrap();
        assert_eq!(store.points(&guild("a"), member(7)).await.unwrap(), 1);
        assert_eq!(store.points(&guild("b"), member(7)).await.unwrap(), 2);
    }

    pub(crate) async fn a_guild_that_is_missing_or_left_is_gone_for_every_operation(store: &impl Seed) {
        store.add(&guild("left")).await;
        store.set_points(&guild("left"), member(7), 3).await.unwrap();
        store.leave(&guild("left"), true).await;
        for id in ["left", "never"] {
            gone(store.points(&guild(id), member(7)).await);
            gone(store.warns(&guild(id), member(7), 0).await);
            gone(store.reviews(&guild(id), member(7)).await);
            gone(store.set_points(&guild(id), member(7), 4).await);
        }
        store.leave(&guild("left"), false).await;
        assert_eq!(store.points(&guild("left"), member(7)).await.unwrap(), 3);
    }

    pub(crate) async fn warn_and_review_ids_count_up_by_guild_and_come_in_their_order(store: &impl Seed) {
        store.add(&guild("g")).await;
        for expected in 1..=11 {
            assert_eq!(store.warn(&guild("g"), member(expected as u64 % 2), 100).await, expected);
            assert_eq!(store.review(&guild("g"), member(expected as u64 % 2), "kind").await, expected);
        }
        let warns = store.warns(&guild("g"), member(1), 0).await.unwrap();
        assert_eq!(warns.iter().map(|w| w.id).collect::<Vec<_>>(), [1, 3, 5, 7, 9, 11]);
        let reviews = store.reviews(&guild("g"), member(0)).await.unwrap();
        assert_eq!(reviews.iter().map(|r| r.id).collect::<Vec<_>>(), [2, 4, 6, 8, 10]);
    }

    pub(crate) async fn a_warn_is_gone_from_the_second_of_its_expiry_on(store: &impl Seed) {
        store.add(&guild("g")).await;
        store.warn(&guild("g"), member(7), 100).await;
        assert_eq!(store.warns(&guild("g"), member(7), 99).await.unwrap().len(), 1);
        assert_eq!(store.warns(&guild("g"), member(7), 100).await.unwrap(), []);
    }

    pub(crate) async fn what_is_stored_is_one_line(store: &impl Seed) {
        store.add(&guild("g")).await;
        store.review(&guild("g"), member(7), "two\r\nlines\u{85}").await;
        assert_eq!(store.reviews(&guild("g"), member(7)).await.unwrap()[0].text, "two  lines ");
    }

    pub(crate) async fn guilds_are_listed_with_those_left(store: &impl Seed) {
        store.add(&guild("b")).await;
        store.add(&guild("a")).await;
        store.leave(&guild("b"), true).await;
        let listed = store.guilds().await.unwrap();
        assert_eq!(listed.iter().map(|g| (g.id.as_str(), g.left)).collect::<Vec<_>>(), [("a", false), ("b", true)]);
    }

    pub(crate) async fn own_changes_are_not_told(store: &impl Seed) {
        store.add(&guild("g")).await;
        store.set_points(&guild("g"), member(7), 5).await.unwrap();
        assert_eq!(store.changes().await.unwrap(), []);
    }
}

/// Makes a test of each case; `$world` makes a value with a field `store`.
macro_rules! store_suite {
    ($world:expr) => {
        store_suite!(@each $world;
            a_member_unknown_to_the_guild_has_nothing
            set_points_makes_the_member_named_by_its_id
            points_may_be_any_signed_64_bit_number_of_the_largest_member
            a_member_is_another_one_in_another_guild
            a_guild_that_is_missing_or_left_is_gone_for_every_operation
            warn_and_review_ids_count_up_by_guild_and_come_in_their_order
            a_warn_is_gone_from_the_second_of_its_expiry_on
            what_is_stored_is_one_line
            guilds_are_listed_with_those_left
            own_changes_are_not_told
        );
    };
    (@each $world:expr; $($case:ident)*) => {
        $(
            #[tokio::test]
            async fn $case() {
                let world = $world;
                $crate::store::suite::cases::$case(&world.store).await;
            }
        )*
    };
}
pub(crate) use store_suite;
