//! Contract section 3, the last paragraph, and guarantee 7: a disk that does not respond, files that are away for a
//! moment, and a system that gives no thread, put nothing wrong in force and delay no later reload.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::serving_reload_parts::{is_refused_soon, no_key, reloaded, two_keys};
use crate::support::*;

/// Has the opening of a certain file fail or wait, or a look at it, while there is a certain other one, or hang for ever where
/// that was there; that it waits is told by a file.
const FAULTY_FILE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static void hang_for_ever(const char *while_there) {
    if (access(while_there, F_OK)) return;
    for (close(creat("waits", 0600));; usleep(10000));
}
int statx(int folder, const char *path, int flags, unsigned mask, struct statx *to) {
    if (path && strstr(path, getenv("FAULTY"))) {
        hang_for_ever("looks-hang");
        for (; !access("looks-stall", F_OK); usleep(10000)) close(creat("waits", 0600));
    }
    return syscall(SYS_statx, folder, path, flags, mask, to);
}
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    if (strstr(path, getenv("FAULTY"))) {
        hang_for_ever("reads-hang");
        for (; !access("stalled", F_OK); usleep(10000)) close(creat("waits", 0600));
        if (!access("absent", F_OK)) return errno = ENOENT, -1;
    }
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
"#;

/// A command through which this file of a server is stalled or absent, while a file of that name is beside it.
fn with_faulty(file: &str, tools: &tempfile::TempDir) -> &'static [&'static str] {
    Vec::from(["env", preload(tools.path(), FAULTY_FILE), format!("FAULTY={file}").leak()]).leak()
}

#[tokio::test]
async fn guarantee_7_a_key_file_whose_reading_takes_too_long_is_read_again_once_the_disk_responds() {
    let tools = tempfile::tempdir().unwrap();
    let gate = two_keys().launched_by(with_faulty("keys.toml", &tools)).start().await;
    let stalled = gate.world().write("stalled", "");
    gate.world().remove_key("goes");
    gate.has_said("reading the files takes too long").await;
    gate.get_points("goes", "7").await.is("3");
    std::fs::remove_file(stalled).unwrap();
    is_refused_soon(&gate, "goes").await;
    gate.get_points("stays", "7").await.is("3");
}

#[tokio::test]
async fn what_is_read_of_a_file_while_it_is_written_in_place_is_not_put_in_force() {
    for name in ["keys.toml", "gateway.toml"] {
        let tools = tempfile::tempdir().unwrap();
        let mut gate = two_keys().launched_by(with_faulty(name, &tools)).start().await;
        let before = gate.world().read(name);
        let stalled = gate.world().write("stalled", "");
        gate.process().signal(Signal::SIGHUP);
        eventually(PATIENCE, "the file is read", async || gate.world().path("waits").exists()).await;
        gate.world().write(name, "");
        std::fs::remove_file(stalled).unwrap();
        gate.has_said(&format!("{name} is still being written; it is read when it stays the same")).await;
        gate.get_points("goes", "7").await.is("3");
        gate.send(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /old");
        let told = gate.stderr().matches("reloaded").count();
        gate.world().write(name, before);
        eventually(PATIENCE, "it is read again", async || gate.stderr().matches("reloaded").count() > told).await;
        gate.get_points("goes", "7").await.is("3");
    }
}

#[tokio::test]
async fn a_key_file_that_gateway_toml_newly_names_is_not_put_in_force_as_it_was_read_while_written_in_place() {
    let tools = tempfile::tempdir().unwrap();
    let mut gate = two_keys().launched_by(with_faulty("other.toml", &tools)).start().await;
    let keys = gate.world().read("keys.toml");
    gate.world().write("other.toml", &keys);
    let stalled = gate.world().write("stalled", "");
    gate.world().edit("gateway.toml", "keys.toml", "other.toml");
    gate.process().signal(Signal::SIGHUP);
    eventually(PATIENCE, "the file is read", async || gate.world().path("waits").exists()).await;
    gate.world().write("other.toml", "");
    std::fs::remove_file(stalled).unwrap();
    gate.has_said("other.toml is still being written; it is read when it stays the same").await;
    gate.get_points("goes", "7").await.is("3");
    gate.world().write("other.toml", keys);
    gate.has_said("configuration reloaded").await;
    gate.get_points("goes", "7").await.is("3");
}

#[tokio::test]
async fn a_key_file_that_is_empty_or_begun_at_sighup_and_written_at_once_refuses_nobody() {
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
        if rounds == 4 {
            break;
        }
    }
}

#[tokio::test]
async fn a_default_file_that_is_removed_is_no_reason_for_the_defaults() {
    let world = World::plain();
    let mut process = Process::start(&mut world.command(&["serve"]));
    process.ready().await;
    std::fs::remove_file(world.path("gateway.toml")).unwrap();
    process.signal(Signal::SIGHUP);
    let what = "what was read from it stays in force until it is back file=gateway.toml";
    process.has_said(what).await;
    assert!(!process.stderr().contains("configuration reloaded"), "{}", process.stderr());
}

