//! A copy of a store as it is at one moment, made while others go on writing to it. Writes to the copy only.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, ErrorCode};

use super::failure::{self, Failure};
use super::{SqliteStore, inspect, lineage, open};
use crate::clock::Clock;
use crate::files::{FileId, follow_links, with_suffix};
use crate::store::temp_file::{PART, TempFile};
use crate::store::{SQLITE_FILES, StoreError, blocking, refusals};

/// Pages copied between two reports of progress: 4 MiB, a few milliseconds' work.
const STEP: i32 = 1024;

/// How long a copy waits without one page copied, and before that for its snapshot. A process may have a file for itself
/// while it recovers it or empties its write-ahead log, which takes seconds; after a minute something hangs, as when
/// opening a store.
const PATIENCE: Duration = Duration::from_secs(60);

/// Begins a read transaction, and its snapshot with it.
const SNAPSHOT: &str = "BEGIN; SELECT count(*) FROM sqlite_schema";

/// How often the wait above tries again.
const POLL: Duration = Duration::from_millis(10);

/// How far a copy is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    pub done: u64,
    pub total: u64,
}

impl SqliteStore {
    /// Copies the store at `from`, as it is at one moment, while others may go on writing to it (its WAL grows by what
    /// they write). The copy is a temporary file that is ready to replace `to`, which is never a store in use.
    pub async fn backup(
        from: &Path,
        to: &Path,
        progress: impl FnMut(Copied) + Send + 'static,
    ) -> Result<TempFile, StoreError> {
        backup_within(PATIENCE, from, to, progress).await
    }
}

async fn backup_within(
    patience: Duration,
    from: &Path,
    to: &Path,
    mut progress: impl FnMut(Copied) + Send + 'static,
) -> Result<TempFile, StoreError> {
    let paths = (from.to_owned(), to.to_owned());
    let source = blocking(move || snapshot(&paths.0, &paths.1, patience)).await?;
    let part = TempFile::new(to, PART).map_err(|e| unwritable(to, &e))?;
    let (from, copy, to) = (from.to_owned(), part.path().to_owned(), to.to_owned());
    let work = move || copy_store(&source, &from, &copy, &to, patience, &mut progress).map_err(|e| e.at(&from));
    blocking(work).await?;
    Ok(part)
}

/// A connection with a snapshot of the store at `from`, if that can be copied to `to`.
fn snapshot(from: &Path, to: &Path, patience: Duration) -> Result<Connection, StoreError> {
    let failed = |failure| match failure {
        Failure::Sqlite(error) if failure::is_busy(&error) => alone_too_long(from, to, patience),
        failure => failure.at(from),
    };
    let begin = || -> Result<Connection, Failure> {
        if open::is_missing(from) {
            return Err(refusals::no_store(from.display()).into());
        }
        if !fs::metadata(from)?.is_file() {
            return Err(StoreError::Failed(format!("{} is not a file", from.display())).into());
        }
        lineage::refuse_foreign_wal(from)?;
        let source = open::query_only(from, patience)?;
        // One snapshot for all steps: without it a write between two of them would start the copy again,
        // and while a busy server runs, it would never end.
        source.execute_batch(SNAPSHOT)?;
        inspect::must_be_store(&source, from)?;
        Ok(source)
    };
    let source = begin().map_err(failed)?;
    refuse_target(from, &follow_links(to).map_err(|e| unwritable(to, &e))?)?;
    Ok(source)
}

/// Copies `source`, the store at `from`, to the empty file `copy`, which is to replace `to`, and checks the copy. It gets
/// a lineage of its own.
fn copy_store(
    source: &Connection,
    from: &Path,
    copy: &Path,
    to: &Path,
    patience: Duration,
    progress: &mut dyn FnMut(Copied),
) -> Result<(), Failure> {
    let schema = open::schema_version(source)?;
    let page: i64 = source.pragma_query_value(None, "page_size", |row| row.get(0))?;
    match copy_pages(source, copy, page.unsigned_abs(), patience, progress) {
        Ok(true) => {}
        Ok(false) => return Err(alone_too_long(from, to, patience).into()),
        Err(e) if failure::is_full(&e) => return Err(unwritable(to, &"the disk is full").into()),
        Err(e) => return Err(e.into()),
    }
    // A damaged store must not replace a good backup. Nobody else writes to the copy, and there may be no
    // room for any other file.
    let check = inspect::immutable(copy)
        .and_then(|copy| copy.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)));
    let is_damage = |e: &rusqlite::Error| {
        matches!(e.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    };
    match check {
        Ok(found) if found == "ok" => {}
        // The copy could not be read.
        Err(error) if !is_damage(&error) => return Err(unwritable(to, &error).into()),
        Ok(_) | Err(_) => return Err(failure::damaged(from, "`guildgate store verify` names what is wrong").into()),
    }
    // An older version would commit to it without raising its lineage.
    if schema >= lineage::SINCE_SCHEMA {
        lineage::renew(copy)?;
    }
    Ok(())
}

