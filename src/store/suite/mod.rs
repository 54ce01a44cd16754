//! The test suite of both stores: `store_suite!(TestStore)` makes a test of each case here, on new stores of the kind of
//! `TestStore`.

pub(crate) mod daily;
pub(crate) mod feed;
pub(crate) mod key_life;
pub(crate) mod records;
pub(crate) mod requests;

use std::future::Future;
use std::time::{Duration, Instant};

use super::*;
use crate::model::{GuildId, MemberId};

/// A store that only one test uses.
pub(crate) trait TestStore: Sized {
    type Store: Store;

    fn new() -> impl Future<Output = Self>;

    /// A store whose feed keeps so many changes.
    fn with_feed_kept(changes: i64) -> impl Future<Output = Self>;

    fn store(&self) -> &Self::Store;

    /// A second opening of the same store, as another process or node has it.
    fn open_second(&self) -> impl Future<Output = Self::Store>;

    /// The store, closed and opened again.
    fn reopen(self) -> impl Future<Output = Self>;

    fn add_guild(&self, guild: &GuildId) -> impl Future<Output = ()> {
        async { self.store().add_guild(guild, "A guild").await.unwrap() }
    }
}

pub(crate) fn guild(id: &str) -> GuildId {
    id.parse().unwrap()
}

pub(crate) fn member(id: u64) -> MemberId {
    MemberId::new(id).unwrap()
}

pub(crate) fn is_departed<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    assert!(matches!(answer, Err(StoreError::GuildDeparted(_))), "{answer:?}");
}

pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::NotFound(why) | StoreError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

/// What others changed. On a busy machine a feed over the network may be lost for a moment; it says so.
pub(crate) async fn others_changes(store: &impl Store) -> Vec<Change> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match store.changes().await {
            Ok(changes) => return changes,
            Err(error) => assert!(Instant::now() < end, "the feed stays lost: {error}"),
        }
    }
}

/// A warn whose id the store is to choose.
pub(crate) fn warn_for(reason: &str, expires: i64) -> Warn {
    Warn { id: 0, author: "Mod".into(), reason: reason.into(), expires }
}

async fn warn(store: &impl Store, member: MemberId, expires: i64) -> i64 {
    store.add_note(&guild("g"), member, warn_for("spam", expires)).await.unwrap()
}

async fn review(store: &impl Store, member: MemberId, text: &str) -> i64 {
    store
        .add_note(&guild("g"), member, Review { id: 0, author: "Bo".into(), rating: 5, text: text.into() })
        .await
        .unwrap()
}

/// Makes a test of each case; `$test_store` implements [`TestStore`].
macro_rules! store_suite {
    ($test_store:ty) => {
        store_suite!(@each $test_store;
            requests: a_member_unknown_to_the_guild_has_nothing set_points_makes_the_member_named_by_its_id points_may_be_any_signed_64_bit_number_of_the_largest_member a_member_has_separate_records_in_each_guild a_guild_that_is_missing_or_departed_is_refused_for_every_operation warn_and_review_ids_count_up_by_guild_and_are_sorted a_warn_is_hidden_from_the_second_of_its_expiry what_is_stored_is_one_line a_members_name_is_at_most_64_kib_long departed_guilds_are_listed_too own_changes_are_not_reported;
            records: a_key_with_a_wrong_id_secret_or_guild_is_refused a_guild_is_added_once_and_only_an_existing_one_can_depart a_renamed_guild_is_the_same_guild a_guild_is_removed_with_everything_of_it_and_begins_empty_when_added_again setting_a_member_changes_the_given_fields a_member_is_removed_with_its_warns_and_reviews a_warn_or_review_is_removed_by_its_id_once a_rating_outside_one_to_five_is_refused a_page_begins_after_an_id_and_has_so_many_items a_warn_or_review_is_put_under_an_id_again_and_again_and_never_under_another_members;
            daily: counts_add_up_within_a_day_and_restart_with_the_next a_node_before_midnight_adds_to_the_new_day_and_removes_no_count counts_of_a_day_further_ahead_are_dropped a_key_listed_twice_is_counted_twice a_count_stops_at_the_largest_number_that_is_kept counts_survive_restarts_are_seen_by_others_and_are_no_change a_day_is_reset_for_keys_that_are_known_and_others_are_told;
            key_life: a_rotated_key_is_the_same_key_with_two_secrets_and_others_see_it without_an_overlap_the_old_secret_is_refused_at_once a_key_rotated_again_during_an_overlap_forgets_the_secret_before_the_last no_two_keys_and_no_two_secrets_of_a_key_are_equal a_missing_or_expired_key_is_not_rotated a_previous_secret_ends_with_its_overlap_or_with_the_whole_key a_revoked_key_frees_both_its_secrets setting_a_key_changes_the_given_fields_and_keeps_its_secrets;
            feed: two_openings_of_a_store_see_each_others_data_and_changes changes_of_guilds_and_keys_are_changes_of_the_directory a_refused_write_is_not_a_change a_follower_of_a_new_store_misses_no_pruned_change;
        );
    };
    (@each $test_store:ty; $($module:ident: $($case:ident)*;)*) => {
        $($(
            #[tokio::test]
            async fn $case() {
                $crate::store::suite::$module::$case::<$test_store>().await;
            }
        )*)*
    };
}
pub(crate) use store_suite;
