//! Puts a backup in the store's place. The previous store is kept under another name together with its WAL, and at no
//! moment does the store's name have a file without its WAL:
//!
//! 1. the backup is copied to a file in the store's folder, with a lineage of its own, and synced;
//! 2. what is in the present WAL is written into the present file, if that is possible;
//! 3. the present file, and its WAL if it still has one, get a second name each (a hard link);
//! 4. the copy is renamed to the store's name;
//! 5. the WAL's first name is removed.
//!
//! If it is killed before step 4, the store is as it was, under two names: [`finish`] removes the second ones. If it is
//! killed after it, the restored store has a WAL that is not its own, as [`lineage`] finds: `finish` removes
//! that name, since the WAL has its other one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rustix::process::{Flock, FlockOffsetType, FlockType, fcntl_getlk};

use super::backup::{Copied, copy_closed_store};
use super::failure::{self, Failure};
use super::{SqliteStore, lineage, open};
use crate::files::{FileId, folder_of, follow_links, sync_folder_of, with_suffix};
use crate::store::temp_file::{PART, TempFile};
use crate::store::{SQLITE_FILES, StoreError, blocking, refusals};

/// The part of a kept store's name between the store's name and the time of the restore.
const KEPT: &str = ".before-restore-";

/// Names that are tried for the kept store, since there may be several restores in one second.
const NAMES: usize = 100;

/// The suffixes of a store's other files that hold data.
const JOURNALS: [&str; 2] = ["-wal", "-journal"];

/// Where SQLite locks a store as long as it is open: the file, and its shared memory, which is under the store's name
/// even if the file was moved away. First byte and length; 0 is up to the end.
const LOCKED: [(&str, (u64, u64)); 2] = [("", (0x4000_0000, 512)), ("-shm", (0, 0))];

/// How long the checkpoint of the present store waits for a lock. Nobody has it open.
const BUSY: Duration = Duration::from_secs(2);

/// What a restore did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Bytes of the restored store.
    pub size: u64,
    /// The names of the previous store, and of what is left of its WAL.
    pub kept: Vec<PathBuf>,
    /// What was done about an earlier restore that was cut off.
    pub finished: Option<String>,
}

impl SqliteStore {
    /// Copies the backup `from` to a temporary file that is ready to replace the store at `store`. Refused while a
    /// process has the store open, and if `from` is not sound.
    pub async fn restore(
        from: &Path,
        store: &Path,
        mut progress: impl FnMut(Copied) + Send + 'static,
    ) -> Result<PendingRestore, StoreError> {
        let (from, store) = (from.to_owned(), store.to_owned());
        let paths = (from.clone(), store.clone());
        let (target, lock, finished) = blocking(move || prepare(&paths.0, &paths.1)).await?;
        let part = TempFile::new(&target, PART).map_err(|e| not_restored(&target, &e))?;
        let copy = part.path().to_owned();
        blocking(move || copy_closed_store(&from, &copy, &store, &mut progress)).await?;
        Ok(PendingRestore { part, target, finished, _lock: lock })
    }
}

/// Checks that the store at `store` can be replaced by the backup `from`. Returns the store's file, the lock for which
/// other processes wait before they open the store, and what was done about an earlier restore.
fn prepare(from: &Path, store: &Path) -> Result<(PathBuf, File, Option<String>), StoreError> {
    let target = follow_links(store).map_err(|e| failure::of_io(store, &e))?;
    let lock = open::lock_folder(&folder_of(&target), store)?;
    refuse_in_use(&target).map_err(|failure| failure.at(&target))?;
    let finished = finish(&target).map_err(|e| failure::of_io(&target, &e))?;
    if FileId::of(from).is_ok_and(|from| FileId::of(&target).is_ok_and(|to| from == to)) {
        return Err(refusals::refused(format!("{} is the store itself; name a backup of it", from.display())));
    }
    must_be_sound(from)?;
    Ok((target, lock, finished))
}

/// A restore whose copy is complete, and has not replaced the store. If it is dropped, the store is as it was.
#[derive(Debug)]
pub struct PendingRestore {
    part: TempFile,
    target: PathBuf,
    finished: Option<String>,
    _lock: File,
}

impl PendingRestore {
    /// Puts the copy in the store's place. What was there is kept under another name.
    pub fn commit(self) -> Result<Restored, StoreError> {
        let PendingRestore { part, target, finished, _lock } = self;
        let failed = |e: io::Error| not_restored(&target, &e);
        let owner = |meta: fs::Metadata| (meta.uid(), meta.gid());
        if let Ok(present) = fs::metadata(&target).map(owner)
            && present != part.file().metadata().map(owner).unwrap_or_default()
        {
            fchown(part.file(), Some(present.0), Some(present.1)).map_err(failed)?;
        }
        let kept = keep(&target).inspect_err(|_| drop(finish(&target)))?;
        let size = part.replace_target().map_err(failed)?;
        for end in SQLITE_FILES {
            remove(&with_suffix(&target, end)).map_err(failed)?;
        }
        sync_folder_of(&target).map_err(failed)?;
        Ok(Restored { size, kept, finished })
    }
}

fn not_restored(target: &Path, error: &io::Error) -> StoreError {
    StoreError::Failed(format!("{} cannot be restored: {error}", target.display()))
}

