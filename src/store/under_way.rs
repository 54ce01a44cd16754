//! Files that are under way: a copy that is not whole yet, or what an import stages. Such a file goes away with its
//! maker, with the process if that is interrupted, and where neither could see to it (kill -9), by the next one to the
//! same target: it is known by its name, and locked as long as it is in use. What a server does for this process is
//! under way as well, and ended if the process is interrupted.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};

use super::sqlite::open::{FILE_MODE, folder_of};

/// Names tried before giving up; a second try is rare already.
const TRIES: usize = 8;

/// Links followed before they are taken for a ring; Linux itself follows as many.
const LINKS: usize = 40;

/// What SQLite keeps beside a file that it writes.
pub const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// What a file under way is, as its name says: `TARGET` + before + a random number + after.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    before: &'static str,
    after: &'static str,
}

/// What takes its target's place once it is whole.
pub const PART: Kind = Kind { before: ".", after: ".part" };

/// What an import into its target stages.
pub const STAGED: Kind = Kind { before: ".import-", after: ".tmp" };

/// What is under way in this process. Signals are the whole process's as well, and ask for all of them at once.
static OURS: Mutex<Ours> = Mutex::new(Ours { files: Vec::new(), ends: Vec::new(), ids: 0, settled: false });

struct Ours {
    files: Vec<PathBuf>,
    /// What ends the rest of it, each by its id.
    ends: Vec<(u64, Box<dyn FnOnce() + Send>)>,
    ids: u64,
    settled: bool,
}

/// Tells that what this process was started for is about to happen, or not to: an interruption comes too late from now
/// on, and what became of it is told instead.
pub fn settle() {
    OURS.lock().settled = true;
}

/// Does `tell`, and then removes every file under way and ends the rest. Nothing is settled any more until the process ends, which is the
/// caller's to do, and at once. `false`, and nothing is done, where it is too late.
pub fn abandon(tell: impl FnOnce()) -> bool {
    let mut ours = OURS.lock();
    if ours.settled {
        return false;
    }
    tell();
    ours.files.iter().for_each(|path| remove(path));
    ours.ends.drain(..).for_each(|(_, end)| end());
    MutexGuard::leak(ours);
    true
}

/// Where what is written to `path` ends up: where the links lead that are in its place, though nothing may be there
/// yet. A link is written through and not replaced, as everybody does who writes to it.
pub fn led_to(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        match fs::read_link(&path) {
            Ok(to) => path = folder_of(&path).join(to),
            Err(_) => return Ok(path), // it is no link
        }
    }
    Err(io::Error::other("its links lead round in a ring"))
}

/// Has `end` called if the process is interrupted before what this returns is dropped, which then waits for the
/// process's end: nothing is told of what was ended on purpose.
pub(super) fn if_abandoned(end: impl FnOnce() + Send + 'static) -> IfAbandoned {
    let mut ours = OURS.lock();
    ours.ids += 1;
    let id = ours.ids;
    ours.ends.push((id, Box::new(end)));
    IfAbandoned(id)
}

/// See [`if_abandoned`].
#[derive(Debug)]
pub(super) struct IfAbandoned(u64);

impl Drop for IfAbandoned {
    fn drop(&mut self) {
        OURS.lock().ends.retain(|(id, _)| *id != self.0);
    }
}

/// A file under way. It goes away with this, unless it is put in its place.
#[derive(Debug)]
pub struct UnderWay {
    path: PathBuf,
    /// Where its target is, links followed.
    target: PathBuf,
    /// Locked, so that nobody takes it for a leftover.
    file: File,
    placed: bool,
}

