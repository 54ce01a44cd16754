//! Which write-ahead log belongs to which file. SQLite only compares their names: if a backup is copied over a store
//! whose WAL a crash left behind, SQLite reads that WAL into the backup.
//!
//! So a store has a lineage, a number in the header of its file (`PRAGMA user_version`). It is drawn at random for each
//! backup, each restore, and each opening that finds no WAL, and each commit of ours raises it by one ([`advance`]). So
//! a WAL holds the lineages of its commits, and the one before its first commit is that of the file when the WAL began.
//! A WAL belongs to a file that has one of these: the lineage in the file itself changes only when that WAL is
//! checkpointed. Both are read here as they are on the disk, before SQLite reads them.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::failure::Failure;
use crate::files::{follow_links, with_suffix};
use crate::store::{SQLITE_MAGIC, StoreError};

/// The oldest schema whose commits have a lineage. A file of an older one has none (0).
pub(super) const SINCE_SCHEMA: i64 = 3;

/// Where the header of a file, its first page, has the lineage: `user_version`, big-endian.
const LINEAGE_AT: usize = 60;

/// The header of a file.
const HEADER: usize = 100;

/// The headers of a WAL and of each frame in it.
const WAL_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// What a WAL begins with; with one added to it, its checksums are of big-endian words.
const WAL_MAGIC: u32 = 0x377f_0682;

/// How often a file and a WAL that do not fit are read: a server may be writing to both.
const READS: usize = 5;

/// Between two of these.
const BETWEEN_READS: Duration = Duration::from_millis(20);

/// Raises the lineage in the transaction that `conn` is in. Every commit does that: a WAL whose first commit does not
/// would also count as the WAL of an older file.
pub(in crate::store) fn advance(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "user_version", of_newest_commit(conn)?.wrapping_add(1))
}

pub(super) fn of_newest_commit(conn: &Connection) -> rusqlite::Result<i32> {
    conn.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))
}

/// Draws another lineage for the store in `file`, and writes it into the file itself: in a WAL it would be one more, and
/// reach the file at some later checkpoint. So it does nothing where there is a WAL, and thus the file may be open.
pub(super) fn renew(file: &Path) -> Result<(), StoreError> {
    if with_suffix(file, "-wal").exists() {
        return Ok(());
    }
    let failed = |e: io::Error| StoreError::Failed(format!("{} cannot be written to: {e}", file.display()));
    let drawn = getrandom::u32().map_err(|e| failed(e.into()))?.max(1);
    let file = File::options().write(true).open(file).map_err(failed)?;
    file.write_all_at(&drawn.to_be_bytes(), LINEAGE_AT as u64).map_err(failed)?;
    file.sync_data().map_err(failed)
}

/// A WAL that does not belong to the file of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignWal {
    pub(super) what: String,
    pub(super) repair: String,
}

/// Refuses a file with a WAL that is not its own. Changes neither.
pub(super) fn refuse_foreign_wal(path: &Path) -> Result<(), StoreError> {
    match foreign_wal(path)? {
        None => Ok(()),
        Some(ForeignWal { what, repair }) => Err(StoreError::Failed(format!("{what}. Nothing was changed. {repair}"))),
    }
}

/// The WAL of the store at `path`, if it is not the store's own.
pub(super) fn foreign_wal(path: &Path) -> Result<Option<ForeignWal>, StoreError> {
    find_foreign_wal(path).map_err(|failure| failure.at(path))
}

fn find_foreign_wal(path: &Path) -> Result<Option<ForeignWal>, Failure> {
    // SQLite puts it beside the file itself, not beside a link to it.
    let file = follow_links(path)?;
    let wal = with_suffix(&file, "-wal");
    for _ in 0..READS {
        let Some(in_wal) = in_wal(&wal)? else { return Ok(None) };
        let what = match in_file(&file)? {
            InFile::Lineage(own) if belongs(own, &in_wal) => return Ok(None),
            // The caller opens it, and reports what it is.
            InFile::Unknown => return Ok(None),
            InFile::Lineage(_) => format!(
                "{} is not the write-ahead log of {}: it was written for another store, or for another state of this \
                 one, and would overwrite parts of it",
                wal.display(),
                file.display()
            ),
            InFile::Nothing => {
                format!("{} is not there, but its write-ahead log is: {}", file.display(), wal.display())
            }
        };
        std::thread::sleep(BETWEEN_READS);
        if in_file(&file)? == InFile::Unknown || self::in_wal(&wal)?.as_ref() != Some(&in_wal) {
            continue;
        }
        let repair = format!(
            "If a file was copied or moved by hand, put the one to which the log belongs back, or move the log away (mv \
             {0} {0}.old) to go on with {1} as it is; `guildgate store restore FILE` puts a backup in place",
            wal.display(),
            file.display()
        );
        return Ok(Some(ForeignWal { what, repair }));
    }
    Ok(None)
}

