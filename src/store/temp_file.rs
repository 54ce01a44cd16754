//! A temporary file in the folder of the file that it then replaces, whole. It is in a folder of its own, which is removed
//! with all that is in it, such as the journal that SQLite puts beside a file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use super::sqlite::FILE_MODE;
use crate::files::{folder_of, follow_links, sync_folder_of};

/// A temporary file. It is removed when this is dropped, unless it has replaced its target.
#[derive(Debug)]
pub struct TempFile {
    _folder: TempDir,
    /// The file, to write to.
    pub file: File,
    pub path: PathBuf,
    /// Links followed: a link is written through, and not replaced.
    target: PathBuf,
}

impl TempFile {
    /// Makes one beside the file that `target` leads to.
    pub fn new(target: &Path) -> io::Result<Self> {
        let target = follow_links(target)?;
        let mut prefix = target.file_name().unwrap_or_default().to_owned();
        prefix.push(".");
        let folder = Builder::new().prefix(&prefix).suffix(".part").tempdir_in(folder_of(&target))?;
        let path = folder.path().join("file");
        let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path)?;
        Ok(TempFile { _folder: folder, file, path, target })
    }

    /// Syncs it and gives it the name of its target, which it replaces; returns its size in bytes.
    pub fn replace_target(self) -> io::Result<u64> {
        self.file.sync_all()?;
        fs::rename(&self.path, &self.target)?;
        sync_folder_of(&self.target)?;
        Ok(self.file.metadata()?.len())
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
    fn it_replaces_what_a_link_leads_to_or_is_removed_with_what_is_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = (folder.path().join("here"), folder.path().join("there"));
        [&here, &there].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
        std::os::unix::fs::symlink("../there/second", here.join("link")).unwrap();
        std::os::unix::fs::symlink("b.db", there.join("second")).unwrap();
        for text in ["made", "replaced"] {
            let left = TempFile::new(&here.join("link")).unwrap();
            let part = TempFile::new(&here.join("link")).unwrap();
            fs::write(&part.path, text).unwrap();
            fs::write(crate::files::with_suffix(&left.path, "-journal"), "x").unwrap();
            drop(left);
            assert_eq!(part.replace_target().unwrap(), text.len() as u64);
            assert_eq!(fs::read_to_string(there.join("b.db")).unwrap(), text);
            assert_eq!((names(&here), names(&there)), (vec!["link".into()], vec!["b.db".into(), "second".into()]));
        }
    }
}
