//! A backup put in the store's place. What was there is set aside by another name together with its log, and at no
//! moment is there a file without its log under the store's name:
//!
//! 1. the backup is copied to a file beside the store, with a lineage of its own, and synced;
//! 2. what is in the present log is written into the present file, if that can be done;
//! 3. the present file, and its log if it still has one, get a second name each (a hard link);
//! 4. the copy is renamed to the store's name;
//! 5. the log's first name is removed.
//!
//! Killed before step 4, the store is as it was, under two names: [`finish`] removes the second ones. Killed after it,
//! the restored store has a log beside it that is not its own, as [`lineage`] tells: `finish` removes that name, since
//! the log has its other one.

use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rustix::process::{Flock, FlockOffsetType, FlockType, fcntl_getlk};

use super::backup::{Copied, copy_sound};
use super::lineage::{self, beside};
use super::open::folder_of;
use super::open_file::Identity;
use super::{open, verify};
use crate::store::under_way::{PART, UnderWay, led_to};
use crate::store::{StoreError, refusals};

/// What is between a store's name and the time at which it was set aside.
const ASIDE: &str = ".before-restore-";

/// Names tried for what is set aside: several restores in one second.
const NAMES: usize = 100;

/// What of a store is beside it, its shared memory apart: that holds nothing of its own.
const LOGS: [&str; 2] = ["-wal", "-journal"];

/// Where SQLite locks a store, as long as it is open: the file, and its shared memory, which is under the store's name
/// even where the file was moved away. From this byte on, for so many; 0 is up to the end.
const LOCKED: [(&str, (u64, u64)); 2] = [("", (0x4000_0000, 512)), ("-shm", (0, 0))];

/// How long settling the present store waits for a lock. Nobody has it open.
const BUSY: Duration = Duration::from_secs(2);

/// What a restore did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Bytes of the store that is in place now.
    pub size: u64,
    /// What was in the store's place before, and what is left of its log.
    pub aside: Vec<PathBuf>,
    /// What became of an earlier restore that was cut off.
    pub finished: Option<String>,
}

/// Puts a copy of `from` in the place of the store at `store`. Blocks.
pub(super) fn restore(from: &Path, store: &Path, told: &mut dyn FnMut(Copied)) -> Result<Restored, StoreError> {
    let failed = |what: &Path, e: &io::Error| StoreError::Failed(format!("{}: {e}", what.display()));
    let target = led_to(store).map_err(|e| failed(store, &e))?;
    // Whoever opens the store waits meanwhile.
    let _alone = open::lock_folder(&folder_of(&target), store)?;
    refuse_in_use(&target)?;
    let finished = finish(&target).map_err(|e| failed(&target, &e))?;
    if Identity::of(from).is_ok_and(|from| Identity::of(&target).is_ok_and(|to| from == to)) {
        return Err(refusals::refused(format!("{} is the store itself; name a backup of it", from.display())));
    }
    must_be_sound(from)?;
    let unwritable = |e: &io::Error| StoreError::Failed(format!("{} cannot be restored: {e}", target.display()));
    let part = UnderWay::make(&target, PART).map_err(|e| unwritable(&e))?;
    copy_sound(from, &part, store, told)?;
    if let Ok(present) = fs::metadata(&target)
        && (present.uid(), present.gid())
            != part.file().metadata().map(|part| (part.uid(), part.gid())).unwrap_or_default()
    {
        fchown(part.file(), Some(present.uid()), Some(present.gid())).map_err(|e| unwritable(&e))?;
    }
    let aside = set_aside(&target).inspect_err(|_| drop(finish(&target)))?;
    let size = part.put_in_place().map_err(|e| unwritable(&e))?;
    for end in LOGS.iter().chain(&["-shm"]) {
        remove(&beside(&target, end)).map_err(|e| unwritable(&e))?;
    }
    sync(&target).map_err(|e| unwritable(&e))?;
    Ok(Restored { size, aside, finished })
}

/// Refuses while a process has the store open: a server, or a command. SQLite holds a lock on the file as long.
fn refuse_in_use(target: &Path) -> Result<(), StoreError> {
    let failed = |e: &dyn Display| StoreError::Failed(format!("{}: {e}", target.display()));
    let mut held = None;
    for (end, (start, length)) in LOCKED {
        let lock = Flock { start, length, pid: None, typ: FlockType::WriteLock, offset_type: FlockOffsetType::Set };
        match File::open(beside(target, end)) {
            Ok(file) => held = held.or(fcntl_getlk(&file, &lock).map_err(|e| failed(&e))?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(&e)),
        }
    }
    let Some(held) = held else { return Ok(()) };
    let who = held.pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {}", pid.as_raw_nonzero()));
    Err(refusals::refused(format!(
        "{who} has {} open: a server, or another command; stop it first. Nothing was changed",
        target.display()
    )))
}