/// Whether a WAL holds commits of the file of its name.
pub(super) fn has_own_wal(file: &Path) -> io::Result<bool> {
    let in_wal = in_wal(&with_suffix(file, "-wal"))?;
    Ok(matches!((in_file(file)?, in_wal), (InFile::Lineage(own), Some(in_wal)) if belongs(own, &in_wal)))
}

/// Whether there is no commit in this WAL, or no WAL.
pub(super) fn has_no_commit(wal: &Path) -> bool {
    matches!(in_wal(wal), Ok(None))
}

/// Whether a WAL with these lineages belongs to a file of this one.
fn belongs(own: i32, in_wal: &HashSet<i32>) -> bool {
    in_wal.contains(&own) || (own == 0 && in_wal.is_empty())
}

/// The lineage in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFile {
    Lineage(i32),
    /// It is not a complete SQLite file.
    Unknown,
    /// There is no file, or it is empty.
    Nothing,
}

fn in_file(path: &Path) -> io::Result<InFile> {
    match File::open(path).and_then(|file| Ok((in_header(&file)?, file.metadata()?.len()))) {
        Ok((Some(lineage), _)) => Ok(InFile::Lineage(lineage)),
        Ok((None, 0)) => Ok(InFile::Nothing),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(InFile::Nothing),
        // The caller opens it, and reports that better.
        Ok((None, _)) | Err(_) => Ok(InFile::Unknown),
    }
}

