//! Which write-ahead log belongs to which file. SQLite goes by their names alone: where a backup was copied over a
//! store whose log was left behind by a crash, it would read the log into the backup.
//!
//! So a store has a lineage, a number in the header of its file (`PRAGMA user_version`). It is drawn at random for
//! each backup, each restore, and each opening that finds no log, and each commit of ours adds one to it
//! ([`mark`]). So a log names the lineages of its commits, and the one before its first commit is that of the file when
//! the log began. A log belongs to a file that has one of these: the file's own lineage changes only by a checkpoint of
//! that log. Both are read here as they lie on the disk, before SQLite sees them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use crate::store::StoreError;

/// The oldest schema whose commits name their lineage. A file of an older one has none (0).
pub(super) const SINCE_SCHEMA: i64 = 3;

/// How every SQLite file begins.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Where the header of a file, its first page, has the lineage: `user_version`, big-endian.
const LINEAGE_AT: usize = 60;

/// The header of a file.
const HEADER: usize = 100;

/// The headers of a log and of each frame in it.
const LOG_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// What a log begins with; one added to it says that its checksums are of big-endian words.
const LOG_MAGIC: u32 = 0x377f_0682;

/// Looks at a pair that does not fit: a server may just be writing to both.
const LOOKS: usize = 5;

/// Between two of them.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Gives the transaction that `conn` is in the next lineage. Every commit does that: a log that begins with one that
/// does not would be taken for the log of an older file as well.
pub(in crate::store) fn mark(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "user_version", now(conn)?.wrapping_add(1))
}

/// The lineage of the newest commit.
pub(super) fn now(conn: &Connection) -> rusqlite::Result<i32> {
    conn.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))
}

/// Gives the store in `file` another lineage, in the file itself: in a log it would stand beside the one before, and be in
/// the file only after some later checkpoint. So it is done only where there is no log, and thus nobody has it open.
pub(super) fn renew(file: &Path) -> Result<(), StoreError> {
    if beside(file, "-wal").exists() {
        return Ok(());
    }
    let failed = |e: io::Error| StoreError::Failed(format!("{} cannot be written to: {e}", file.display()));
    let file = File::options().write(true).open(file).map_err(failed)?;
    put_into(&file)?;
    file.sync_data().map_err(failed)
}

/// Writes another lineage into a file that nobody has open.
pub(super) fn put_into(file: &File) -> Result<(), StoreError> {
    let written = file.write_all_at(&draw()?.to_be_bytes(), LINEAGE_AT as u64);
    written.map_err(|e| StoreError::Failed(format!("the copy cannot be written to: {e}")))
}

/// A lineage of a store's own.
pub(super) fn draw() -> Result<i32, StoreError> {
    let drawn = getrandom::u32().map_err(|e| StoreError::Failed(format!("no random number to be had: {e}")))?;
    Ok(drawn.max(1).cast_signed())
}

/// A log beside a file to which it does not belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stray {
    pub(super) what: String,
    pub(super) repair: String,
}

/// Refuses a file with a log beside it that is not its own; neither is changed.
pub(super) fn refuse_stray(path: &Path) -> Result<(), StoreError> {
    match stray(path)? {
        None => Ok(()),
        Some(Stray { what, repair }) => Err(StoreError::Failed(format!("{what}. Nothing was changed. {repair}"))),
    }
}

/// The log beside the store at `path`, where it is not the store's own.
pub(super) fn stray(path: &Path) -> Result<Option<Stray>, StoreError> {
    let failed = |e: io::Error| StoreError::Failed(format!("{}: {e}", path.display()));
    // SQLite puts it beside the file itself, not beside a link to it.
    let file = crate::store::under_way::led_to(path).map_err(failed)?;
    let log = beside(&file, "-wal");
    for _ in 0..LOOKS {
        let Some(named) = named_by(&log).map_err(failed)? else { return Ok(None) };
        let what = match of_file(&file).map_err(failed)? {
            Found::Lineage(own) if fits(own, &named) => return Ok(None),
            // What it is, others say.
            Found::Unknown => return Ok(None),
            Found::Lineage(_) => format!(
                "{} is not the log of {}: it was written for another store, or for another state of this one, and would \
                 overwrite parts of it",
                log.display(),
                file.display()
            ),
            Found::Nothing => format!("{} is not there, but its log is: {}", file.display(), log.display()),
        };
        std::thread::sleep(BETWEEN_LOOKS);
        let (now, file) = (of_file(&file).map_err(failed)?, file.display());
        if now == Found::Unknown || named_by(&log).map_err(failed)?.as_ref() != Some(&named) {
            continue;
        }
        let repair = format!(
            "If a file was copied or moved by hand, put the one to which the log belongs back, or move the log away (mv \
             {0} {0}.old) to go on with {file} as it is; `guildgate store restore FILE` puts a backup in place",
            log.display()
        );
        return Ok(Some(Stray { what, repair }));
    }
    Ok(None)
}

