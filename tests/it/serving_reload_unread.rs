//! Guarantee 7, and contract section 3, the last paragraph: a file that could not be read, or was missing at the moment
//! when it was to be read, is read again although it stays the same.

use nix::errno::Errno;
use nix::sys::signal::Signal;

use crate::serving_reload_parts::{is_refused_soon, no_key, two_keys};
use crate::support::*;

/// Has the opening of a certain file fail while there is a file `refused`, which holds the error's number; each such try
/// makes the file `tries` longer. Has the second look at it find nothing once there is a file `flickers`.
const UNREADABLE_FILE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static int looks;
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int), refused;
    va_end(more);
    if (strstr(path, getenv("FAULTY")) && (refused = syscall(SYS_openat, AT_FDCWD, "refused", O_RDONLY)) >= 0) {
        char number[8] = {0};
        int tries = syscall(SYS_openat, AT_FDCWD, "tries", O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (read(refused, number, 7) < 0 || write(tries, ".", 1) < 0) abort();
        close(refused);
        close(tries);
        return errno = atoi(number), -1;
    }
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int statx(int folder, const char *path, int flags, unsigned mask, struct statx *into) {
    if (path && strstr(path, getenv("FAULTY"))) {
        looks = access("flickers", F_OK) ? 0 : looks + 1;
        if (looks == 2 && !unlink("flickers")) return errno = ENOENT, -1;
    }
    return syscall(SYS_statx, folder, path, flags, mask, into);
}
"#;

/// A gateway with TLS and two keys, of which this file can be made unreadable.
async fn with_unreadable(file: &str, tools: &tempfile::TempDir) -> TestGateway {
    let launcher = ["env", preload(tools.path(), UNREADABLE_FILE), format!("FAULTY={file}").leak()];
    two_keys().tls().launched_by(Vec::from(launcher).leak()).start().await
}

/// Changes a file while it cannot be read, which is told once although it is tried again, and lets it be read.
async fn is_unreadable_for_a_while(gate: &TestGateway, error: Errno, change: impl FnOnce(&World), told: &str) {
    gate.world().write("refused", (error as i32).to_string());
    change(gate.world());
    gate.has_said(told).await;
    let tries = async || gate.world().read("tries").len() >= 4;
    eventually(PATIENCE, "it is tried again", tries).await;
    assert_eq!(gate.stderr().matches(told).count(), 1, "{error}: {}", gate.stderr());
    std::fs::remove_file(gate.world().path("refused")).unwrap();
}

#[tokio::test]
async fn guarantee_7_a_key_file_that_cannot_be_read_for_a_while_is_read_when_it_can() {
    for error in [Errno::ESTALE, Errno::EACCES, Errno::ETIMEDOUT, Errno::ENOENT, Errno::EMFILE, Errno::EIO] {
        let tools = tempfile::tempdir().unwrap();
        let gate = with_unreadable("keys.toml", &tools).await;
        is_unreadable_for_a_while(&gate, error, |world| world.remove_key("goes"), "key file rejected").await;
        is_refused_soon(&gate, "goes").await;
        gate.get_points("stays", "7").await.is("3");
    }
}

#[tokio::test]
async fn a_gateway_toml_that_cannot_be_read_for_a_while_is_read_when_it_can() {
    for error in [Errno::ESTALE, Errno::EACCES] {
        let tools = tempfile::tempdir().unwrap();
        let gate = with_unreadable("gateway.toml", &tools).await;
        let edit = |world: &World| world.edit("gateway.toml", "/old", "/new");
        is_unreadable_for_a_while(&gate, error, edit, "reload rejected").await;
        gate.has_said("configuration reloaded").await;
        gate.send(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /new");
    }
}

#[tokio::test]
async fn a_certificate_that_cannot_be_read_for_a_while_is_read_when_it_can() {
    for error in [Errno::EMFILE, Errno::ESTALE] {
        let tools = tempfile::tempdir().unwrap();
        let gate = with_unreadable("cert.pem", &tools).await;
        let change = |world: &World| world.put_identity(&Identity::new());
        is_unreadable_for_a_while(&gate, error, change, "TLS certificate rejected").await;
        gate.has_said("TLS certificate reloaded").await;
    }
}

#[tokio::test]
async fn guarantee_7_a_key_file_that_is_missing_for_an_instant_at_sighup_is_read_when_it_is_back() {
    let tools = tempfile::tempdir().unwrap();
    let mut gate = with_unreadable("keys.toml", &tools).await;
    gate.world().remove_key("goes");
    gate.world().write("flickers", "");
    gate.process().signal(Signal::SIGHUP);
    is_refused_soon(&gate, "goes").await;
    gate.get_points("stays", "7").await.is("3");
}
