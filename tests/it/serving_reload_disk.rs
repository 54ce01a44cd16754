//! Contract section 3, the last paragraph, and guarantee 7: a disk that does not respond, and files that change while they are
//! read or while a start goes on, put nothing wrong in force.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::Signal;

use crate::serving_reload_parts::{is_refused_soon, no_key, reloaded, two_keys};
use crate::support::*;

/// Has the opening of a certain file wait while there is a file `stalled`, and fail while there is a file `refused`, which
/// holds the error's number. Each time makes the file `tries` longer.
const FAULTY_FILE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static void tried(void) {
    int tries = syscall(SYS_openat, AT_FDCWD, "tries", O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (write(tries, ".", 1) < 0) abort();
    close(tries);
}
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int), refused;
    va_end(more);
    if (strstr(path, getenv("FAULTY"))) {
        for (; !access("stalled", F_OK); usleep(10000)) tried();
        if ((refused = syscall(SYS_openat, AT_FDCWD, "refused", O_RDONLY)) >= 0) {
            char number[8] = {0};
            if (read(refused, number, 7) < 0) abort();
            close(refused);
            tried();
            return errno = atoi(number), -1;
        }
    }
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
"#;

/// A command through which this file of a server is stalled or refused.
fn with_faulty(file: &str, tools: &tempfile::TempDir) -> &'static [&'static str] {
    Vec::from(["env", preload(tools.path(), FAULTY_FILE), format!("FAULTY={file}").leak()]).leak()
}

#[tokio::test]
async fn a_disk_that_does_not_respond_or_gives_errors_is_told_once_and_its_files_are_taken_up_once_it_does() {
    let tools = tempfile::tempdir().unwrap();
    let mut gate = two_keys().key("later").launched_by(with_faulty("keys.toml", &tools)).start().await;
    let stalled = gate.world().write("stalled", "");
    gate.world().remove_key("goes");
    gate.has_said("reading the files takes too long").await;
    gate.get_points("goes", "7").await.is("3");
    std::fs::remove_file(stalled).unwrap();
    is_refused_soon(&gate, "goes").await;
    gate.get_points("stays", "7").await.is("3");
    assert_eq!(gate.stderr().matches("takes too long").count(), 1, "{}", gate.stderr());
    let refused = gate.world().write("refused", (Errno::ESTALE as i32).to_string());
    let tried = tries(&gate);
    gate.world().remove_key("later");
    gate.has_said("key file rejected").await;
    eventually(PATIENCE, "it is tried again", async || tries(&gate) >= tried + 3).await;
    assert_eq!(gate.stderr().matches("key file rejected").count(), 1, "{}", gate.stderr());
    std::fs::remove_file(refused).unwrap();
    is_refused_soon(&gate, "later").await;
    what_is_read_of_a_file_while_it_is_written_in_place_is_not_put_in_force(&mut gate, "keys.toml").await;
    let tools = tempfile::tempdir().unwrap();
    let mut gate = two_keys().launched_by(with_faulty("gateway.toml", &tools)).start().await;
    what_is_read_of_a_file_while_it_is_written_in_place_is_not_put_in_force(&mut gate, "gateway.toml").await;
}

/// How often the faulty file was opened while it was stalled or refused.
fn tries(gate: &TestGateway) -> usize {
    std::fs::read(gate.world().path("tries")).map_or(0, |tries| tries.len())
}

async fn what_is_read_of_a_file_while_it_is_written_in_place_is_not_put_in_force(gate: &mut TestGateway, name: &str) {
    let before = gate.world().read(name);
    let tried = tries(gate);
    let stalled = gate.world().write("stalled", "");
    gate.process().signal(Signal::SIGHUP);
    eventually(PATIENCE, "the file is read", async || tries(gate) > tried).await;
    // The times of files go by the kernel's ticks, and this one has to be after that of the SIGHUP.
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.world().write(name, "");
    std::fs::remove_file(stalled).unwrap();
    gate.has_said("is empty; write it, or send SIGHUP to read it").await;
    gate.get_points("stays", "7").await.is("3");
    gate.send(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /old");
    let told = gate.stderr().matches("reloaded").count();
    gate.world().write(name, before);
    eventually(PATIENCE, "it is read again", async || gate.stderr().matches("reloaded").count() > told).await;
    gate.get_points("stays", "7").await.is("3");
}

#[tokio::test]
async fn a_key_file_that_is_empty_or_begun_at_sighup_and_written_at_once_refuses_nobody_and_a_pipe_is_told() {
    let mut gate = two_keys().start().await;
    let mut kept = gate.connect().await;
    let request = gate.request("getPoints", "goes", "memberID=7");
    let keys = gate.world().read("keys.toml");
    let begun = gate.world().keys_without("goes");
    let mut rounds = 0;
    for n in 1.. {
        let told = gate.stderr().matches("key file reloaded").count();
        let emptied = Instant::now();
        gate.world().write("keys.toml", if rounds % 2 == 0 { "" } else { &begun });
        gate.process().signal(Signal::SIGHUP);
        // The key file is read beside it.
        reloaded(&gate, n).await;
        gate.world().write("keys.toml", &keys);
        // On a busy machine it may have been empty for so long that this counts.
        let is_brief = emptied.elapsed() < Duration::from_millis(250);
        let is_taken = async || {
            let answer = kept.ask(&request).await;
            assert!(!is_brief || answer.body == "3", "{answer:?}");
            gate.stderr().matches("key file reloaded").count() > told && answer.body == "3"
        };
        eventually(PATIENCE, "the key is taken", is_taken).await;
        rounds += u32::from(is_brief);
        if rounds == 2 {
            break;
        }
    }
    // A pipe in the place of gateway.toml is told, and keeps no later reload from being made.
    let good = gate.world().edited("gateway.toml", "/old", "/new");
    let path = gate.world().path("gateway.toml");
    std::fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    gate.process().signal(Signal::SIGHUP);
    gate.has_said("gateway.toml is a pipe").await;
    std::fs::remove_file(&path).unwrap();
    gate.world().write("gateway.toml", good);
    let is_new = || async { gate.send(&no_key()).await.body.ends_with("/new") };
    eventually(PATIENCE, "the good file is in force", is_new).await;
}

#[tokio::test]
async fn guarantee_7_a_successor_that_read_its_files_before_a_change_does_not_take_over() {
    let tools = tempfile::tempdir().unwrap();
    let gate = two_keys().set("server.handover", r#""handover.sock""#).set("log.access", r#""access.log""#);
    let gate = gate.launched_by(with_faulty("access.log", &tools)).start().await;
    let stalled = gate.world().write("stalled", "");
    let mut successor = gate.world().serve(&[]);
    eventually(PATIENCE, "it opens its access log", async || gate.world().path("tries").exists()).await;
    gate.world().remove_key("goes");
    is_refused_soon(&gate, "goes").await;
    std::fs::remove_file(stalled).unwrap();
    assert_eq!(successor.exit().await, Some(2), "{}", successor.stderr());
    assert!(successor.stderr().contains("a file has changed since this start began"), "{}", successor.stderr());
    gate.get_points("goes", "7").await.is_refused(401, "02 | Incorrect API key!");
    gate.get_points("stays", "7").await.is("3");
}