#[tokio::test]
async fn a_default_file_that_is_away_when_it_is_read_is_no_reason_for_the_defaults() {
    let (world, tools) = (World::plain(), tempfile::tempdir().unwrap());
    let mut process = Process::start(&mut world.command_by(with_faulty("gateway.toml", &tools), &["serve"]));
    process.ready().await;
    let absent = world.write("absent", "");
    process.signal(Signal::SIGHUP);
    process.has_said("reload rejected; still running the previous configuration").await;
    process.has_said("gateway.toml is missing; what was read from it stays in force").await;
    std::fs::remove_file(absent).unwrap();
    // It is read again without another signal.
    process.has_said("configuration reloaded file=gateway.toml changed=\"nothing\"").await;
}

#[tokio::test]
async fn a_pipe_in_the_place_of_gateway_toml_is_told_and_keeps_no_later_reload_from_being_made() {
    let mut gate = two_keys().start().await;
    let good = gate.world().edited("gateway.toml", "/old", "/new");
    let path = gate.world().path("gateway.toml");
    std::fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    gate.process().signal(Signal::SIGHUP);
    gate.has_said("takes too long").await;
    std::fs::remove_file(&path).unwrap();
    gate.world().write("gateway.toml", good);
    let is_new = || async { gate.send(&no_key()).await.body.ends_with("/new") };
    eventually(PATIENCE, "the good file is in force", is_new).await;
}

/// Has looks at a certain file, and at where it leads, wait while there is a certain other one.
const AWAY_FILE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static void look_at(const char *path) {
    if (path && strstr(path, getenv("FAULTY"))) while (!access("stalled", F_OK)) usleep(10000);
}
int statx(int folder, const char *path, int flags, unsigned mask, struct statx *into) {
    look_at(path);
    return syscall(SYS_statx, folder, path, flags, mask, into);
}
ssize_t readlink(const char *path, char *into, size_t size) {
    look_at(path);
    return syscall(SYS_readlinkat, AT_FDCWD, path, into, size);
}
"#;

/// Has the system tell of no changes, as it tells of none on a disk of another machine: it has no inotify.
const NO_INOTIFY: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
__attribute__((constructor)) static void no_inotify(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_inotify_init1, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof rules / sizeof *rules, rules };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) abort();
}
"#;

#[tokio::test]
async fn guarantee_7_a_key_taken_out_is_refused_though_a_look_at_another_file_never_ends() {
    for file in ["gateway.toml", "cert.pem"] {
        let tools = tempfile::tempdir().unwrap();
        let launcher = ["env", preload(tools.path(), AWAY_FILE), format!("FAULTY={file}").leak()];
        let mut gate = two_keys().tls().launched_by(&launcher).start().await;
        let stalled = gate.world().write("stalled", "");
        gate.world().remove_key("goes");
        is_refused_soon(&gate, "goes").await;
        gate.get_points("stays", "7").await.is("3");
        gate.world().edit("gateway.toml", "/old", "/new");
        gate.world().put_identity(&Identity::new());
        gate.process().signal(Signal::SIGHUP);
        gate.has_said("reload rejected: reading the files takes too long").await;
        std::fs::remove_file(stalled).unwrap();
        gate.has_said("configuration reloaded").await;
        gate.has_said("TLS certificate reloaded").await;
        gate.world().write("stalled", "");
        gate.stop().await; // within the patience of a test
    }
}

#[tokio::test]
async fn guarantee_7_a_key_taken_out_is_refused_though_the_network_disk_of_the_certificate_does_not_respond() {
    let tools = tempfile::tempdir().unwrap();
    let library = preload(tools.path(), &format!("{AWAY_FILE}{NO_INOTIFY}"));
    let mut gate = two_keys().tls().launched_by(&["env", library, "FAULTY=cert.pem"]).start().await;
    gate.has_said("changes of files cannot be watched (inotify)").await;
    let stalled = gate.world().write("stalled", "");
    gate.process().signal(Signal::SIGHUP);
    gate.has_said("reload rejected: reading the files takes too long").await;
    gate.world().remove_key("goes");
    is_refused_soon(&gate, "goes").await;
    gate.get_points("stays", "7").await.is("3");
    gate.world().put_identity(&Identity::new());
    std::fs::remove_file(stalled).unwrap();
    gate.has_said("TLS certificate reloaded").await;
    gate.world().write("stalled", "");
    gate.stop().await; // within the patience of a test
}

/// Has no thread be made while there is a certain file.
const NO_THREADS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <unistd.h>
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *of) {
    if (!access("no-threads", F_OK)) return EAGAIN;
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    return create(thread, attributes, run, of);
}
"#;

/// After which tokio ends a thread that waits for work.
const IDLE_THREAD: Duration = Duration::from_secs(10);

