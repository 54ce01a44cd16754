//! A copy of a store as it is at one moment, made while others go on writing to it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use super::open::{self, Identity, folder_of};
use super::{failure, verify};
use crate::store::StoreError;

/// Pages copied between two reports of progress: 4 MiB, a few milliseconds' work.
const STEP: i32 = 1024;

/// How far a copy is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    pub done: u64,
    pub total: u64,
}

/// Copies the store at `from` to `to`, which is replaced whole or not at all; answers its size in
/// bytes. Blocks.
pub(super) fn backup(from: &Path, to: &Path, told: &mut dyn FnMut(Copied)) -> Result<u64, StoreError> {
    let source = verify::look_into(from)?;
    refuse_target(from, to)?;
    let part = Part::make(to).map_err(|e| unwritable(to, &e))?;
    let of_source = |e| failure::of(from, &e);
    // One snapshot for all steps: without it a write between two of them would start the copy anew,
    // and beside a busy server it would never end.
    source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema").map_err(of_source)?;
    let page: i64 = source.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(of_source)?;
    copy(&source, &part.path, page.unsigned_abs(), told).map_err(|e| match e.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => unwritable(to, &"the disk is full"),
        _ => failure::of(from, &e),
    })?;
    // A damaged store does not take the place of a good backup.
    let sound = Connection::open(&part.path).and_then(|copy| {
        copy.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)).map(|said| said == "ok")
    });
    if !sound.unwrap_or(false) {
        return Err(failure::damaged(from, "`guildgate store verify` names what is wrong"));
    }
    part.put_in_place(to).map_err(|e| unwritable(to, &e))
}

fn copy(source: &Connection, to: &Path, page: u64, told: &mut dyn FnMut(Copied)) -> rusqlite::Result<()> {
    let mut target = Connection::open(to)?;
    let backup = Backup::new(source, &mut target)?;
    loop {
        let step = backup.step(STEP)?;
        let progress = backup.progress();
        let pages = |n: i32| u64::from(n.unsigned_abs()) * page;
        told(Copied { done: pages(progress.pagecount - progress.remaining), total: pages(progress.pagecount) });
        match step {
            StepResult::Done => return Ok(()),
            StepResult::More => {}
            // Somebody has the file to itself for a moment: a checkpoint at its end, a recovery.
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// What SQLite keeps beside a store's file while it is open.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

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
    if there.len() > 0 && verify::look_into(to).is_err() {
        return refused("is there, and is no backup of a store");
    }
    Ok(())
}

fn unwritable(to: &Path, why: &dyn std::fmt::Display) -> StoreError {
    StoreError::Failed(format!("{} cannot be written: {why}", to.display()))
}

/// A copy under way, in a file of its own beside its target.
struct Part {
    path: PathBuf,
    done: bool,
}

impl Part {
    fn make(target: &Path) -> io::Result<Self> {
        let mut path = OsString::from(target);
        path.push(format!(".{:08x}.part", fastrand::u32(..)));
        OpenOptions::new().write(true).create_new(true).mode(open::FILE_MODE).open(&path)?;
        Ok(Part { path: path.into(), done: false })
    }

    fn put_in_place(mut self, target: &Path) -> io::Result<u64> {
        let file = File::open(&self.path)?;
        file.sync_all()?;
        fs::rename(&self.path, target)?;
        self.done = true;
        File::open(folder_of(target))?.sync_all()?;
        Ok(file.metadata()?.len())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let _ = fs::remove_file(&self.path);
        for beside in ["-journal", "-wal", "-shm"] {
            let mut path = OsString::from(&self.path);
            path.push(beside);
            let _ = fs::remove_file(path); // there only if SQLite was amid something
        }
    }
}