/// The lineage in the header of an open file; `None` if it is not a complete SQLite file.
pub(super) fn in_header(file: &File) -> io::Result<Option<i32>> {
    let mut header = [0; HEADER];
    match file.read_exact_at(&mut header, 0) {
        Ok(()) => Ok(header.starts_with(SQLITE_MAGIC).then(|| in_page(&header))),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

/// The lineage in a first page.
fn in_page(page: &[u8]) -> i32 {
    word(page, LINEAGE_AT, u32::from_be_bytes).cast_signed()
}

/// The lineages of the commits in a WAL, and the one before the first; `None` if there is no commit in it.
fn in_wal(wal: &Path) -> io::Result<Option<HashSet<i32>>> {
    match File::open(wal) {
        Ok(file) => read_wal(BufReader::new(file)),
        Err(_) => Ok(None), // if it is there, the caller opens the store, and reports that better
    }
}

/// Reads a WAL as far as it is complete, as SQLite does (<https://www.sqlite.org/fileformat2.html#walformat>).
fn read_wal(mut wal: impl Read) -> io::Result<Option<HashSet<i32>>> {
    let mut header = [0; WAL_HEADER];
    if !fill(&mut wal, &mut header)? {
        return Ok(None);
    }
    let at = |header: &[u8], at| word(header, at, u32::from_be_bytes);
    let order: fn([u8; 4]) -> u32 = match at(&header, 0) {
        WAL_MAGIC => u32::from_le_bytes,
        magic if magic == WAL_MAGIC + 1 => u32::from_be_bytes,
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
    let (mut lineages, mut since_commit, mut has_commit) = (HashSet::new(), None, false);
    while fill(&mut wal, &mut frame)? {
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
                if lineages.is_empty() {
                    lineages.insert(lineage.wrapping_sub(1));
                }
                lineages.insert(lineage);
            }
        }
    }
    Ok(has_commit.then_some(lineages))
}

/// Fills `buffer`; `false` if there is not enough left.
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

/// SQLite's checksum of a WAL, continued from `sum`.
fn checksum(sum: (u32, u32), bytes: &[u8], order: fn([u8; 4]) -> u32) -> (u32, u32) {
    bytes.chunks_exact(8).fold(sum, |(a, b), pair| {
        let a = a.wrapping_add(word(pair, 0, order)).wrapping_add(b);
        (a, b.wrapping_add(word(pair, 4, order)).wrapping_add(a))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::store::sqlite::open::APPLICATION_ID;

    /// A file with a WAL that holds a commit beside it, and the connection that keeps it there.
    fn pair(folder: &Path, lineage: i32) -> (PathBuf, Connection) {
        let path = folder.join("store.db");
        let conn = Connection::open(&path).unwrap();
        conn.execute_batch(&format!(
            "PRAGMA user_version = {lineage}; PRAGMA application_id = {APPLICATION_ID}; CREATE TABLE t (x); \
             PRAGMA journal_mode = WAL; BEGIN; INSERT INTO t VALUES (1)"
        ))
        .unwrap();
        advance(&conn).unwrap();
        conn.execute_batch("COMMIT").unwrap();
        (path, conn)
    }

    #[test]
    fn a_commit_has_its_lineage_and_keeps_the_rest_of_the_header() {
        let folder = tempfile::tempdir().unwrap();
        let (path, conn) = pair(folder.path(), 77);
        assert_eq!(in_wal(&with_suffix(&path, "-wal")).unwrap(), Some(HashSet::from([77, 78])));
        assert_eq!((in_file(&path).unwrap(), of_newest_commit(&conn)), (InFile::Lineage(77), Ok(78)));
        assert_eq!(conn.pragma_query_value(None, "application_id", |row| row.get(0)), Ok(APPLICATION_ID));
        conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); INSERT INTO t VALUES (2)").unwrap();
        assert_eq!(in_file(&path).unwrap(), InFile::Lineage(78));
        assert_eq!(in_wal(&with_suffix(&path, "-wal")).unwrap(), Some(HashSet::new()), "of another program");
        assert!(foreign_wal(&path).unwrap().is_some());
    }

    #[test]
    fn a_store_gets_another_lineage_only_where_no_process_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let (path, conn) = pair(folder.path(), 77);
        renew(&path).unwrap();
        assert_eq!(in_file(&path).unwrap(), InFile::Lineage(77));
        drop(conn);
        assert_eq!(in_file(&path).unwrap(), InFile::Lineage(78));
        renew(&path).unwrap();
        assert_ne!(in_file(&path).unwrap(), InFile::Lineage(78));
        let conn = Connection::open(&path).unwrap();
        assert_eq!(conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)), Ok("ok".to_owned()));
    }

    #[test]
    fn a_wal_belongs_to_each_state_of_its_file_and_to_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, conn) = pair(folder.path(), 0);
        let before = fs::read(&path).unwrap();
        advance(&conn).unwrap();
        conn.execute_batch("PRAGMA wal_checkpoint(PASSIVE)").unwrap();
        assert_eq!(in_wal(&with_suffix(&path, "-wal")).unwrap(), Some(HashSet::from([0, 1, 2])));
        assert_eq!((in_file(&path).unwrap(), foreign_wal(&path).unwrap()), (InFile::Lineage(2), None));
        fs::write(&path, before).unwrap();
        assert_eq!(foreign_wal(&path).unwrap(), None);
        // Its WAL is still there.
        File::options().write(true).open(&path).unwrap().write_all_at(&[1; 4], LINEAGE_AT as u64).unwrap();
        assert!(foreign_wal(&path).unwrap().unwrap().what.contains("is not the write-ahead log of"));
        fs::remove_file(&path).unwrap();
        assert!(foreign_wal(&path).unwrap().unwrap().what.contains("is not there, but its write-ahead log is"));
    }

    #[test]
    fn a_wal_that_a_crash_cut_is_read_as_far_as_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _conn) = pair(folder.path(), 77);
        let wal = fs::read(with_suffix(&path, "-wal")).unwrap();
        assert_eq!(read_wal(&wal[..]).unwrap(), Some(HashSet::from([77, 78])));
        for cut in [0, 20, WAL_HEADER, WAL_HEADER + 50, wal.len() - 1] {
            assert_eq!(read_wal(&wal[..cut]).unwrap(), None, "{cut}");
        }
        for at in [5, 20, WAL_HEADER + 10, WAL_HEADER + 30, wal.len() - 1] {
            let mut bent = wal.clone();
            bent[at] ^= 1;
            assert_eq!(read_wal(&bent[..]).unwrap(), None, "{at}");
        }
        let garbage = [&wal[..], &[0xa5; 5000]].concat();
        assert_eq!(read_wal(&garbage[..]).unwrap(), Some(HashSet::from([77, 78])));
    }
}
