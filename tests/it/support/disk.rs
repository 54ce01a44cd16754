//! A disk of a few KiB for tests of a full disk: a tmpfs in a mount namespace of its own, over one folder of a test's
//! world. Only what is started through its launcher sees it, and it is gone when it is dropped.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{PATIENCE, Process, World, eventually};

/// A disk of a few KiB, mounted over a folder of a world where only what is started through [`SmallDisk::launcher`]
/// sees it, and gone with this. What was in the folder is moved onto it.
pub struct SmallDisk {
    /// Keeps the mount, and does nothing else.
    holder: Process,
    folder: PathBuf,
    world: PathBuf,
}

impl SmallDisk {
    pub(super) async fn over(world: &World, folder: &str, kib: u64) -> SmallDisk {
        let mount = format!(
            "cp -a {folder} kept && mount -t tmpfs -o size={kib}k,mode=700 small {folder} && \
             find kept -mindepth 1 -maxdepth 1 -exec mv {{}} {folder}/ ';' && rmdir kept && \
             echo mounted && exec sleep infinity"
        );
        let mut command = Command::new("unshare");
        command.args(as_root(&["--map-root-user"])).args(["--mount", "sh", "-c", &mount]);
        let holder = Process::start(command.current_dir(world.path("")));
        eventually(PATIENCE, "the disk is mounted", async || holder.stdout().contains("mounted")).await;
        SmallDisk { holder, folder: world.path(folder), world: world.path("") }
    }

    /// What runs a command where the disk is seen, and becomes it.
    pub fn launcher(&self) -> Vec<String> {
        let of = |kind: &str| format!("/proc/{}/ns/{kind}", self.holder.id());
        let (user, mount) = (format!("--user={}", of("user")), format!("--mount={}", of("mnt")));
        let enter = [&["nsenter", &mount], &as_root(&[&user, "--preserve-credentials"])[..]].concat();
        let there = ["sh", "-c", "cd \"$0\" && exec \"$@\"", self.world.to_str().unwrap()];
        [&enter[..], &there].concat().into_iter().map(str::to_owned).collect()
    }

    /// The folder as it is seen there.
    pub fn path(&self) -> PathBuf {
        let root = format!("/proc/{}/root", self.holder.id());
        Path::new(&root).join(self.folder.strip_prefix("/").unwrap())
    }

    /// Puts a file there that takes what room is left, to the last byte.
    pub fn fill(&self, name: &str) -> PathBuf {
        use std::io::Write;
        let path = self.path().join(name);
        let mut file = std::fs::File::create(&path).unwrap();
        for piece in [vec![0; 64 * 1024], vec![0; 1]] {
            while file.write_all(&piece).is_ok() {}
        }
        path
    }
}

/// What root does not need, since others are root in a namespace of their own.
fn as_root<'w>(words: &[&'w str]) -> Vec<&'w str> {
    if nix::unistd::geteuid().is_root() { Vec::new() } else { words.to_vec() }
}
