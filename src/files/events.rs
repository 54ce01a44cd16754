//! Notices changes of files by inotify, so that nothing has to look for them many times a second. It tells that
//! something may have changed and not what: whoever waits looks for itself. It misses what another machine changes on a
//! shared disk and what is written through mapped memory, so it comes in addition to a look now and then. That look finds
//! a write through mapped memory only if it changes the file's times, which a second one to the same page need not.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init, remove_watch};
use rustix::fs::statfs;
use rustix::io::Errno;
use tokio::net::unix::pipe;

use super::{MAX_LINKS, folder_of};

/// What changes the content of a file, or what stat says of it.
const OF_FILE: WatchFlags = WatchFlags::MODIFY.union(WatchFlags::ATTRIB);

/// What changes which file a name in a folder leads to. What is written into the files of a folder is not among it,
/// because logs may be there.
const OF_FOLDER: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR);

/// File systems that other machines write to (the names are those of `linux/magic.h`): NFS, SMB, CIFS, SMB2, 9P, Ceph,
/// AFS, Lustre, OCFS2, GFS2, and FUSE, which may be anything.
const SHARED: [u32; 11] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x0bd0_0bd0,
    0x7461_636f,
    0x0116_1970,
    0x6573_5546,
];

/// Notices changes of some files.
#[derive(Debug)]
pub struct FileEvents {
    /// Tokio can read it as it reads a pipe.
    inotify: pipe::Receiver,
    watched: HashSet<i32>,
}

impl FileEvents {
    /// Watches nothing yet. To be called and used in one runtime.
    ///
    /// # Errors
    /// Where the system has no inotify, or has no more for this user.
    pub fn new() -> io::Result<Self> {
        let inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(FileEvents { inotify: pipe::Receiver::from_owned_fd_unchecked(inotify)?, watched: HashSet::new() })
    }

    /// Watches what is written into this file, whatever its name is later.
    ///
    /// # Errors
    /// As those of [`FileEvents::watch_paths`], or where there is no such file.
    pub fn watch_content(&mut self, file: &Path) -> io::Result<()> {
        refuse_shared(&folder_of(file))?;
        self.watched.insert(add_watch(&self.inotify, file, OF_FILE)?);
        Ok(())
    }

    /// Watches these paths and nothing else: the files to which they lead, the folders in which these are, and each
    /// link on the way. To be called again after each event, because they may lead elsewhere since.
    ///
    /// # Errors
    /// Where the system gives no more watches, or other machines may write to a file.
    pub fn watch_paths(&mut self, paths: &[PathBuf]) -> io::Result<()> {
        let (mut watched, mut links) = (HashSet::new(), HashSet::new());
        for path in paths {
            refuse_shared(&folder_of(path))?;
            refuse_shared(path)?; // a link, or mounted by itself
            self.watch(path, OF_FILE, &mut watched)?;
            self.watch_way(path, &mut links, &mut watched)?;
        }
        for &old in self.watched.difference(&watched) {
            let _ = remove_watch(&self.inotify, old); // the kernel may have removed it with its file
        }
        self.watched = watched;
        Ok(())
    }

    /// Watches the folder that `path` is in, and each link on the way: the path may be one, and so may each folder.
    fn watch_way(&self, path: &Path, links: &mut HashSet<PathBuf>, watched: &mut HashSet<i32>) -> io::Result<()> {
        self.watch(&folder_of(path), OF_FOLDER, watched)?;
        for link in path.ancestors() {
            if let Ok(to) = std::fs::read_link(link)
                && links.len() < MAX_LINKS
                && links.insert(link.to_owned())
            {
                self.watch(&folder_of(link), OF_FOLDER, watched)?;
                self.watch_way(&folder_of(link).join(to), links, watched)?;
            }
        }
        Ok(())
    }

