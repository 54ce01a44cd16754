//! A defect in what writes to the store (contract section 5, guarantee 1): nothing can be written any more, so the
//! process says so and exits with 1 within a second, and a service manager starts another.

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

on_both_stores!(
    a_server_whose_writer_has_ended_exits_with_1_within_a_second_and_says_why,
    a_server_whose_writer_ends_while_it_drains_exits_with_1_within_a_second,
);

/// A server whose writer fails when it next runs after `fail_next`.
struct FaultyServer {
    gate: TestGateway,
    tools: tempfile::TempDir,
}

impl FaultyServer {
    async fn start(kind: Kind) -> FaultyServer {
        let tools = tempfile::tempdir().unwrap();
        let thread = match kind {
            Kind::Builtin | Kind::Http => "store-writer",
            Kind::Postgres => "store-postgres",
        };
        let thread = format!("FAULTY_THREAD={thread}").leak();
        let file = format!("FAULTY_FILE={}", tools.path().join("now").display()).leak();
        let launcher = Vec::from(["env", preload(tools.path(), FAULTY_CLOCK), thread, file]).leak();
        let gate = TestGateway::on(kind).key("bot").points("7", 3).admin().launched_by(launcher).start().await;
        FaultyServer { gate, tools }
    }

    fn fail_next(&self) {
        std::fs::write(self.tools.path().join("now"), "").unwrap();
    }

    /// Waits until the writer has failed; the process exits with 1 within a second of it.
    async fn fails(&mut self) {
        let now = self.tools.path().join("now");
        eventually(PATIENCE, "the writer fails", async || !now.exists()).await;
        let failed = std::time::Instant::now();
        assert_eq!(self.gate.process().exit().await, Some(1), "{}", self.gate.stderr());
        assert!(failed.elapsed() < SECOND_AND_SLACK, "{:?}", failed.elapsed());
        let log = self.gate.stderr();
        assert!(log.contains("a defect at "), "{log}");
        assert!(log.contains("task that writes to the store has ended by a defect"), "{log}");
        assert!(log.lines().last().unwrap().contains("Start the server again"), "{log}");
    }
}

async fn a_server_whose_writer_has_ended_exits_with_1_within_a_second_and_says_why(kind: Kind) {
    let mut server = FaultyServer::start(kind).await;
    let gate = &server.gate;
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    let mut connection = gate.connect().await;
    connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("5");
    server.fail_next();
    connection.send(gate.request("setPoints", "bot", "memberID=7&amount=6").bytes()).await;
    server.fails().await;
    // Whoever waited is told that it is away, or that nobody knows, or not at all.
    if let Some(answer) = connection.answer_if_any().await {
        assert!(matches!(answer.code(), Some(20..=22)), "{answer:#?}");
    }
    server.gate.restart_after_kill().await;
    server.gate.get_points("bot", "7").await.is("5");
}

async fn a_server_whose_writer_ends_while_it_drains_exits_with_1_within_a_second(kind: Kind) {
    let mut server = FaultyServer::start(kind).await;
    let (mut holds, mut writes) = (server.gate.connect().await, server.gate.connect().await);
    let request = server.gate.request("setPoints", "bot", "memberID=7&amount=6").header("Expect", "100-continue");
    for connection in [&mut holds, &mut writes] {
        connection.send(request.head()).await;
        assert_eq!(connection.answer().await.status, 100);
    }
    server.gate.process().signal(nix::sys::signal::Signal::SIGTERM);
    let gate = &server.gate;
    gate.has_said("stopping: ").await;
    server.fail_next();
    writes.send(request.body_bytes()).await;
    server.fails().await;
}

/// In an SQLite store, whose writing threads do nothing until something is to be written.
#[tokio::test]
async fn a_server_whose_writer_for_admins_has_ended_exits_with_1_within_a_second() {
    let mut server = FaultyServer::start(Kind::Builtin).await;
    let admin = server.gate.admin().await;
    let change = |points: i64| {
        let (admin, change) = (admin.clone(), format!(r#"{{"points":{points}}}"#));
        async move { admin.json("PUT", &format!("/api/guilds/{GUILD}/members/7"), &change).await }
    };
    change(4).await.is(200);
    server.fail_next();
    // It gets an answer or none.
    tokio::spawn(change(5));
    server.fails().await;
    assert!(server.gate.stderr().contains("the admin listener's task"), "{}", server.gate.stderr());
}