/// Refuses while a process has the store open: a server, or a command. SQLite holds a lock on the file all the time.
fn refuse_in_use(target: &Path) -> Result<(), Failure> {
    let mut held = None;
    for (end, (start, length)) in LOCKED {
        let lock = Flock { start, length, pid: None, typ: FlockType::WriteLock, offset_type: FlockOffsetType::Set };
        match File::open(with_suffix(target, end)) {
            Ok(file) => held = held.or(fcntl_getlk(&file, &lock).map_err(io::Error::from)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e.into()),
        }
    }
    let Some(held) = held else { return Ok(()) };
    let who = held.pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {}", pid.as_raw_nonzero()));
    Err(refusals::refused(format!(
        "{who} has {} open: a server, or another command; stop it first. Nothing was changed",
        target.display()
    ))
    .into())
}

fn must_be_sound(from: &Path) -> Result<(), StoreError> {
    let report = SqliteStore::verify_backup(from)?;
    let (schema, newest) = report.schema;
    if schema > newest {
        return Err(open::is_newer(from, schema));
    }
    match report.flaws.first() {
        None => Ok(()),
        Some(flaw) => Err(StoreError::Failed(format!(
            "{} is not sound: {flaw}; {} (`guildgate store verify {0}` names all that is wrong)",
            from.display(),
            failure::TAKE_ANOTHER
        ))),
    }
}

/// Gives the present store a second name, and its WAL if there is still something in it. Returns those names.
fn keep(target: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let failed =
        |e: io::Error| StoreError::Failed(format!("{} could not be given another name: {e}", target.display()));
    let owns_wal = lineage::foreign_wal(target)?.is_none();
    // Then the file needs no WAL. If this fails, the two stay together.
    if owns_wal && let Err(error) = checkpoint(target) {
        tracing::debug!(%error, "the present store's write-ahead log stays beside it");
    }
    let kept = free_name(target).map_err(failed)?;
    let mut names = Vec::new();
    let mut name = |from: &Path, to: PathBuf| match fs::hard_link(from, &to) {
        Ok(()) => {
            names.push(to);
            Ok(())
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    };
    // Before its WAL: if a WAL has a second name and its file has none, the file was replaced ([`finish`]).
    name(target, kept.clone()).map_err(failed)?;
    for end in JOURNALS {
        let journal = with_suffix(target, end);
        if fs::metadata(&journal).is_ok_and(|journal| journal.len() > 0) {
            // A WAL that is not the file's own must not be beside it under its name.
            let to = if owns_wal { with_suffix(&kept, end) } else { with_suffix(&with_suffix(&kept, "-stray"), end) };
            name(&journal, to).map_err(failed)?;
        }
    }
    sync_folder_of(target).map_err(failed)?;
    Ok(names)
}

fn checkpoint(target: &Path) -> rusqlite::Result<()> {
    let conn = Connection::open_with_flags(target, open::flags(false))?;
    conn.busy_timeout(BUSY)?;
    open::checkpoint(&conn).map(drop)
}

/// The name under which the present store is kept.
fn free_name(target: &Path) -> io::Result<PathBuf> {
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let names = (0..NAMES).map(|n| match n {
        0 => with_suffix(target, &format!("{KEPT}{now}")),
        n => with_suffix(target, &format!("{KEPT}{now}-{n}")),
    });
    let is_free = |name: &PathBuf| {
        ["", "-wal", "-journal", "-stray-wal", "-stray-journal"]
            .iter()
            .all(|end| fs::symlink_metadata(with_suffix(name, end)).is_err())
    };
    names.into_iter().find(is_free).ok_or_else(|| io::Error::other("too many replaced stores are kept already"))
}

/// Ends a restore that was cut off: undoes it if the store's name is still the present store's, and completes it
/// otherwise. Returns what it did. The caller has locked the folder, and the store is not open.
pub(super) fn finish(target: &Path) -> io::Result<Option<String>> {
    let kept = kept_files(target)?;
    let present = FileId::of(target).ok();
    let second = kept.iter().find(|(_, id)| Some(*id) == present);
    // Without a store there was none to replace: only its WAL has a second name. And a WAL that is the present file's own
    // is that of no other, whichever names were removed since.
    let is_replaced = second.is_none() && present.is_some() && !lineage::has_own_wal(target)?;
    let mut removed = false;
    // The logs' second names before the file's, for the reason above.
    for end in JOURNALS {
        let journal = with_suffix(target, end);
        let Ok(id) = FileId::of(&journal) else { continue };
        for (name, _) in kept.iter().filter(|(_, other)| *other == id) {
            removed = true;
            remove(if is_replaced { &journal } else { name })?;
        }
    }
    if let Some((name, _)) = second {
        removed = true;
        remove(name)?;
    }
    if !removed {
        return Ok(None);
    }
    if is_replaced {
        remove(&with_suffix(target, "-shm"))?;
    }
    sync_folder_of(target)?;
    let target = target.display();
    Ok(Some(match is_replaced {
        true => format!(
            "a `guildgate store restore` was cut off after it had put the backup in place: {target} is the backup, and \
             what was there before is {target}{KEPT}…, each with the log that belongs to it"
        ),
        false => format!(
            "a `guildgate store restore` was cut off before it had put the backup in place: {target} is as it was before"
        ),
    }))
}

/// The files that were at `target` before restores.
fn kept_files(target: &Path) -> io::Result<Vec<(PathBuf, FileId)>> {
    let prefix = with_suffix(Path::new(target.file_name().unwrap_or_default()), KEPT).into_os_string();
    let mut names = Vec::new();
    for entry in fs::read_dir(folder_of(target))? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix.as_encoded_bytes())
            && let Ok(id) = FileId::of(&entry.path())
        {
            names.push((entry.path(), id));
        }
    }
    Ok(names)
}

fn remove(name: &Path) -> io::Result<()> {
    match fs::remove_file(name) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
