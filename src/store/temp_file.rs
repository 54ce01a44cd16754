//! Temporary files in the folder of the file that they are for: a complete file that then replaces it.
//! Such a file is removed when it is dropped, with the journal that SQLite may have put beside it. What a crash left is
//! removed before the next one for the same target is made: its name is of that form, and no process has it locked.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use super::sqlite::FILE_MODE;
use crate::files::{folder_of, follow_links, sync_folder_of, with_suffix};

/// Letters and digits in a name that are drawn at random.
const RANDOM: usize = 16;

/// Its name is the target's name, a point, random characters and this.
const PART: &str = ".part";

/// What SQLite keeps beside a file while it writes a backup to it.
const JOURNAL: &str = "-journal";

/// A temporary file. It is removed when this is dropped, unless it has replaced its target.
#[derive(Debug)]
pub struct TempFile {
    file: NamedTempFile,
    /// Links followed: a link is written through, and not replaced.
    target: PathBuf,
    _journal: Journal,
}

/// Removes the journal beside a temporary file that was not completed.
#[derive(Debug)]
struct Journal(PathBuf);

impl Drop for Journal {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // usually there is none
    }
}

impl TempFile {
    /// Makes one in the folder of the file that `target` leads to, and removes those that a crash left there.
    pub fn new(target: &Path) -> io::Result<Self> {
        remove_leftovers(target);
        let target = follow_links(target)?;
        let prefix = prefix(&target);
        let mut builder = Builder::new();
        builder.prefix(&prefix).suffix(PART).rand_bytes(RANDOM);
        let file = builder.make_in(folder_of(&target), |path| {
            let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
            // Another process may have taken it for a leftover before it was locked; then the next name is tried.
            // Where files cannot be locked, none counts as left over.
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => Err(io::ErrorKind::AlreadyExists.into()),
                _ if !path.exists() => Err(io::ErrorKind::AlreadyExists.into()),
                _ => Ok(file),
            }
        })?;
        let journal = Journal(with_suffix(file.path(), JOURNAL));
        Ok(TempFile { file, target, _journal: journal })
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file, to write to. It is locked for as long as it is open.
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Syncs it and gives it the name of its target, which it replaces; returns its size in bytes.
    pub fn replace_target(self) -> io::Result<u64> {
        let TempFile { file, target, .. } = self;
        file.as_file().sync_all()?;
        let file = file.persist(&target).map_err(|e| e.error)?;
        sync_folder_of(&target)?;
        Ok(file.metadata()?.len())
    }
}

/// Removes what a crash left beside the file that `target` leads to. Files in use are locked, and stay.
pub(super) fn remove_leftovers(target: &Path) {
    let Ok(target) = follow_links(target) else { return };
    let prefix = prefix(&target);
    let Ok(entries) = fs::read_dir(folder_of(&target)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let part = name.strip_suffix(JOURNAL.as_bytes()).unwrap_or(name);
        // Opening a pipe of such a name would block.
        if !is_named(part, &prefix) || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // Locked until it is removed: a process that has just made it, and finds it locked, makes another. A journal is of
        // use to nobody without its file.
        let part = entry.path().with_file_name(OsStr::from_bytes(part));
        match File::open(&part) {
            Ok(file) if file.try_lock().is_err() => {}
            Err(e) if e.kind() != io::ErrorKind::NotFound => {}
            _ => drop(fs::remove_file(entry.path())),
        }
    }
}

fn prefix(target: &Path) -> OsString {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name
}

fn is_named(name: &[u8], prefix: &OsStr) -> bool {
    let random = name.strip_prefix(prefix.as_encoded_bytes());
    let random = random.and_then(|rest| rest.strip_suffix(PART.as_bytes()));
    random.is_some_and(|random| random.len() == RANDOM && random.iter().all(u8::is_ascii_alphanumeric))
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
        let others = ["b.db.0123456789abcdef.tmp", "b.db.notes.part", "bb.db.0123456789abcdef.part", "b.db"];
        let left =
            ["b.db.0123456789abcdef.part", "b.db.0123456789abcdef.part-journal", "b.db.abcdef0123456789.part-journal"];
        for name in others.iter().chain(&left) {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let first = TempFile::new(&target).unwrap();
        let second = TempFile::new(&target).unwrap();
        let mut expected: Vec<String> = others.map(str::to_owned).to_vec();
        expected.extend([&first, &second].map(|made| made.path().file_name().unwrap().to_str().unwrap().to_owned()));
        expected.sort();
        assert_eq!(names(folder.path()), expected);
        fs::write(with_suffix(first.path(), JOURNAL), "x").unwrap();
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
            let part = TempFile::new(&here.join("link")).unwrap();
            assert_eq!(
                (names(&here), names(&there).len()),
                (vec!["link".to_owned()], if text == "made" { 2 } else { 3 })
            );
            fs::write(part.path(), text).unwrap();
            assert_eq!(part.replace_target().unwrap(), text.len() as u64);
            assert_eq!(fs::read_to_string(there.join("b.db")).unwrap(), text);
            assert_eq!(
                (names(&here), names(&there)),
                (vec!["link".to_owned()], ["b.db", "second"].map(str::to_owned).to_vec())
            );
        }
    }
}
