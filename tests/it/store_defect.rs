//! A defect in what writes to the store (contract section 5, guarantee 1): nothing can be written any more, so the process
//! says so and exits with 1 within a second, and a service manager starts another.

use crate::support::*;

/// Has a thread of the server, which it knows by its name, fail to read the clock once there is a file: the standard
/// library panics then. Once, since the panic's own line in the log is to have its time.
const FAULTY_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    char name[16];
    const char *thread = getenv("FAULTY_THREAD"), *file = getenv("FAULTY_FILE");
    if (thread && file && !pthread_getname_np(pthread_self(), name, sizeof name) && !strcmp(name, thread)
        && !unlink(file)) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_clock_gettime, clock, time);
}
"#;

#[tokio::test]
async fn a_server_whose_writer_has_ended_exits_with_1_within_a_second_and_says_why() {
    let tools = tempfile::tempdir().unwrap();
    let now = tools.path().join("now");
    let file = format!("FAULTY_FILE={}", now.display()).leak();
    let launcher = ["env", preload(tools.path(), FAULTY_CLOCK), "FAULTY_THREAD=store-writer", file];
    let mut gate = TestGateway::builder().key("bot").points("7", 3).launched_by(&launcher).start().await;
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    std::fs::write(&now, "").unwrap();
    let mut connection = gate.connect().await;
    connection.try_send(gate.request("setPoints", "bot", "memberID=7&amount=6").bytes()).await.unwrap();
    eventually(PATIENCE, "the writer fails", async || !now.exists()).await;
    eventually(SECOND_AND_SLACK, "the server ends", async || gate.process().has_ended()).await;
    assert_eq!(gate.process().exit().await, Some(1), "{}", gate.stderr());
    let log = gate.stderr();
    assert!(log.contains("a defect at "), "{log}");
    let why = log.lines().find(|line| line.contains("thread that writes to the store has ended by a defect"));
    assert!(why.is_some_and(|why| why.contains("start the server again")), "{log}");
    // Whoever waited is told that it is away, or that nobody knows, or not at all.
    if let Some(answer) = connection.answer_if_any().await {
        assert!(matches!(answer.code(), Some(20..=22)), "{answer:#?}");
    }
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("5");
}
