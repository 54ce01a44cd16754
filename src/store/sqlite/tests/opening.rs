//! Tests of opening an SQLite store: files that are refused, each in one line that names the file and without a change
//! to it, a store of an older schema that is brought up to date, file modes, and several processes at once.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rusqlite::StatementStatus;

use super::*;
use crate::model::{Digest, Scope};
use crate::store::MemberRecord;
use crate::store::{GuildRecord, KeyRecord};

/// Opening this must fail, in one line that names the file.
fn line(path: &Path) -> String {
    match SqliteStore::open(path) {
        Err(StoreError::Failed(line)) => {
            assert!(line.contains(path.to_str().unwrap()), "{line}");
            assert!(!line.contains('\n'), "{line}");
            line
        }
        other => panic!("{other:?}"),
    }
}

fn closed_store() -> (TempDir, PathBuf) {
    let TestStore { store, folder } = TestStore::new();
    let path = folder.path().join("store.db");
    drop(store);
    (folder, path)
}

#[test]
fn a_file_that_is_not_sqlite_is_refused_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    let mut random = fastrand::Rng::with_seed(1);
    let random: Vec<u8> = (0..20_000).map(|_| random.u8(..)).collect();
    for bytes in [&random[..], b"short", &b"SQLite format 3\0"[..]] {
        fs::write(&path, bytes).unwrap();
        assert!(line(&path).contains("is not an SQLite file"));
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn a_store_cut_short_is_refused() {
    let (_folder, path) = closed_store();
    let whole = fs::read(&path).unwrap();
    for kept in [whole.len() - 1, whole.len() / 2, 4096, 5000] {
        fs::write(&path, &whole[..kept]).unwrap();
        assert!(line(&path).contains("damaged or cut short"), "{kept}");
    }
    fs::write(&path, &whole).unwrap();
    SqliteStore::open(&path).unwrap();
}

#[test]
fn a_read_only_store_is_refused() {
    let (_folder, path) = closed_store();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    assert!(line(&path).contains("read-only"));
}

#[test]
fn a_folder_or_a_file_in_a_missing_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(line(folder.path()).contains("is a folder"));
    assert!(line(&folder.path().join("not/there.db")).contains("does not exist; make it"));
    assert!(!folder.path().join("not").exists());
}

#[test]
fn a_database_of_another_program_is_refused_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bookmarks.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE bookmark (url TEXT)").unwrap();
    let before = fs::read(&path).unwrap();
    assert!(line(&path).contains("another program"));
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_store_of_a_newer_version_is_refused() {
    let (_folder, path) = closed_store();
    let sql = "INSERT INTO refinery_schema_history SELECT version + 1, 'later', applied_on, checksum \
        FROM refinery_schema_history ORDER BY version DESC LIMIT 1";
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    assert!(line(&path).contains("newer Guildgate (its schema is 4, this one knows 3)"));
}

/// Written by the commands of the version whose schema was the first. Beside what the test below
/// finds it holds what a running server wrote: the points of member 8, and a last use.
const FIRST_SCHEMA: &[u8] = include_bytes!("../../../../tests/fixtures/store-v1.db");

#[tokio::test]
async fn a_store_of_the_first_schema_is_brought_up_to_date_with_all_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    fs::write(&path, FIRST_SCHEMA).unwrap();
    let version = || {
        let sql = "SELECT max(version) FROM refinery_schema_history";
        Connection::open(&path).unwrap().query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(version(), 1);
    // Twice: what is up to date is left alone.
    for _ in 0..2 {
        let store = SqliteStore::open(&path).unwrap();
        let (here, departed) = (guild("81384788765712384"), guild("555"));
        let guilds = [
            GuildRecord { id: departed.clone(), name: "Gone Fishing".into(), departed: true },
            GuildRecord { id: here.clone(), name: "Night Watch".into(), departed: false },
        ];
        assert_eq!(store.guilds().await.unwrap(), guilds);
        let digest = |text: &str| text.parse::<Digest>().unwrap();
        let keys = [
            KeyRecord {
                id: "k_3p4g1ljt".into(),
                name: "Ada's bot".into(),
                guild: here.clone(),
                digest: digest("sha256:9832673f484074c8ca5963f9739318e82bd56439bde7d06085ef336c9134b53a"),
                tier: Some("gold".into()),
                scope: Scope::Read,
                created: 1_795_252_529,
                expires: Some(4_102_444_800),
                last_used: None,
                previous: None,
            },
            KeyRecord {
                id: "k_e17ruxhl".into(),
                name: "website".into(),
                guild: here.clone(),
                digest: digest("sha256:31c75db0b26771e233c6d03df081763bbc31b3afeaee29b12033e13820efaf69"),
                tier: None,
                scope: Scope::Write,
                created: 1_795_252_529,
                expires: None,
                last_used: Some(1_795_252_529),
                previous: None,
            },
        ];
        assert_eq!(store.keys().await.unwrap(), keys);
        let ada = member(190_551_803_669_118_976);
        let listed = |id, name: &str, points| MemberRecord { member: id, name: name.into(), points };
        let members = [listed(member(8), "8", -3), listed(ada, "Ada", 1250)];
        assert_eq!(store.members(&here, None, usize::MAX).await.unwrap(), members);
        assert_eq!(store.members(&departed, None, usize::MAX).await.unwrap(), []);
        let warn = Warn { id: 1, author: "Mod".into(), reason: "spam".into(), expires: 4_102_444_800 };
        assert_eq!(store.warns(&here, ada, 0).await.unwrap(), [warn]);
        let review = Review { id: 1, author: "Bo".into(), rating: 5, text: "Quick and kind".into() };
        assert_eq!(store.reviews(&here, ada).await.unwrap(), [review]);
        assert_eq!(store.daily(0).await.unwrap(), []);
        drop(store);
        assert_eq!(version(), 3);
    }
    // And what the new schema brings can be written into it.
    let store = SqliteStore::open(&path).unwrap();
    store.rotate_key("k_e17ruxhl", Digest::of(b"new"), Some(200), 100).await.unwrap();
    assert_eq!(store.add_daily(0, vec![("k_e17ruxhl".into(), 3)]).await.unwrap(), [("k_e17ruxhl".into(), 3)]);
    assert!(store.keys().await.unwrap()[1].previous.is_some());
}

