//! Contract section 2, `serve`: a signal that asks for a reload, or to open the logs again, ends no server, however early it
//! comes; other commands end by SIGHUP, as when their terminal is closed.

use nix::sys::signal::Signal;

use crate::support::*;

/// Sends itself the signal `SIGNAL` when the limit of open files is first looked at, which is the first that a server does
/// after its arguments.
const EARLY_SIGNAL: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static int look(int resource, void *limit) {
    static int sent = 0;
    if (resource == RLIMIT_NOFILE && !sent++) {
        kill(getpid(), atoi(getenv("SIGNAL")));
        (void)!write(2, "sent\n", 5);
    }
    return syscall(SYS_prlimit64, 0, resource, 0, limit);
}
int getrlimit(__rlimit_resource_t resource, struct rlimit *limit) { return look(resource, limit); }
int getrlimit64(__rlimit_resource_t resource, struct rlimit64 *limit) { return look(resource, limit); }
"#;

#[tokio::test]
async fn a_signal_of_the_first_moments_ends_no_server_and_is_obeyed_and_ends_another_command() {
    let tools = tempfile::tempdir().unwrap();
    let preload = preload(tools.path(), EARLY_SIGNAL);
    let (world, ..) = TestGateway::builder().key("bot").prepare().await;
    let config = world.path("gateway.toml");
    for signal in [Signal::SIGHUP, Signal::SIGUSR1] {
        ends_another_command(signal).await;
        for _ in 0..2 {
            let launcher = ["env", preload, &format!("SIGNAL={}", signal as i32)];
            let command = &mut world.command_by(&launcher, &["serve", "--config", config.to_str().unwrap()]);
            let mut process = Process::start(command);
            process.ready().await;
            assert!(process.stderr().starts_with("sent\n"), "{}", process.stderr());
            if signal == Signal::SIGHUP {
                process.has_said("configuration reloaded").await;
            }
            // Those that come later are not held back.
            process.signal(Signal::SIGHUP);
            let reloads = if signal == Signal::SIGHUP { 2 } else { 1 };
            let has_reloaded = async || process.stderr().matches("configuration reloaded").count() == reloads;
            eventually(PATIENCE, "the reloads", has_reloaded).await;
        }
    }
}

/// Another command ends by either, as when its terminal is closed.
async fn ends_another_command(signal: Signal) {
    let (mut process, _stdin) = Process::fed(&mut World::plain().command(&["key", "hash"]));
    eventually(PATIENCE, "it reads its stdin", async || process.all_threads_wait()).await;
    process.signal(signal);
    assert_eq!(process.exit().await, None, "{signal}");
}
