//! Guarantee 7, and contract section 3, the last paragraph: a file that could not be read is read again although it stays
//! the same.

use nix::errno::Errno;

use crate::serving_reload_parts::two_keys;
use crate::support::*;

/// Has the opening of a certain file fail while there is a file `refused`, which holds the error's number; each such try
/// makes the file `tries` longer.
const UNREADABLE_FILE: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
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
"#;

#[tokio::test]
async fn a_file_that_cannot_be_read_for_a_while_is_told_once_and_read_when_it_can() {
    let cases: [(_, _, fn(&World), _, _); 3] = [
        ("keys.toml", Errno::ESTALE, |world| world.remove_key("goes"), "key file rejected", "key file reloaded"),
        (
            "gateway.toml",
            Errno::EACCES,
            |world| world.edit("gateway.toml", "/old", "/new"),
            "reload rejected",
            "configuration reloaded",
        ),
        (
            "cert.pem",
            Errno::EIO,
            |world| world.put_identity(&Identity::new()),
            "TLS certificate rejected",
            "TLS certificate reloaded",
        ),
    ];
    for (file, error, change, told, back) in cases {
        let tools = tempfile::tempdir().unwrap();
        let launcher = ["env", preload(tools.path(), UNREADABLE_FILE), format!("FAULTY={file}").leak()];
        let gate = two_keys().tls().launched_by(&launcher).start().await;
        gate.world().write("refused", (error as i32).to_string());
        change(gate.world());
        gate.has_said(told).await;
        eventually(PATIENCE, "it is tried again", async || gate.world().read("tries").len() >= 3).await;
        assert_eq!(gate.stderr().matches(told).count(), 1, "{file}: {}", gate.stderr());
        std::fs::remove_file(gate.world().path("refused")).unwrap();
        eventually(SECOND_AND_SLACK, back, async || gate.stderr().contains(back)).await;
    }
}