    fn watch(&self, path: &Path, what: WatchFlags, watched: &mut HashSet<i32>) -> io::Result<()> {
        match add_watch(&self.inotify, path, what) {
            Ok(watch) => {
                watched.insert(watch);
                Ok(())
            }
            // Its folder is watched, or the next look finds it, also when it may be read again.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until something may have changed since the last call.
    pub async fn next(&self) {
        let mut any = false;
        while !any {
            let mut events = [0; 4096];
            let error = loop {
                match self.inotify.try_read(&mut events) {
                    Ok(_) => any = true,
                    Err(error) => break error,
                }
            };
            // Another error means that no more events will come.
            if error.kind() != ErrorKind::WouldBlock || (!any && self.inotify.readable().await.is_err()) {
                return std::future::pending().await;
            }
        }
    }
}

/// Refuses a folder or file on a file system to which other machines may write.
fn refuse_shared(path: &Path) -> io::Result<()> {
    let kind = statfs(path).map(|system| system.f_type as u32); // the kernel's numbers have 32 bits
    match kind {
        Ok(kind) if SHARED.contains(&kind) => Err(io::Error::other("it is on a network file system, or on FUSE")),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::thread;
    use std::time::Duration;

    use nix::unistd::{Uid, setfsuid};
    use tokio::time::timeout;

    use super::*;

    /// Long enough for an event, which the kernel queues before the change is done.
    const SOON: Duration = Duration::from_secs(5);

    struct Watched {
        events: FileEvents,
        paths: Vec<PathBuf>,
    }

    impl Watched {
        fn new(path: &Path) -> Self {
            let mut watched = Watched { events: FileEvents::new().unwrap(), paths: vec![path.to_owned()] };
            watched.again();
            watched
        }

        fn again(&mut self) {
            self.events.watch_paths(&self.paths).unwrap();
        }

        /// Whether events have come since the last call. The kernel queues them before a change is done.
        async fn noticed(&mut self) -> bool {
            let mut any = false;
            while timeout(Duration::from_millis(1), self.events.next()).await.is_ok() {
                any = true;
                self.again();
            }
            any
        }
    }

    #[tokio::test]
    async fn each_way_to_change_a_file_is_noticed_and_a_log_beside_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, "1").unwrap();
        fs::write(&other, "1").unwrap();
        let mut watched = Watched::new(&path);
        assert!(!watched.noticed().await, "nothing has changed");
        fs::OpenOptions::new().append(true).open(&other).unwrap().write_all(b"a line").unwrap();
        assert!(!watched.noticed().await, "another file was written to");
        fs::write(&path, "22").unwrap();
        assert!(watched.noticed().await, "it was written in place");
        fs::rename(&other, &path).unwrap();
        assert!(watched.noticed().await, "it was replaced");
        fs::write(&path, "333").unwrap();
        assert!(watched.noticed().await, "the new one was written in place");
        fs::remove_file(&path).unwrap();
        assert!(watched.noticed().await, "it was removed");
        fs::write(&path, "1").unwrap();
        assert!(watched.noticed().await, "it is back");
    }

    #[tokio::test]
    async fn a_link_that_leads_elsewhere_is_noticed_wherever_it_is_on_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for version in ["v1", "v2", "v3"] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("a"), version).unwrap();
        }
        // As Kubernetes mounts a ConfigMap: mount/a leads to mount/..data/a, and ..data to a folder.
        fs::create_dir(at("mount")).unwrap();
        symlink("../v1", at("mount/..data")).unwrap();
        symlink("..data/a", at("mount/a")).unwrap();
        symlink("mount", at("current")).unwrap();
        let mut watched = Watched::new(&at("current/a"));
        assert!(!watched.noticed().await, "nothing has changed");
        symlink("../v2", at("mount/..data_tmp")).unwrap();
        fs::rename(at("mount/..data_tmp"), at("mount/..data")).unwrap();
        assert!(watched.noticed().await, "..data leads elsewhere");
        fs::write(at("v2/a"), "in place").unwrap();
        assert!(watched.noticed().await, "the file to which it leads now was written");
        fs::write(at("v1/a"), "old").unwrap();
        assert!(!watched.noticed().await, "it leads there no more");
        symlink("v3", at("next")).unwrap();
        fs::rename(at("next"), at("current")).unwrap();
        assert!(watched.noticed().await, "the first folder leads elsewhere");
        symlink("ring", at("ring")).unwrap();
        Watched::new(&at("ring")).noticed().await;
    }

    /// Does this as a user whom permissions bind, as they do not bind root.
    fn unprivileged<T: Send>(act: impl FnOnce() -> T + Send) -> T {
        let as_nobody = || {
            setfsuid(Uid::from_raw(65534)); // of this thread alone; another user than root stays itself
            act()
        };
        thread::scope(|scope| scope.spawn(as_nobody).join().unwrap())
    }

    #[tokio::test]
    async fn a_file_or_folder_that_cannot_be_read_for_a_moment_ends_no_watch_and_is_watched_again() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("folder");
        let path = folder.join("a");
        fs::create_dir(&folder).unwrap();
        fs::write(&path, "1").unwrap();
        let set_mode = |of: &Path, mode| fs::set_permissions(of, Permissions::from_mode(mode)).unwrap();
        set_mode(outer.path(), 0o755);
        for unreadable in [&path, &folder] {
            let mut watched = Watched::new(&path);
            set_mode(unreadable, 0);
            let refused = unprivileged(|| fs::File::open(&path).is_err());
            assert!(refused, "{unreadable:?} can be read");
            unprivileged(|| watched.events.watch_paths(&watched.paths)).unwrap();
            set_mode(unreadable, 0o755);
            watched.again();
            watched.noticed().await;
            fs::write(&path, "22").unwrap();
            assert!(watched.noticed().await, "{unreadable:?} can be read again");
        }
    }

    #[tokio::test]
    async fn what_is_written_into_a_file_is_noticed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wal");
        let mut events = FileEvents::new().unwrap();
        assert!(events.watch_content(&path).is_err(), "there is no such file");
        let mut file = fs::File::create(&path).unwrap();
        events.watch_content(&path).unwrap();
        for _ in 0..3 {
            file.write_all(b"frame").unwrap();
            timeout(SOON, events.next()).await.unwrap();
        }
        assert!(timeout(Duration::from_millis(1), events.next()).await.is_err(), "each is told once");
    }
}