#[tokio::test]
async fn guarantee_7_a_key_taken_out_is_refused_though_the_system_gives_no_thread() {
    let tools = tempfile::tempdir().unwrap();
    let gate = two_keys().launched_by(&["env", preload(tools.path(), NO_THREADS)]).start().await;
    gate.world().write("no-threads", "");
    tokio::time::sleep(IDLE_THREAD + Duration::from_secs(1)).await;
    gate.world().remove_key("goes");
    is_refused_soon(&gate, "goes").await;
    gate.get_points("stays", "7").await.is("3");
}

#[tokio::test]
async fn a_file_that_hangs_and_that_only_a_rejected_configuration_names_delays_the_next_one_by_seconds() {
    let tools = tempfile::tempdir().unwrap();
    let gate = two_keys().launched_by(with_faulty("other.toml", &tools)).start().await;
    gate.world().write("other.toml", "[[key]]\nfault = 1\n");
    gate.world().edit("gateway.toml", "\"keys.toml\"", "\"other.toml\"");
    gate.has_said("reload rejected").await;
    let stall = gate.world().write("looks-stall", "");
    eventually(PATIENCE, "a look at it hangs", async || gate.world().path("waits").exists()).await;
    gate.world().edit("gateway.toml", "\"other.toml\"", "\"keys.toml\"");
    gate.has_said("configuration reloaded").await;
    gate.world().remove_key("goes");
    is_refused_soon(&gate, "goes").await;
    std::fs::remove_file(stall).unwrap();
}

/// A server, and a successor that has read its files and goes on with its start once the file is removed that comes with them.
async fn amid_a_handover(tools: &tempfile::TempDir) -> (TestGateway, Process, std::path::PathBuf) {
    let gate = two_keys().set("server.handover", r#""handover.sock""#).set("log.access", r#""access.log""#);
    let gate = gate.launched_by(with_faulty("access.log", tools)).start().await;
    let stalled = gate.world().write("stalled", "");
    let successor = gate.world().serve(&[]);
    eventually(PATIENCE, "it opens its access log", async || gate.world().path("waits").exists()).await;
    (gate, successor, stalled)
}

#[tokio::test]
async fn guarantee_7_a_key_that_is_taken_out_while_a_successor_starts_does_not_come_back_if_the_key_file_then_breaks() {
    for broken in [Some("[[key]]\nfault = 1\n"), Some(""), None] {
        let tools = tempfile::tempdir().unwrap();
        let (gate, mut successor, stalled) = amid_a_handover(&tools).await;
        gate.world().remove_key("goes");
        is_refused_soon(&gate, "goes").await;
        match broken {
            Some(text) => drop(gate.world().write("keys.toml", text)),
            None => std::fs::remove_file(gate.world().path("keys.toml")).unwrap(),
        }
        std::fs::remove_file(stalled).unwrap();
        assert_eq!(successor.exit().await, Some(2), "{}", successor.stderr());
        assert!(
            successor.stderr().contains("the key file has changed since this start began"),
            "{}",
            successor.stderr()
        );
        gate.get_points("goes", "7").await.is_refused(401, "02 | Incorrect API key!");
        gate.get_points("stays", "7").await.is("3");
    }
}

#[tokio::test]
async fn a_successor_whose_gateway_toml_has_changed_since_its_start_began_leaves_the_place_to_its_predecessor() {
    let tools = tempfile::tempdir().unwrap();
    let (gate, mut successor, stalled) = amid_a_handover(&tools).await;
    gate.world().write("other.toml", gate.world().read("keys.toml"));
    gate.world().edit("gateway.toml", "\"keys.toml\"", "\"other.toml\"");
    gate.has_said("configuration reloaded").await;
    std::fs::remove_file(stalled).unwrap();
    assert_eq!(successor.exit().await, Some(2), "{}", successor.stderr());
    assert!(successor.stderr().contains("gateway.toml has changed since this start began"), "{}", successor.stderr());
    gate.get_points("stays", "7").await.is("3");
}

#[tokio::test]
async fn guarantee_7_a_key_file_in_place_of_one_that_hangs_for_ever_is_read_without_a_signal() {
    for hangs in ["looks-hang", "reads-hang"] {
        let tools = tempfile::tempdir().unwrap();
        let gate = two_keys().launched_by(with_faulty("keys.toml", &tools)).start().await;
        let hangs = gate.world().write(hangs, "");
        let keys = gate.world().read("keys.toml");
        gate.world().write("keys.toml", keys);
        eventually(PATIENCE, "it hangs", async || gate.world().path("waits").exists()).await;
        // As where a file system that hangs is unmounted.
        std::fs::remove_file(hangs).unwrap();
        gate.world().remove_key("goes");
        let is_refused = async || gate.get_points("goes", "7").await.code() == Some(2);
        eventually(PATIENCE, "the removed key is refused", is_refused).await;
        gate.get_points("stays", "7").await.is("3");
    }
}