fn must_be_sound(from: &Path) -> Result<(), StoreError> {
    let report = verify::verify(from)?;
    let (schema, newest) = report.schema;
    if schema > newest {
        return Err(StoreError::Failed(open::is_newer(from, schema)));
    }
    match report.flaws.first() {
        None => Ok(()),
        Some(flaw) => Err(StoreError::Failed(format!(
            "{} is not sound, and was not restored: {}; `guildgate store verify {0}` names everything",
            from.display(),
            flaw.what
        ))),
    }
}

/// Gives the present store a second name, and its log if there is still something in it. Answers those names.
fn set_aside(target: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let failed = |e: io::Error| StoreError::Failed(format!("{} could not be set aside: {e}", target.display()));
    let is_own = lineage::stray(target)?.is_none();
    if is_own {
        settle(target);
    }
    let aside = free_name(target).map_err(failed)?;
    let mut names = Vec::new();
    let mut name = |from: &Path, to: PathBuf| match fs::hard_link(from, &to) {
        Ok(()) => {
            names.push(to);
            Ok(())
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    };
    // Before its log: a log that has a second name, and its file none, is one whose file was replaced ([`finish`]).
    name(target, aside.clone()).map_err(failed)?;
    for end in LOGS {
        let log = beside(target, end);
        if fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
            // One that is not the file's own must not be found beside it by its name.
            let to = if is_own { beside(&aside, end) } else { beside(&beside(&aside, "-stray"), end) };
            name(&log, to).map_err(failed)?;
        }
    }
    sync(target).map_err(failed)?;
    Ok(names)
}

/// Writes what is in the log into the file, which then stands by itself. Where that fails the two stay together.
fn settle(target: &Path) {
    let settled = || -> rusqlite::Result<()> {
        let conn = Connection::open_with_flags(target, open::flags(false))?;
        conn.busy_timeout(BUSY)?;
        open::is_settled(&conn).map(drop)
    };
    if let Err(error) = settled() {
        tracing::debug!(%error, "the present store's log stays beside it");
    }
}

/// The name under which the present store is set aside.
fn free_name(target: &Path) -> io::Result<PathBuf> {
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let names = (0..NAMES).map(|n| match n {
        0 => beside(target, &format!("{ASIDE}{now}")),
        n => beside(target, &format!("{ASIDE}{now}-{n}")),
    });
    let is_free = |name: &PathBuf| {
        ["", "-wal", "-journal", "-stray-wal", "-stray-journal"]
            .iter()
            .all(|end| fs::symlink_metadata(beside(name, end)).is_err())
    };
    names.into_iter().find(is_free).ok_or_else(|| io::Error::other("too many files are set aside already"))
}

/// Brings a restore that was cut off to an end: undoes it if the store's name is still the present store's, and
/// completes it otherwise. Says what it did. Whoever calls it has the folder to himself, and the store is not open.
pub(super) fn finish(target: &Path) -> io::Result<Option<String>> {
    let set_aside = names_aside(target)?;
    let present = Identity::of(target).ok();
    let second = set_aside.iter().find(|(_, id)| Some(*id) == present);
    // Without a store there was none to replace: only its log was named. And a log that is the present file's own is
    // that of no other, whichever names were removed since.
    let is_replaced = second.is_none() && present.is_some() && !lineage::has_own_log(target)?;
    let mut removed = false;
    // The logs' second names before the file's, for the reason above.
    for end in LOGS {
        let log = beside(target, end);
        let Ok(id) = Identity::of(&log) else { continue };
        for (name, _) in set_aside.iter().filter(|(_, other)| *other == id) {
            removed = true;
            remove(if is_replaced { &log } else { name })?;
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
        remove(&beside(target, "-shm"))?;
    }
    sync(target)?;
    let target = target.display();
    Ok(Some(match is_replaced {
        true => format!(
            "a `guildgate store restore` was cut off after it had put the backup in place: {target} is the backup, and \
             what was there before is {target}{ASIDE}…, each with the log that belongs to it"
        ),
        false => format!(
            "a `guildgate store restore` was cut off before it had put the backup in place: {target} is as it was before"
        ),
    }))
}

/// The files that were set aside from the place of `target`.
fn names_aside(target: &Path) -> io::Result<Vec<(PathBuf, Identity)>> {
    let prefix = beside(Path::new(target.file_name().unwrap_or_default()), ASIDE).into_os_string();
    let mut names = Vec::new();
    for entry in fs::read_dir(folder_of(target))? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix.as_encoded_bytes())
            && let Ok(id) = Identity::of(&entry.path())
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

fn sync(target: &Path) -> io::Result<()> {
    File::open(folder_of(target))?.sync_all()
}