impl UnderWay {
    /// Makes one beside what `target` leads to, and removes those that were left there.
    pub fn make(target: &Path, kind: Kind) -> io::Result<Self> {
        remove_leftovers(target, kind);
        let target = led_to(target)?;
        for _ in 0..TRIES {
            let mut name = prefix(&target, kind);
            name.push(format!("{:016x}{}", fastrand::u64(..), kind.after));
            let path = folder_of(&target).join(name);
            // 0600: it holds what was said about people.
            // Locked before it is there: an interruption finds it, or comes first and there is none.
            let mut ours = OURS.lock();
            let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path)?;
            ours.files.push(path.clone());
            drop(ours);
            let made = UnderWay { path, target: target.clone(), file, placed: false };
            // Somebody beside us may have taken it for a leftover before it was locked: then another. Where files
            // cannot be locked at all, nobody takes one for a leftover.
            if !matches!(made.file.try_lock(), Err(fs::TryLockError::WouldBlock)) && made.path.exists() {
                return Ok(made);
            }
        }
        Err(io::Error::other("each file made for it was taken away; try again"))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// To write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it the name of its target, which it replaces, once it is on disk; answers its size in bytes.
    pub fn put_in_place(mut self) -> io::Result<u64> {
        self.file.sync_all()?;
        settle();
        fs::rename(&self.path, &self.target)?;
        self.placed = true;
        File::open(folder_of(&self.target))?.sync_all()?;
        Ok(self.file.metadata()?.len())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        OURS.lock().files.retain(|path| *path != self.path);
        if !self.placed {
            remove(&self.path);
        }
    }
}

/// Removes what a crash left beside what `target` leads to. What is in use is locked and stays.
pub(super) fn remove_leftovers(target: &Path, kind: Kind) {
    let Ok(target) = led_to(target) else { return };
    let prefix = prefix(&target, kind);
    let Ok(entries) = fs::read_dir(folder_of(&target)) else { return };
    for entry in entries.flatten() {
        // A pipe by such a name would be waited for.
        if !is_named(&entry.file_name(), &prefix, kind) || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // Locked until it is gone: somebody who makes one, and finds it locked, makes another.
        if let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            remove(&entry.path());
        }
    }
}

fn prefix(target: &Path, kind: Kind) -> OsString {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(kind.before);
    name
}

fn is_named(name: &OsStr, prefix: &OsStr, kind: Kind) -> bool {
    let number = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
    let number = number.and_then(|rest| rest.strip_suffix(kind.after.as_bytes()));
    number.is_some_and(|number| number.len() == 16 && number.iter().all(u8::is_ascii_hexdigit))
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    for end in BESIDE {
        let mut beside = OsString::from(path);
        beside.push(end);
        let _ = fs::remove_file(beside); // there only if SQLite was amid something
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_crash_left_is_removed_and_what_is_in_use_or_anothers_stays() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("b.db");
        let left = ["b.db.0123456789abcdef.part", "b.db.0123456789abcdef.part-journal"];
        let others = ["b.db.0123456789abcdef.tmp", "b.db.notes.part", "bb.db.0123456789abcdef.part", "b.db"];
        for name in left.iter().chain(&others) {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let first = UnderWay::make(&target, PART).unwrap();
        let second = UnderWay::make(&target, PART).unwrap();
        let mut expected: Vec<String> = others.map(str::to_owned).to_vec();
        expected.extend([&first, &second].map(|made| made.path().file_name().unwrap().to_str().unwrap().to_owned()));
        expected.sort();
        assert_eq!(names(folder.path()), expected);
        drop((first, second));
        assert_eq!(names(folder.path()).len(), others.len());
    }

    #[test]
    fn a_link_is_written_through_and_what_was_left_beside_what_it_leads_to_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = (folder.path().join("here"), folder.path().join("there"));
        [&here, &there].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
        std::os::unix::fs::symlink("../there/second", here.join("link")).unwrap();
        std::os::unix::fs::symlink("b.db", there.join("second")).unwrap();
        fs::write(there.join("b.db.0123456789abcdef.part"), "x").unwrap();
        for text in ["made", "replaced"] {
            let part = UnderWay::make(&here.join("link"), PART).unwrap();
            assert_eq!(
                (names(&here), names(&there).len()),
                (vec!["link".to_owned()], if text == "made" { 2 } else { 3 })
            );
            fs::write(part.path(), text).unwrap();
            assert_eq!(part.put_in_place().unwrap(), text.len() as u64);
            assert_eq!(fs::read_to_string(there.join("b.db")).unwrap(), text);
            assert_eq!(
                (names(&here), names(&there)),
                (vec!["link".to_owned()], ["b.db", "second"].map(str::to_owned).to_vec())
            );
        }
        std::os::unix::fs::symlink("ring", here.join("ring")).unwrap();
        assert!(UnderWay::make(&here.join("ring"), PART).is_err());
    }
}
