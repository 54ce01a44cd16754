//! A disk under the store that stops responding: calls of the kind that is told do not return until it responds again.

use std::path::PathBuf;

use tempfile::TempDir;

use super::preload;

/// Each hangs while a file of its name is in the folder `HANGING_DISK`.
const CALLS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static void hang(const char *kind) {
    char name[512];
    snprintf(name, sizeof name, "%s/%s", getenv("HANGING_DISK"), kind);
    while (!syscall(SYS_faccessat, AT_FDCWD, name, F_OK)) usleep(1000);
}
static int is_store(const char *path) {
    return path && strstr(path, "guildgate.db");
}
static void read_of(int file) {
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    if (is_store(path)) hang("reads");
}
int fsync(int file) {
    hang("commits");
    return syscall(SYS_fsync, file);
}
int fdatasync(int file) {
    hang("commits");
    return syscall(SYS_fdatasync, file);
}
ssize_t pread(int file, void *to, size_t size, off_t at) {
    read_of(file);
    return syscall(SYS_pread64, file, to, size, at);
}
ssize_t pread64(int file, void *to, size_t size, off_t at) {
    return pread(file, to, size, at);
}
int statx(int folder, const char *path, int flags, unsigned mask, struct statx *to) {
    if (is_store(path)) hang("looks");
    return syscall(SYS_statx, folder, path, flags, mask, to);
}
static int opened(const char *path, int flags, int mode) {
    if (is_store(path)) hang("looks");
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    return opened(path, flags, va_arg(more, int));
}
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    return opened(path, flags, va_arg(more, int));
}
"#;

/// What does not return.
#[derive(Clone, Copy, Debug)]
pub enum Hangs {
    /// The sync of a commit.
    Commits,
    /// Reads of the store's file and its log.
    Reads,
    /// Looks at these files by their names, and opening them.
    Looks,
}

impl Hangs {
    fn name(self) -> &'static str {
        match self {
            Hangs::Commits => "commits",
            Hangs::Reads => "reads",
            Hangs::Looks => "looks",
        }
    }
}

/// The disk of a server that is launched by [`HangingDisk::launcher`].
pub struct HangingDisk(TempDir);

impl HangingDisk {
    pub fn new() -> Self {
        HangingDisk(tempfile::tempdir().unwrap())
    }

    pub fn launcher(&self) -> &'static [&'static str] {
        let folder = format!("HANGING_DISK={}", self.0.path().display()).leak();
        Vec::from(["env", preload(self.0.path(), CALLS), folder]).leak()
    }

    fn switch(&self, hangs: Hangs) -> PathBuf {
        self.0.path().join(hangs.name())
    }

    pub fn stop_responding(&self, hangs: Hangs) {
        std::fs::write(self.switch(hangs), "").unwrap();
    }

    pub fn respond(&self, hangs: Hangs) {
        std::fs::remove_file(self.switch(hangs)).unwrap();
    }
}
