//! Clocks that do not agree (contract section 3, `[cluster]`): one of two real nodes is ten minutes ahead of Redis, the other
//! ten minutes behind. All three read their clocks through a library that shifts them.

use std::ops::RangeInclusive;
use std::time::Instant;

use crate::cluster_limits::limited;
use crate::support::*;

/// Shifts the wall clock by as many seconds as a file says.
const SHIFTED_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_REALTIME) {
        char seconds[24] = "";
        int file = open(getenv("CLOCK_AHEAD"), O_RDONLY | O_CLOEXEC);
        if (file < 0 || read(file, seconds, sizeof seconds - 1) <= 0) abort();
        close(file);
        time->tv_sec += atol(seconds);
    }
    return result;
}
int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"#;

const MINUTE: i64 = 60;
const DAY: i64 = 24 * 60 * MINUTE;

struct Clocks {
    folder: tempfile::TempDir,
    preload: &'static str,
}

impl Clocks {
    fn new() -> Clocks {
        let folder = tempfile::tempdir().unwrap();
        let preload = preload(folder.path(), SHIFTED_CLOCK);
        Clocks { folder, preload }
    }

    /// The command that starts a server with this clock, so many seconds ahead of this machine's.
    fn ahead_by(&self, name: &str, seconds: i64) -> [&'static str; 3] {
        let file = self.folder.path().join(name);
        let new = self.folder.path().join("new");
        std::fs::write(&new, seconds.to_string()).unwrap();
        std::fs::rename(&new, &file).unwrap(); // a server that reads meanwhile has either
        ["env", self.preload, format!("CLOCK_AHEAD={}", file.display()).leak()]
    }

    /// Another node beside this one, with clocks ten minutes ahead of Redis's and behind.
    async fn apart(&self, mut here: TestGateway, url: &str, redis: i64) -> [TestGateway; 2] {
        here.world().edit("gateway.toml", "[cluster]", "[cluster]\nnode = \"ahead\"");
        let mut there = here.node(url).await;
        there.world().edit("gateway.toml", "\"ahead\"", "\"behind\"");
        here.restart_through(&self.ahead_by("ahead", redis + 10 * MINUTE)).await;
        there.restart_through(&self.ahead_by("behind", redis - 10 * MINUTE)).await;
        [here, there]
    }
}

/// How many requests two nodes let in until both refuse, and say by Redis's clock for how long. Where Redis answers late,
/// the answer is 21, which counts for neither.
async fn admitted_by_both(gates: &[TestGateway; 2], to_midnight: RangeInclusive<i64>) -> u32 {
    let (mut admitted, mut refused) = (0, 0);
    let begin = Instant::now();
    for gate in gates.iter().cycle() {
        let answer = gate.get_points("bot", "7").await;
        match answer.status {
            200 => (admitted, refused) = (admitted + 1, 0),
            503 => {}
            _ if to_midnight.contains(&answer.is_too_many().cast_signed()) => refused += 1,
            _ => refused = 0,
        }
        if refused == 40 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{admitted} were let in, and refusals say nothing of midnight: {answer:?}");
    }
    admitted
}

#[tokio::test]
async fn guarantee_6_a_day_begins_at_all_nodes_when_it_does_by_redis_clock_and_once_only() {
    let clocks = Clocks::new();
    // Five minutes before a midnight, which has come by the first node's clock.
    let ahead = DAY - unix_now().rem_euclid(DAY) - 5 * MINUTE;
    let redis = Redis::start_through(&clocks.ahead_by("redis", ahead), &[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis.url(), &url)
        .set("limits.tiers.standard.daily", "30")
        .set("cluster.when_away", r#""refuse""#)
        .start()
        .await;
    let gates = clocks.apart(gate, &url, ahead).await;
    // The clock is set back over the midnight, and comes to it again.
    for (minutes, day, to_midnight) in [
        (0, 29..=30, 4 * MINUTE..=5 * MINUTE),
        (6, 29..=30, DAY - 2 * MINUTE..=DAY - MINUTE),
        (0, 0..=0, 4 * MINUTE..=5 * MINUTE),
        (6, 0..=0, DAY - 2 * MINUTE..=DAY - MINUTE),
    ] {
        clocks.ahead_by("redis", ahead + minutes * MINUTE);
        let admitted = admitted_by_both(&gates, to_midnight).await;
        assert!(day.contains(&admitted), "{admitted} were let in, {minutes} minutes later");
    }
}