/// Whether the log beside a file holds commits of that file.
pub(super) fn has_own_log(file: &Path) -> io::Result<bool> {
    let named = named_by(&beside(file, "-wal"))?;
    Ok(matches!((of_file(file)?, named), (Found::Lineage(own), Some(named)) if fits(own, &named)))
}

/// Whether no commit is in this log, or it is not there.
pub(super) fn has_no_commit(log: &Path) -> bool {
    matches!(named_by(log), Ok(None))
}

/// Whether a log whose commits name these lineages is that of a file of this one.
fn fits(own: i32, named: &HashSet<i32>) -> bool {
    named.contains(&own) || (own == 0 && named.is_empty())
}

/// What lies beside a file under its name and this ending.
pub(super) fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(end);
    name.into()
}

/// What a file says of its lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Lineage(i32),
    /// It is no SQLite file, or not whole.
    Unknown,
    /// There is no file, or nothing in it.
    Nothing,
}

fn of_file(path: &Path) -> io::Result<Found> {
    match File::open(path).and_then(|file| Ok((of_open(&file)?, file.metadata()?.len()))) {
        Ok((Some(lineage), _)) => Ok(Found::Lineage(lineage)),
        Ok((None, 0)) => Ok(Found::Nothing),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Found::Nothing),
        // Whoever opens it says it better.
        Ok((None, _)) | Err(_) => Ok(Found::Unknown),
    }
}

