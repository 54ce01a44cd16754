use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

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
    let World { store, folder } = World::new();
    let path = folder.path().join("store.db");
    drop(store);
    (folder, path)
}

#[test]
fn a_file_that_is_not_sqlite_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    let random: Vec<u8> = (0..20_000).map(|_| fastrand::u8(..)).collect();
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
fn a_database_of_another_program_is_refused_and_left_alone() {
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
    let sql = "INSERT INTO refinery_schema_history SELECT 999, 'later', applied_on, checksum \
        FROM refinery_schema_history";
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    assert!(line(&path).contains("newer Guildgate"));
}

#[tokio::test]
async fn the_files_are_the_owners_alone() {
    let world = World::new();
    world.store.add(&guild("g")).await;
    for suffix in ["", "-wal", "-shm"] {
        let path = format!("{}{suffix}", world.path().display());
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
    let World { store, folder } = World::new();
    store.add(&guild("g")).await;
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
