//! A copy of a store as it is at one moment, made while others go on writing to it.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, ErrorCode};

use super::open_file::Identity;
use super::{failure, lineage, look, open};
use crate::clock::Clock;
use crate::store::under_way::{self, BESIDE, PART, UnderWay};
use crate::store::{StoreError, refusals};

/// Pages copied between two reports of progress: 4 MiB, a few milliseconds' work.
const STEP: i32 = 1024;

/// How long a copy waits without one page copied, and before that for its first look. Somebody may have a file to himself
/// while he recovers it or empties its write-ahead log, which takes seconds; a minute says that something hangs, as it
/// does for opening a store.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the wait above looks again.
const POLL: Duration = Duration::from_millis(10);

/// How far a copy is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    pub done: u64,
    pub total: u64,
}

/// Copies the store at `from` to `to`, which is replaced whole or not at all; answers its size in
/// bytes. Blocks.
pub(super) fn backup(from: &Path, to: &Path, told: &mut dyn FnMut(Copied)) -> Result<u64, StoreError> {
    backup_within(PATIENCE, from, to, told)
}

fn backup_within(patience: Duration, from: &Path, to: &Path, told: &mut dyn FnMut(Copied)) -> Result<u64, StoreError> {
    let of_source = |e| match failure::is_busy(&e) {
        true => alone_too_long(from, to, patience),
        false => failure::of(from, &e),
    };
    if open::is_missing(from) {
        return Err(refusals::no_store(from.display()));
    }
    let there = fs::metadata(from).map_err(|e| StoreError::Failed(format!("{}: {e}", from.display())))?;
    if !there.is_file() {
        return Err(StoreError::Failed(format!("{} is not a file", from.display())));
    }
    lineage::refuse_stray(from)?;
    let source = open::untouching(from, patience).map_err(of_source)?;
    // One snapshot for all steps: without it a write between two of them would start the copy anew,
    // and beside a busy server it would never end.
    source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema").map_err(of_source)?;
    look::is_ours(&source, from)?;
    let target = under_way::led_to(to).map_err(|e| unwritable(to, &e))?;
    refuse_target(from, &target)?;
    let part = UnderWay::make(&target, PART).map_err(|e| unwritable(to, &e))?;
    copy_whole(&source, from, &part, to, patience, told)?;
    part.put_in_place().map_err(|e| unwritable(to, &e))
}

/// Copies `source`, the store at `from`, to `part`, which is to take the place of `to`, and looks whether the copy is
/// sound. It gets a lineage of its own.
fn copy_whole(
    source: &Connection,
    from: &Path,
    part: &UnderWay,
    to: &Path,
    patience: Duration,
    told: &mut dyn FnMut(Copied),
) -> Result<(), StoreError> {
    let of_source = |e| failure::of(from, &e);
    let schema = open::schema_version(source).map_err(of_source)?;
    let page: i64 = source.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(of_source)?;
    let whole =
        copy(source, part.path(), page.unsigned_abs(), patience, told).map_err(|e| match e.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => unwritable(to, &"the disk is full"),
            _ => failure::of(from, &e),
        })?;
    if !whole {
        return Err(alone_too_long(from, to, patience));
    }
    // A damaged store does not take the place of a good backup. Nobody else writes to the copy, and there may be no
    // room for anything beside it.
    let sound = look::unmoving(part.path()).and_then(|copy| {
        copy.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)).map(|said| said == "ok")
    });
    let is_damage = |e: &rusqlite::Error| {
        matches!(e.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    };
    match sound {
        Ok(true) => {}
        // The copy could not be looked at.
        Err(error) if !is_damage(&error) => return Err(unwritable(to, &error)),
        Ok(false) | Err(_) => return Err(failure::damaged(from, "`guildgate store verify` names what is wrong")),
    }
    // An older version would write to it without a word of its lineage.
    if schema >= lineage::SINCE_SCHEMA { lineage::put_into(part.file()) } else { Ok(()) }
}

/// Copies the store at `from`, which is left as it is, to `part`, which is to take the place of `to`.
pub(super) fn copy_sound(
    from: &Path,
    part: &UnderWay,
    to: &Path,
    told: &mut dyn FnMut(Copied),
) -> Result<(), StoreError> {
    let told = RefCell::new(told);
    look::at(from, |source| {
        source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema").map_err(|e| failure::of(from, &e))?;
        copy_whole(source, from, part, to, PATIENCE, &mut |copied| told.borrow_mut()(copied))
    })
}