#[tokio::test]
async fn the_files_are_the_owners_alone() {
    let test = TestStore::new();
    test.add_guild(&guild("g")).await;
    for suffix in ["", "-wal", "-shm"] {
        let path = format!("{}{suffix}", test.path().display());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{path}");
    }
}

#[test]
fn many_may_open_a_new_store_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    std::thread::scope(|scope| {
        let open = || SqliteStore::open(&path).map(drop);
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    });
}

#[tokio::test]
async fn closing_leaves_one_file_and_what_was_written_in_it() {
    let TestStore { store, folder } = TestStore::new();
    store.add_guild(&guild("g"), "A guild").await.unwrap();
    store.set_points(&guild("g"), member(7), 5).await.unwrap();
    drop(store);
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["store.db"]);
    let store = SqliteStore::open(folder.path().join("store.db")).unwrap();
    assert_eq!(store.points(&guild("g"), member(7)).await.unwrap(), 5);
}

#[test]
fn what_a_crashed_import_left_is_removed_at_the_next_start_and_one_in_use_is_not() {
    let (folder, path) = closed_store();
    let left = folder.path().join("store.db.import-0000000000000001.tmp");
    let used = folder.path().join("store.db.import-0000000000000002.tmp");
    let other = folder.path().join("store.db.import-notes");
    fs::write(&left, "x").unwrap();
    fs::write(&other, "x").unwrap();
    let lock = fs::File::create(&used).unwrap();
    lock.lock().unwrap();
    SqliteStore::open(&path).unwrap();
    assert_eq!([left.exists(), used.exists(), other.exists()], [false, true, true]);
}

#[tokio::test]
async fn statements_are_prepared_once_whatever_is_asked() {
    let test = TestStore::new();
    test.add_guild(&guild("g")).await;
    for id in 0..20 {
        test.store.set_points(&guild("g"), member(id), 1).await.unwrap();
        test.store.points(&guild("g"), member(id)).await.unwrap();
    }
    let prepared = |conn: &Connection, sql| -> rusqlite::Result<(i32, i32)> {
        let statement = conn.prepare_cached(sql)?;
        Ok((statement.get_status(StatementStatus::Run), statement.get_status(StatementStatus::RePrepare)))
    };
    assert_eq!(test.store.reads.readers().with(|conn| prepared(conn, readers::POINTS)).unwrap(), (20, 0));
    let written = move |conn: &Connection| Ok((prepared(conn, SET_POINTS)?, Some(Change::Directory)));
    assert_eq!(test.store.writer.run(Writes::Once, written).await.unwrap(), (20, 0));
}

/// How many locks of SQLite there are on the store's file.
fn locks(test: &TestStore) -> usize {
    use std::os::unix::fs::MetadataExt;

    let inode = format!(":{} ", test.path().metadata().unwrap().ino());
    std::fs::read_to_string("/proc/locks").unwrap().lines().filter(|line| line.contains(&inode)).count()
}

#[tokio::test]
async fn a_store_that_is_opened_again_hears_of_the_other_and_keeps_the_locks_on_the_file() {
    let test = TestStore::new();
    test.store.add_guild(&guild("g"), "G").await.unwrap();
    assert!(locks(&test) > 0, "this reads nothing");
    let again = test.store.open_again().unwrap();
    assert!(locks(&test) > 0);
    again.set_points(&guild("g"), member(7), 5).await.unwrap();
    assert_eq!(test.store.changes().await.unwrap(), [Change::Member(member(7))]);
    test.store.set_points(&guild("g"), member(8), 5).await.unwrap();
    assert_eq!(again.changes().await.unwrap(), [Change::Member(member(8))]);
    drop(again);
    assert!(locks(&test) > 0, "another process would take the store for closed");
    test.store.set_points(&guild("g"), member(8), 6).await.unwrap();
}