/// Copies the store at `from`, which is left as it is, to the empty file `copy`, which is to replace `to`.
pub(super) fn copy_closed_store(
    from: &Path,
    copy: &Path,
    to: &Path,
    progress: &mut dyn FnMut(Copied),
) -> Result<(), StoreError> {
    inspect::read(from, |source| {
        source.execute_batch(SNAPSHOT)?;
        copy_store(source, from, copy, to, PATIENCE, progress)
    })
}

fn alone_too_long(from: &Path, to: &Path, patience: Duration) -> StoreError {
    StoreError::Busy(format!(
        "{} has been another process's alone for {patience:?}; {} is as it was, try again",
        from.display(),
        to.display()
    ))
}

/// Copies page by page. `false` if nothing could be copied for as long as `patience`.
fn copy_pages(
    source: &Connection,
    to: &Path,
    page: u64,
    patience: Duration,
    progress: &mut dyn FnMut(Copied),
) -> rusqlite::Result<bool> {
    let mut target = open::temporary(to)?;
    let backup = Backup::new(source, &mut target)?;
    let clock = Clock::system();
    let mut last_copied = clock.now();
    loop {
        let step = backup.step(STEP)?;
        let state = backup.progress();
        let bytes = |pages: i32| u64::from(pages.unsigned_abs()) * page;
        progress(Copied { done: bytes(state.pagecount - state.remaining), total: bytes(state.pagecount) });
        match step {
            StepResult::Done => return Ok(true),
            StepResult::More => last_copied = clock.now(),
            _ if clock.now().since(last_copied) >= patience => return Ok(false),
            _ => std::thread::sleep(POLL),
        }
    }
}

/// Refuses what a copy must not replace: the store itself and the files beside it, a store that may be
/// open (SQLite would read its write-ahead log into the copy), and any file that is not a store.
fn refuse_target(from: &Path, to: &Path) -> Result<(), StoreError> {
    let refused = |why: &str| Err(StoreError::Refused(format!("{} {why}; name another file", to.display())));
    let name = to.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if SQLITE_FILES.iter().any(|end| name.ends_with(end)) {
        return refused("has a name that SQLite keeps for itself");
    }
    let Ok(meta) = fs::metadata(to) else { return Ok(()) };
    if !meta.is_file() {
        return refused("is not a file");
    }
    if FileId::of(from).is_ok_and(|from| FileId::of(to).is_ok_and(|to| from == to)) {
        return refused("is the store itself");
    }
    if let Some(end) = SQLITE_FILES.iter().find(|end| with_suffix(to, end).exists()) {
        return refused(&format!("is a store in use (there is a {end} beside it)"));
    }
    if meta.len() > 0 && inspect::read(to, |conn| inspect::must_be_store(conn, to)).is_err() {
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
    fn a_copy_waits_a_bounded_time_for_a_process_that_has_locked_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from.db"), folder.path().join("to.db"));
        let source = Connection::open(&from).unwrap();
        source.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (7)").unwrap();
        let other = Connection::open(&from).unwrap();
        other.execute_batch("BEGIN EXCLUSIVE").unwrap();
        source.busy_timeout(Duration::ZERO).unwrap();
        fs::File::create(&to).unwrap();
        let mut steps = 0;
        let gave_up = copy_pages(&source, &to, 4096, Duration::from_millis(30), &mut |_| steps += 1).unwrap();
        assert!(!gave_up && steps > 1, "{steps}");
        let mut steps = 0;
        let waited = copy_pages(&source, &to, 4096, PATIENCE, &mut |_| {
            steps += 1;
            if steps == 2 {
                other.execute_batch("COMMIT").unwrap();
            }
        });
        assert!(waited.unwrap() && steps > 2, "{steps}");
        let copied = Connection::open(&to).unwrap().query_row("SELECT x FROM t", [], |row| row.get::<_, i64>(0));
        assert_eq!(copied.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_backup_waits_as_long_for_its_snapshot_and_gives_up_in_the_same_words() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from.db"), folder.path().join("to.db"));
        drop(crate::store::SqliteStore::open(&from).unwrap());
        let other = Connection::open(&from).unwrap();
        other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; DELETE FROM member").unwrap();
        let gave_up = backup_within(Duration::from_millis(30), &from, &to, |_| {}).await.unwrap_err();
        assert!(
            matches!(&gave_up, StoreError::Busy(line) if line.contains("another process's alone for 30ms")),
            "{gave_up}"
        );
        let frees = std::thread::spawn(move || drop(other));
        backup_within(PATIENCE, &from, &to, |_| {}).await.unwrap();
        frees.join().unwrap();
    }
}