fn alone_too_long(from: &Path, to: &Path, patience: Duration) -> StoreError {
    StoreError::Busy(format!(
        "{} has been another process's alone for {patience:?}; {} is as it was, try again",
        from.display(),
        to.display()
    ))
}

/// Copies page by page. `false` where nothing could be copied for as long as `patience`.
fn copy(
    source: &Connection,
    to: &Path,
    page: u64,
    patience: Duration,
    told: &mut dyn FnMut(Copied),
) -> rusqlite::Result<bool> {
    let mut target = open::under_way(to)?;
    let backup = Backup::new(source, &mut target)?;
    let clock = Clock::system();
    let mut moved = clock.now();
    loop {
        let step = backup.step(STEP)?;
        let progress = backup.progress();
        let pages = |n: i32| u64::from(n.unsigned_abs()) * page;
        told(Copied { done: pages(progress.pagecount - progress.remaining), total: pages(progress.pagecount) });
        match step {
            StepResult::Done => return Ok(true),
            StepResult::More => moved = clock.now(),
            _ if clock.now().since(moved) >= patience => return Ok(false),
            _ => std::thread::sleep(POLL),
        }
    }
}

/// Refuses what a copy must not replace: the store itself and what lies beside it, a store that may be
/// open (what is in its write-ahead log would be read into the copy), and whatever is no store.
fn refuse_target(from: &Path, to: &Path) -> Result<(), StoreError> {
    let refused = |why: &str| Err(StoreError::Refused(format!("{} {why}; name another file", to.display())));
    let name = to.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if BESIDE.iter().any(|beside| name.ends_with(beside)) {
        return refused("has a name that SQLite keeps for itself");
    }
    let Ok(there) = fs::metadata(to) else { return Ok(()) };
    if !there.is_file() {
        return refused("is not a file");
    }
    if Identity::of(from).is_ok_and(|from| Identity::of(to).is_ok_and(|to| from == to)) {
        return refused("is the store itself");
    }
    let beside = |end: &&str| {
        let mut path = OsString::from(to);
        path.push(end);
        fs::metadata(path).is_ok()
    };
    if let Some(end) = BESIDE.iter().find(|end| beside(end)) {
        return refused(&format!("is a store in use (there is a {end} beside it)"));
    }
    if there.len() > 0 && look::at(to, |conn| look::is_ours(conn, to)).is_err() {
        return refused("is there, and is no backup of a store");
    }
    Ok(())
}

fn unwritable(to: &Path, why: &dyn std::fmt::Display) -> StoreError {
    StoreError::Failed(format!("{} cannot be written: {why}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_waits_for_who_has_the_file_alone_and_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from.db"), folder.path().join("to.db"));
        let source = Connection::open(&from).unwrap();
        source.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (7)").unwrap();
        let other = Connection::open(&from).unwrap();
        other.execute_batch("BEGIN EXCLUSIVE").unwrap();
        source.busy_timeout(Duration::ZERO).unwrap();
        fs::File::create(&to).unwrap();
        let mut looks = 0;
        let gave_up = copy(&source, &to, 4096, Duration::from_millis(30), &mut |_| looks += 1).unwrap();
        assert!(!gave_up && looks > 1, "{looks}");
        let mut looks = 0;
        let waited = copy(&source, &to, 4096, PATIENCE, &mut |_| {
            looks += 1;
            if looks == 2 {
                other.execute_batch("COMMIT").unwrap();
            }
        });
        assert!(waited.unwrap() && looks > 2, "{looks}");
        let copied = Connection::open(&to).unwrap().query_row("SELECT x FROM t", [], |row| row.get::<_, i64>(0));
        assert_eq!(copied.unwrap(), 7);
    }

    #[test]
    fn a_store_that_another_has_to_himself_from_the_start_is_waited_for_as_long_and_given_up_in_the_same_words() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from.db"), folder.path().join("to.db"));
        drop(crate::store::SqliteStore::open(&from).unwrap());
        let other = Connection::open(&from).unwrap();
        other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; DELETE FROM member").unwrap();
        let gave_up = backup_within(Duration::from_millis(30), &from, &to, &mut |_| {}).unwrap_err();
        assert!(
            matches!(&gave_up, StoreError::Busy(line) if line.contains("another process's alone for 30ms")),
            "{gave_up}"
        );
        let frees = std::thread::spawn(move || drop(other));
        backup_within(PATIENCE, &from, &to, &mut |_| {}).unwrap();
        frees.join().unwrap();
    }
}
