//! The tests of a store, on both kinds: each case here is run on a new SQLite file and on a new database of a real
//! PostgreSQL server.

pub(crate) mod daily;
pub(crate) mod feed;
pub(crate) mod key_life;
pub(crate) mod opening;
pub(crate) mod records;
pub(crate) mod requests;
pub(crate) mod transfer;
pub(crate) mod writing;

#[path = "../../../tests/it/support/port.rs"]
mod port;
#[expect(dead_code, reason = "the tests from the outside use more of it")]
#[path = "../../../tests/it/support/postgres.rs"]
pub(crate) mod server;

use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::*;
use crate::config::PostgresAt;
use crate::model::{REVIEW, WARN};
use server::Postgres;

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

/// A store that only one test uses.
pub(crate) struct TestStore {
    store: Arc<Store>,
    pub(crate) at: StoreAt,
    _folder: TempDir,
}

impl TestStore {
    pub(crate) async fn new(kind: Kind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = match kind {
            Kind::Sqlite => StoreAt::Sqlite(folder.path().join("store.db")),
            Kind::Postgres => {
                let url = Postgres::shared().database().await;
                StoreAt::Postgres(Box::new(PostgresAt::parse(&url, Path::new("/")).unwrap()))
            }
        };
        let store = Store::open(&at, IfMissing::Make).await.unwrap();
        TestStore { store, at, _folder: folder }
    }

    /// A store with the guild g.
    pub(crate) async fn with_guild(kind: Kind) -> Self {
        let test = Self::new(kind).await;
        test.add_guild(&guild("g")).await;
        test
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// A second opening of the same store, as another process or node has it.
    pub(crate) async fn open_second(&self) -> Arc<Store> {
        Store::open(&self.at, IfMissing::Make).await.unwrap()
    }

    /// The store, closed and opened again.
    pub(crate) async fn reopen(self) -> Self {
        let TestStore { store, at, _folder } = self;
        drop(store);
        TestStore { store: Store::open(&at, IfMissing::Refuse).await.unwrap(), at, _folder }
    }

    pub(crate) async fn add_guild(&self, guild: &GuildId) {
        self.store().add_guild(guild, "A guild").await.unwrap();
    }

    /// Runs statements in a session that does not use the store's code.
    pub(crate) async fn raw(&self, sql: &str) {
        match &self.at {
            StoreAt::Sqlite(path) => rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap(),
            StoreAt::Postgres(at) => session(at).await.batch_execute(sql).await.unwrap(),
        }
    }
}

/// A session of PostgreSQL, in the schema of the store.
pub(crate) async fn session(at: &PostgresAt) -> tokio_postgres::Client {
    let (client, connection) = at.server.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("SET search_path = guildgate").await.unwrap();
    client
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

pub(crate) fn failed<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Failed(why)) => why,
        other => panic!("not failed: {other:?}"),
    }
}

/// What others changed. On a busy machine a read of the feed may come too late for a moment; it says so.
pub(crate) async fn others_changes(store: &Store) -> Vec<Change> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match store.changes().await {
            Ok(changes) => return changes,
            Err(error) => assert!(Instant::now() < end, "the feed stays lost: {error}"),
        }
    }
}

/// A warn whose id the store is to choose.
pub(crate) fn warn_for(reason: &str, expires: i64) -> Note {
    Note { id: 0, author: "Mod".into(), text: reason.into(), number: expires }
}

async fn warn(store: &Store, member: MemberId, expires: i64) -> i64 {
    store.add_note(&WARN, &guild("g"), member, warn_for("spam", expires)).await.unwrap()
}

async fn review(store: &Store, member: MemberId, text: &str) -> i64 {
    let review = Note { id: 0, author: "Bo".into(), number: 5, text: text.into() };
    store.add_note(&REVIEW, &guild("g"), member, review).await.unwrap()
}

/// Makes two tests of each case.
macro_rules! suite {
    ($($module:ident: $($case:ident)*;)*) => {
        mod on_sqlite { $($(
            #[tokio::test]
            async fn $case() {
                super::$module::$case(super::Kind::Sqlite).await;
            }
        )*)* }
        mod on_postgres { $($(
            #[tokio::test]
            async fn $case() {
                super::$module::$case(super::Kind::Postgres).await;
            }
        )*)* }
    };
}

suite! {
    requests: points_may_be_any_signed_64_bit_number_of_the_largest_member
        a_guild_that_is_missing_or_departed_is_refused_for_every_operation
        warn_and_review_ids_count_up_by_guild_and_are_sorted a_warn_is_hidden_from_the_second_of_its_expiry
        a_members_name_is_at_most_64_kib_long;
    records: keys_are_found_by_text_and_state the_last_uses_of_many_keys_are_recorded a_renamed_guild_is_the_same_guild
        a_guild_is_removed_with_everything_of_it_and_begins_empty_when_added_again
        setting_a_member_changes_the_given_fields a_member_is_removed_with_its_warns_and_reviews
        a_page_begins_after_an_id_and_has_so_many_items
        a_warn_or_review_is_put_under_an_id_again_and_again_and_never_under_another_members
        a_warn_or_review_that_makes_an_answer_longer_than_a_mebibyte_is_refused;
    daily: counts_add_up_within_a_day_and_restart_with_the_next
        counts_survive_restarts_are_seen_by_others_and_are_no_change
        a_day_is_reset_for_keys_that_are_known_and_others_are_told
        days_long_past_are_removed_a_thousand_at_a_time_and_yesterday_is_not
        requests_of_31_days_are_kept_and_those_of_many_processes_are_added;
    key_life: a_rotated_key_is_the_same_key_with_two_secrets_and_others_see_it
        without_an_overlap_the_old_secret_is_refused_at_once no_two_keys_and_no_two_secrets_of_a_key_are_equal
        a_missing_or_expired_key_is_not_rotated a_previous_secret_ends_with_its_overlap_or_with_the_whole_key
        a_revoked_key_frees_both_its_secrets setting_a_key_changes_the_given_fields_and_keeps_its_secrets;
    feed: two_openings_of_a_store_see_each_others_data_and_changes
        a_follower_that_missed_pruned_changes_reads_everything_once
        a_store_restored_to_an_earlier_state_reads_as_everything
        two_nodes_that_write_at_once_number_their_changes_without_a_gap;
    writing: many_writes_at_once_are_all_answered_and_durable a_refused_write_does_not_affect_others_of_its_group
        a_store_held_by_another_is_busy_after_a_second_and_nothing_is_written
        a_guild_is_removed_while_others_hold_it_for_seconds_and_add_members
        a_write_that_could_not_begin_within_a_second_because_the_store_hung_is_refused_and_never_written
        a_write_whose_caller_has_gone_before_it_begins_is_not_written
        a_connection_that_comes_too_late_for_a_read_is_the_next_ones;
    opening: many_may_open_a_new_store_at_once a_newer_schema_is_refused_and_not_changed
        a_store_of_the_first_schema_is_brought_up_to_date_once_no_other_process_has_it_open;
    transfer: an_import_is_exported_byte_for_byte_and_read_back
        a_bad_line_is_reported_by_number_and_reason_and_nothing_is_imported
        a_guild_neither_in_the_file_nor_in_the_store_makes_bad_lines an_import_may_pause_for_longer_than_a_write_may
        of_many_bad_lines_the_first_are_shown_and_the_rest_counted
        a_file_that_changes_between_its_two_readings_is_not_imported an_import_that_is_dropped_leaves_nothing
        an_import_of_longer_answers_than_a_mebibyte_is_refused_and_names_the_members
        any_records_are_stored_by_the_rules_and_an_export_imports_as_itself;
}
