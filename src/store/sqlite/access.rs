//! Which of a store's files this process may not use, and what to do about it. Reads modes and owners only.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::geteuid;

use crate::files::{folder_of, follow_links, with_suffix};

/// The names of users.
const USERS: &str = "/etc/passwd";

/// What to do so that this process may use the store at `path`; `None` if it may.
pub(super) fn refusal(path: &Path) -> Option<String> {
    let file = follow_links(path).unwrap_or_else(|_| path.to_owned());
    // SQLite makes files in the folder, and removes them.
    let folder = (folder_of(&file), Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK);
    let files =
        ["", "-wal", "-shm", "-journal"].map(|end| (with_suffix(&file, end), Access::READ_OK | Access::WRITE_OK));
    files.into_iter().chain([folder]).find_map(|(name, access)| refusal_of(&name, access))
}

/// As [`refusal`], of one file or folder. Opens nothing: closing a file drops SQLite's locks on it.
fn refusal_of(name: &Path, access: Access) -> Option<String> {
    let meta = fs::metadata(name).ok()?;
    let error = accessat(CWD, name, access, AtFlags::EACCESS).err()?;
    if error == rustix::io::Errno::ROFS {
        return None;
    }
    let (owner, me) = (meta.uid(), geteuid().as_raw());
    let shown = name.display();
    if owner != me {
        let (owner, me) = (user(owner), user(me));
        return Some(format!(
            "{shown} belongs to {owner} and may not be used by {me}, the user of this process; run it as {owner}, or \
             give the file to {me} (chown {me} {shown})"
        ));
    }
    let modes = if meta.is_dir() { "u+rwx" } else { "u+rw" };
    Some(format!("{shown} is read-only or unreadable for its owner; change its mode (chmod {modes} {shown})"))
}

/// A user's name, or the number of a user without one.
fn user(id: u32) -> String {
    let users = fs::read_to_string(USERS).unwrap_or_default();
    let names = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
        (number.parse() == Ok(id)).then(|| name.to_owned())
    });
    names.into_iter().next().unwrap_or_else(|| id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_named_or_numbered() {
        assert_eq!(user(0), "root");
        assert_eq!(user(4_000_000_000), "4000000000");
    }

    #[test]
    fn who_made_the_files_may_use_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        fs::write(&path, "").unwrap();
        assert_eq!(refusal(&path), None);
    }
}