/// The lineage in the header of an open file; `None` where it is no SQLite file, or not whole.
pub(super) fn of_open(file: &File) -> io::Result<Option<i32>> {
    let mut header = [0; HEADER];
    match file.read_exact_at(&mut header, 0) {
        Ok(()) => Ok(header.starts_with(MAGIC).then(|| in_page(&header))),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

/// The lineage in a first page.
fn in_page(page: &[u8]) -> i32 {
    word(page, LINEAGE_AT, u32::from_be_bytes).cast_signed()
}

/// The lineages that a log's commits name, and the one before the first; `None` where no commit is in it.
fn named_by(log: &Path) -> io::Result<Option<HashSet<i32>>> {
    match File::open(log) {
        Ok(file) => read_log(BufReader::new(file)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(_) => Ok(None), // whoever opens it says it better
    }
}

/// Reads a log as far as it is whole, as SQLite does (<https://www.sqlite.org/fileformat2.html#walformat>).
fn read_log(mut log: impl Read) -> io::Result<Option<HashSet<i32>>> {
    let mut header = [0; LOG_HEADER];
    if !fill(&mut log, &mut header)? {
        return Ok(None);
    }
    let at = |header: &[u8], at| word(header, at, u32::from_be_bytes);
    let order: fn([u8; 4]) -> u32 = match at(&header, 0) {
        LOG_MAGIC => u32::from_le_bytes,
        magic if magic == LOG_MAGIC + 1 => u32::from_be_bytes,
        _ => return Ok(None),
    };
    let size = at(&header, 8);
    if !(512..=65_536).contains(&size) || !size.is_power_of_two() {
        return Ok(None);
    }
    let mut sum = checksum((0, 0), &header[..24], order);
    if sum != (at(&header, 24), at(&header, 28)) {
        return Ok(None);
    }
    let mut frame = vec![0; FRAME_HEADER + size as usize];
    let (mut named, mut since_commit, mut has_commit) = (HashSet::new(), None, false);
    while fill(&mut log, &mut frame)? {
        let (head, page) = frame.split_at(FRAME_HEADER);
        sum = checksum(checksum(sum, &head[..8], order), page, order);
        if head[8..16] != header[16..24] || sum != (at(head, 16), at(head, 20)) {
            break;
        }
        if at(head, 0) == 1 {
            since_commit = Some(in_page(page));
        }
        if at(head, 4) != 0 {
            has_commit = true;
            if let Some(lineage) = since_commit.take() {
                if named.is_empty() {
                    named.insert(lineage.wrapping_sub(1));
                }
                named.insert(lineage);
            }
        }
    }
    Ok(has_commit.then_some(named))
}

/// Fills `buffer`; `false` where there is not enough left.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

fn word(bytes: &[u8], at: usize, order: fn([u8; 4]) -> u32) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, order)
}

/// SQLite's checksum of a log, on from `sum`.
fn checksum(sum: (u32, u32), bytes: &[u8], order: fn([u8; 4]) -> u32) -> (u32, u32) {
    bytes.chunks_exact(8).fold(sum, |(a, b), pair| {
        let a = a.wrapping_add(word(pair, 0, order)).wrapping_add(b);
        (a, b.wrapping_add(word(pair, 4, order)).wrapping_add(a))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::sqlite::open::APPLICATION_ID;

    /// A file with a log that holds a commit beside it, and the connection that keeps it there.
    fn pair(folder: &Path, lineage: i32) -> (PathBuf, Connection) {
        let path = folder.join("store.db");
        let conn = Connection::open(&path).unwrap();
        conn.execute_batch(&format!(
            "PRAGMA user_version = {lineage}; PRAGMA application_id = {APPLICATION_ID}; CREATE TABLE t (x); \
             PRAGMA journal_mode = WAL; BEGIN; INSERT INTO t VALUES (1)"
        ))
        .unwrap();
        mark(&conn).unwrap();
        conn.execute_batch("COMMIT").unwrap();
        (path, conn)
    }

    #[test]
    fn a_commit_names_its_lineage_and_keeps_what_the_file_says_of_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (path, conn) = pair(folder.path(), 77);
        assert_eq!(named_by(&beside(&path, "-wal")).unwrap(), Some(HashSet::from([77, 78])));
        assert_eq!((of_file(&path).unwrap(), now(&conn)), (Found::Lineage(77), Ok(78)));
        assert_eq!(conn.pragma_query_value(None, "application_id", |row| row.get(0)), Ok(APPLICATION_ID));
        conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); INSERT INTO t VALUES (2)").unwrap();
        assert_eq!(of_file(&path).unwrap(), Found::Lineage(78));
        assert_eq!(named_by(&beside(&path, "-wal")).unwrap(), Some(HashSet::new()), "of another program");
        assert!(stray(&path).unwrap().is_some());
    }

    #[test]
    fn a_store_gets_another_lineage_only_where_nobody_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let (path, conn) = pair(folder.path(), 77);
        renew(&path).unwrap();
        assert_eq!(of_file(&path).unwrap(), Found::Lineage(77));
        drop(conn);
        assert_eq!(of_file(&path).unwrap(), Found::Lineage(78));
        renew(&path).unwrap();
        assert_ne!(of_file(&path).unwrap(), Found::Lineage(78));
        let conn = Connection::open(&path).unwrap();
        assert_eq!(conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)), Ok("ok".to_owned()));
    }

    #[test]
    fn a_log_belongs_to_each_state_of_its_file_and_to_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, conn) = pair(folder.path(), 0);
        let before = fs::read(&path).unwrap();
        mark(&conn).unwrap();
        conn.execute_batch("PRAGMA wal_checkpoint(PASSIVE)").unwrap();
        assert_eq!(named_by(&beside(&path, "-wal")).unwrap(), Some(HashSet::from([0, 1, 2])));
        assert_eq!((of_file(&path).unwrap(), stray(&path).unwrap()), (Found::Lineage(2), None));
        fs::write(&path, before).unwrap();
        assert_eq!(stray(&path).unwrap(), None);
        put_into(&File::options().write(true).open(&path).unwrap()).unwrap();
        assert!(stray(&path).unwrap().unwrap().what.contains("is not the log of"));
        fs::remove_file(&path).unwrap();
        assert!(stray(&path).unwrap().unwrap().what.contains("is not there, but its log is"));
    }

    #[test]
    fn what_a_crash_left_of_a_log_is_read_as_far_as_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _conn) = pair(folder.path(), 77);
        let log = fs::read(beside(&path, "-wal")).unwrap();
        assert_eq!(read_log(&log[..]).unwrap(), Some(HashSet::from([77, 78])));
        for cut in [0, 20, LOG_HEADER, LOG_HEADER + 50, log.len() - 1] {
            assert_eq!(read_log(&log[..cut]).unwrap(), None, "{cut}");
        }
        for at in [5, 20, LOG_HEADER + 10, LOG_HEADER + 30, log.len() - 1] {
            let mut bent = log.clone();
            bent[at] ^= 1;
            assert_eq!(read_log(&bent[..]).unwrap(), None, "{at}");
        }
        let garbage = [&log[..], &[0xa5; 5000]].concat();
        assert_eq!(read_log(&garbage[..]).unwrap(), Some(HashSet::from([77, 78])));
    }
}
