//! A defect in what writes to the store (contract section 5, guarantee 1): nothing can be written any more, so the process
//! says so and exits with 1 within a second, and a service manager starts another.

use std::net::SocketAddr;

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

on_both_stores!(a_server_whose_writer_has_ended_exits_with_1_within_a_second_and_says_why);

/// How many writes are tried until one meets the fault.
const WRITES: i64 = 5;

/// Makes a thread of a server fail.
struct Fault {
    tools: tempfile::TempDir,
    /// Starts a server that can fail so.
    launcher: &'static [&'static str],
}

impl Fault {
    fn in_thread(thread: &str) -> Fault {
        let tools = tempfile::tempdir().unwrap();
        let thread = format!("FAULTY_THREAD={thread}").leak();
        let file = format!("FAULTY_FILE={}", tools.path().join("now").display()).leak();
        let launcher = Vec::from(["env", preload(tools.path(), FAULTY_CLOCK), thread, file]).leak();
        Fault { tools, launcher }
    }

    /// Has the writer fail at a write, and the process exit with 1 within a second of it. Returns the number of the
    /// write, from 0: with PostgreSQL, connections read the clock on the writer's thread too. One of them may fail in its
    /// place and be made again, and the write is done.
    async fn ends(&self, process: &mut Process, mut write: impl AsyncFnMut(i64)) -> i64 {
        let now = self.tools.path().join("now");
        for n in 0..WRITES {
            std::fs::write(&now, "").unwrap();
            write(n).await;
            // Where the writer failed at the write before, and a busy machine took long, the process ends meanwhile.
            eventually(PATIENCE, "something fails", async || !now.exists() || process.has_ended()).await;
            let failed = std::time::Instant::now();
            while failed.elapsed() < SECOND_AND_SLACK {
                if process.has_ended() {
                    assert_eq!(process.exit().await, Some(1), "{}", process.stderr());
                    return n - i64::from(now.exists());
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            assert!(!process.stderr().contains("has ended by a defect"), "{}", process.stderr());
        }
        panic!("it goes on\n{}", process.stderr());
    }
}

/// Sends a request to a server that may have ended already.
async fn sent_if_possible(address: SocketAddr, request: &Request) -> Option<Connection> {
    let mut connection = Connection::try_to(address).await.ok()?;
    let _ = connection.try_send(request.bytes()).await;
    Some(connection)
}

fn says_why(log: &str) {
    assert!(log.contains("a defect at "), "{log}");
    let why = log.lines().find(|line| line.contains("thread that writes to the store has ended by a defect"));
    assert!(why.is_some_and(|why| why.contains("start the server again")), "{log}");
}

async fn a_server_whose_writer_has_ended_exits_with_1_within_a_second_and_says_why(kind: Kind) {
    let fault = Fault::in_thread("store-writer");
    let mut gate = TestGateway::on(kind).key("bot").points("7", 3).launched_by(fault.launcher).start().await;
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    gate.get_points("bot", "7").await.is("5");
    let (address, request) = (gate.address(), gate.request("setPoints", "bot", "memberID=7&amount="));
    let mut connections = Vec::new();
    let write = async |n: i64| {
        let body = format!("memberID=7&amount={}", 6 + n);
        connections.extend(sent_if_possible(address, &request.clone().body(body)).await);
    };
    let n = fault.ends(gate.process(), write).await;
    says_why(&gate.stderr());
    // Whoever waited is told that it is away, or that nobody knows, or not at all.
    if let Some(answer) = connections.last_mut().unwrap().answer_if_any().await {
        assert!(matches!(answer.code(), Some(20..=22)), "{answer:#?}");
    }
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is(&(5 + n).to_string());
}
