//! What every store must do, whatever it is made of: `store_suite!(World)` makes a test of each sentence here, on new
//! stores of `World`'s kind.

pub(crate) mod daily;
pub(crate) mod feed;
pub(crate) mod key_life;
pub(crate) mod records;
pub(crate) mod requests;

use std::future::Future;
use std::time::{Duration, Instant};

use super::*;
use crate::model::{GuildId, MemberId};

/// A store that a test has for itself.
pub(crate) trait World: Sized {
    type Store: Store;

    fn new() -> impl Future<Output = Self>;

    /// A store whose feed keeps so many changes.
    fn keeping(changes: i64) -> impl Future<Output = Self>;

    fn store(&self) -> &Self::Store;

    /// A second opening of the same store, as another process or node has it.
    fn neighbour(&self) -> impl Future<Output = Self::Store>;

    /// The store, closed and opened again.
    fn reopened(self) -> impl Future<Output = Self>;

    fn add(&self, guild: &GuildId) -> impl Future<Output = ()> {
        async { self.store().add_guild(guild, "A guild").await.unwrap() }
    }
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

pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

/// What others changed. On a busy machine a feed over the network may be lost for a moment; it says so.
pub(crate) async fn told(store: &impl Store) -> Vec<Change> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match store.changes().await {
            Ok(changes) => return changes,
            Err(error) => assert!(Instant::now() < end, "the feed stays lost: {error}"),
        }
    }
}

async fn warn(store: &impl Store, member: MemberId, expires: i64) -> i64 {
    store.add_warn(&guild("g"), member, "Mod", "spam", expires).await.unwrap()
}

async fn review(store: &impl Store, member: MemberId, text: &str) -> i64 {
    store.add_review(&guild("g"), member, "Bo", 5, text).await.unwrap()
}

/// Makes a test of each case; `$world` is a [`World`].
macro_rules! store_suite {
    ($world:ty) => {
        store_suite!(@each $world;
            requests: a_member_unknown_to_the_guild_has_nothing set_points_makes_the_member_named_by_its_id points_may_be_any_signed_64_bit_number_of_the_largest_member a_member_is_another_one_in_another_guild a_guild_that_is_missing_or_left_is_gone_for_every_operation warn_and_review_ids_count_up_by_guild_and_come_in_their_order a_warn_is_gone_from_the_second_of_its_expiry_on what_is_stored_is_one_line guilds_are_listed_with_those_left own_changes_are_not_told;
            records: a_key_is_refused_where_its_id_its_secret_or_its_guild_is_wrong a_guild_is_added_once_and_only_one_that_is_there_can_be_left a_renamed_guild_is_the_same_guild a_removed_guild_takes_everything_of_it_along_and_begins_anew setting_a_member_changes_what_is_given_and_keeps_the_rest removing_a_member_takes_its_warns_and_reviews_along a_warn_or_review_is_removed_by_its_id_once a_rating_outside_one_to_five_is_refused;
            daily: counts_add_up_within_a_day_and_start_anew_with_the_next who_has_not_yet_seen_midnight_adds_to_the_new_day_and_takes_nothing_back a_day_further_ahead_was_a_wrong_clocks_and_counts_nothing a_key_named_twice_is_counted_twice a_count_stops_at_the_largest_number_that_is_kept counts_are_kept_across_restarts_seen_by_others_and_told_to_nobody;
            key_life: a_rotated_key_is_the_same_key_with_two_secrets_and_others_are_told without_an_overlap_the_old_secret_is_gone_at_once rotated_again_during_an_overlap_a_key_forgets_the_secret_before_the_last no_two_keys_and_no_two_secrets_of_a_key_are_alike a_key_that_is_not_there_or_has_expired_is_not_rotated a_previous_secret_ends_with_its_overlap_or_with_the_whole_key a_revoked_key_takes_both_its_secrets_along setting_a_key_changes_what_is_given_and_keeps_the_rest_its_secrets_included;
            feed: two_stores_on_one_file_see_each_others_data_and_are_told_of_each_others_changes guilds_and_keys_are_told_as_the_directory a_refused_write_is_not_told a_follower_of_a_new_store_misses_nothing_that_was_pruned;
        );
    };
    (@each $world:ty; $($module:ident: $($case:ident)*;)*) => {
        $($(
            #[tokio::test]
            async fn $case() {
                $crate::store::suite::$module::$case::<$world>().await;
            }
        )*)*
    };
}
pub(crate) use store_suite;
