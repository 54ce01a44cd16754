//! Tests of group commit in SQLite: writes that wait together share one commit and one sync, one that is refused harms
//! no other, and nothing is acknowledged before it is on the disk, also with a full disk, a failing disk and kill -9.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinSet;

use super::*;

/// Long enough that a test ends by what it is about, and not by this.
const PATIENT: Settings = Settings { busy_wait: Duration::from_secs(60), feed_kept: 1000, if_missing: IfMissing::Make };
const IMPATIENT: Settings =
    Settings { busy_wait: Duration::from_millis(30), feed_kept: 1000, if_missing: IfMissing::Make };

fn commits(test: &TestStore) -> i64 {
    test.raw().query_row("SELECT max(seq) FROM change", [], |row| row.get(0)).unwrap()
}

/// Keeps the writer at work while `queue` queues, so that all of it becomes one group; `queue` is
/// handed what lets the writer go on.
async fn grouped<T>(store: &SqliteStore, queue: impl AsyncFnOnce(std::sync::mpsc::Sender<()>) -> T) -> T {
    let (entered, at_work) = tokio::sync::oneshot::channel();
    let (open, opened) = std::sync::mpsc::channel();
    let wait = move |_: &Connection| {
        entered.send(()).unwrap();
        opened.recv().unwrap();
        Ok(((), Some(Change::Directory)))
    };
    let queued = async {
        at_work.await.unwrap();
        queue(open).await
    };
    let (gate, answers) = tokio::join!(store.writer.run(Writes::Once, wait), queued);
    gate.unwrap();
    answers
}

#[tokio::test]
async fn many_writes_at_once_share_a_commit_and_are_all_answered_and_durable() {
    let test = TestStore::with(PATIENT);
    test.add_guild(&guild("g")).await;
    let before = commits(&test);
    let TestStore { store, folder } = test;
    let store = std::sync::Arc::new(store);
    let begun = std::sync::Arc::new(AtomicUsize::new(0));
    let answers = grouped(&store, async |open| {
        let mut callers = JoinSet::new();
        for id in 0..300 {
            let (store, begun) = (store.clone(), begun.clone());
            callers.spawn(async move {
                begun.fetch_add(1, Ordering::SeqCst);
                store.set_points(&guild("g"), member(id), id as i64 + 1).await
            });
        }
        // On this one thread a caller that has begun has queued its write before another runs.
        while begun.load(Ordering::SeqCst) < 300 {
            tokio::task::yield_now().await;
        }
        open.send(()).unwrap();
        callers.join_all().await
    })
    .await;
    let mut names: Vec<u64> = answers.into_iter().map(|name| name.unwrap().parse().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, (0..300).collect::<Vec<_>>());
    drop(store);
    let test = TestStore { store: SqliteStore::open(folder.path().join("store.db")).unwrap(), folder };
    assert_eq!(commits(&test) - before, 2, "the gate's, and one for all");
    for id in 0..300 {
        assert_eq!(test.store.points(&guild("g"), member(id)).await.unwrap(), id as i64 + 1);
    }
}

#[tokio::test]
async fn a_refused_write_does_not_affect_others_of_its_group() {
    let test = TestStore::with(PATIENT);
    test.add_guild(&guild("g")).await;
    let (here, nowhere) = (guild("g"), guild("nowhere"));
    let (one, two, three, four, ()) = grouped(&test.store, async |open| {
        tokio::join!(
            test.store.set_points(&here, member(1), 1),
            test.store.set_points(&nowhere, member(2), 2),
            test.store.add_note(&nowhere, member(3), suite::warn_for("spam", 0)),
            test.store.set_points(&here, member(4), 4),
            async { open.send(()).unwrap() },
        )
    })
    .await;
    one.unwrap();
    crate::store::suite::is_departed(two);
    refused(three);
    four.unwrap();
    assert_eq!(test.store.points(&here, member(1)).await.unwrap(), 1);
    assert_eq!(test.store.points(&here, member(4)).await.unwrap(), 4);
}

#[tokio::test]
async fn a_job_that_fails_midway_is_rolled_back() {
    let test = TestStore::new();
    test.add_guild(&guild("g")).await;
    let highest =
        "INSERT INTO member VALUES (1, 1, 'Ada', 0); INSERT INTO warn VALUES (1, 1, 9223372036854775807, '', '', 0)";
    test.raw().execute_batch(highest).unwrap();
    // The member is made first, then no id is left for the warn.
    refused(test.store.add_note(&guild("g"), member(2), suite::warn_for("spam", 0)).await);
    assert_eq!(test.store.members(&guild("g"), None, usize::MAX).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_store_held_by_another_is_busy_after_the_wait_and_nothing_is_written() {
    let test = TestStore::with(PATIENT);
    test.add_guild(&guild("g")).await;
    let hasty = SqliteStore::open_with(test.path(), IMPATIENT).unwrap();
    let other = test.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let answer = hasty.set_points(&guild("g"), member(7), 5).await;
    assert!(matches!(answer, Err(StoreError::Busy(_))), "{answer:?}");
    // Readers do not wait for it.
    assert_eq!(hasty.points(&guild("g"), member(7)).await.unwrap(), 0);
    other.execute_batch("COMMIT").unwrap();
    drop(hasty);
    test.store.set_points(&guild("g"), member(8), 6).await.unwrap();
    assert_eq!(test.store.points(&guild("g"), member(7)).await.unwrap(), 0);
    assert_eq!(test.store.points(&guild("g"), member(8)).await.unwrap(), 6);
}

#[tokio::test]
async fn of_writes_that_wait_together_those_that_are_cancelled_are_left_out_and_the_others_done() {
    let test = TestStore::with(PATIENT);
    test.add_guild(&guild("g")).await;
    let (store, here) = (&test.store, guild("g"));
    let (cancelled, done) = (Cancellation::default(), Cancellation::default());
    let (one, two, ()) = grouped(store, async |open| {
        tokio::join!(
            store.set_points_unless_cancelled(&here, member(1), 1, &cancelled),
            store.set_points_unless_cancelled(&here, member(2), 2, &done),
            async {
                assert_eq!(cancelled.cancel_unless(|| Err("02")), Err("02"));
                open.send(()).unwrap();
            },
        )
    })
    .await;
    assert!(matches!(one, Err(StoreError::Busy(_))), "{one:?}");
    assert_eq!(two.unwrap(), "2");
    assert_eq!(store.members(&here, None, usize::MAX).await.unwrap().len(), 1, "a cancelled write was done");
    assert_eq!(done.cancel_unless(|| Err("02")), Ok(()), "what was done was cancelled");
}

#[tokio::test]
async fn where_the_queue_is_full_a_write_is_busy_at_once_and_those_queued_are_done() {
    let test = TestStore::with(PATIENT);
    test.add_guild(&guild("g")).await;
    let here = guild("g");
    let refused_at = grouped(&test.store, async |open| {
        let mut queued = 0;
        let fault = loop {
            // Polled once, so queued or refused; then given up.
            tokio::select! {
                biased;
                answer = test.store.set_points(&here, member(queued), 1) => break answer.unwrap_err(),
                () = async {} => queued += 1,
            }
        };
        open.send(()).unwrap();
        assert!(matches!(fault, StoreError::Busy(_)), "{fault:?}");
        queued
    })
    .await;
    let TestStore { store, folder } = test;
    drop(store);
    let store = SqliteStore::open(folder.path().join("store.db")).unwrap();
    assert_eq!(store.members(&here, None, usize::MAX).await.unwrap().len() as u64, refused_at);
}

#[tokio::test]
async fn a_caller_who_goes_away_harms_nothing() {
    let test = TestStore::with(PATIENT);
    test.add_guild(&guild("g")).await;
    let other = test.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let here = guild("g");
    // The first branch queues its write, then is dropped.
    tokio::select! {
        biased;
        _ = test.store.set_points(&here, member(7), 5) => panic!("the lock is held"),
        () = async {} => {}
    }
    other.execute_batch("COMMIT").unwrap();
    test.store.set_points(&here, member(8), 6).await.unwrap();
    assert_eq!(test.store.points(&here, member(7)).await.unwrap(), 5);
}

#[tokio::test]
async fn after_a_full_disk_the_writes_fail_and_with_room_they_go_on() {
    let test = TestStore::new();
    test.add_guild(&guild("g")).await;
    let no_room = |conn: &Connection| {
        let pages: i64 = conn.pragma_query_value(None, "page_count", |row| row.get(0))?;
        conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
        Ok(((), Some(Change::Directory)))
    };
    test.store.writer.run(Writes::Once, no_room).await.unwrap();
    let mut acknowledged = 0;
    let fault = loop {
        match test.store.set_points(&guild("g"), member(acknowledged), 9).await {
            Ok(_) => acknowledged += 1,
            Err(fault) => break fault,
        }
        assert!(acknowledged < 10_000, "the disk never filled");
    };
    assert!(matches!(&fault, StoreError::Failed(line) if line.contains("is full")), "{fault:?}");
    assert_eq!(test.store.points(&guild("g"), member(acknowledged)).await.unwrap(), 0);
    // The limit ended with the connection, which is opened again after a failure.
    test.store.set_points(&guild("g"), member(acknowledged), 9).await.unwrap();
    assert_eq!(test.store.members(&guild("g"), None, usize::MAX).await.unwrap().len() as u64, acknowledged + 1);
}

#[tokio::test]
async fn dropping_the_store_finishes_what_is_queued() {
    let TestStore { store, folder } = TestStore::with(PATIENT);
    store.add_guild(&guild("g"), "A guild").await.unwrap();
    let path = folder.path().join("store.db");
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let here = guild("g");
    tokio::select! {
        biased;
        _ = store.set_points(&here, member(7), 5) => panic!("the lock is held"),
        () = async {} => {}
    }
    other.execute_batch("COMMIT").unwrap();
    drop(store);
    assert_eq!(SqliteStore::open(&path).unwrap().points(&here, member(7)).await.unwrap(), 5);
}

#[tokio::test]
async fn a_commit_is_synced_before_it_is_acknowledged_also_after_a_failure() {
    let test = TestStore::new();
    let pragmas = |conn: &Connection| {
        let (mut sync, mut mode) = (0i64, String::new());
        conn.pragma_query(None, "synchronous", |row| row.get(0).map(|found| sync = found))?;
        conn.pragma_query(None, "journal_mode", |row| row.get(0).map(|found| mode = found))?;
        Ok(((sync, mode), Some(Change::Directory)))
    };
    let full = (2, "wal".to_owned());
    assert_eq!(test.store.writer.run(Writes::Once, pragmas).await.unwrap(), full);
    let fail = |_: &Connection| -> Result<((), Option<Change>), Failure> {
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
        Err(Failure::Sqlite(rusqlite::Error::SqliteFailure(full, None)))
    };
    let answer = test.store.writer.run(Writes::Once, fail).await;
    assert!(matches!(answer, Err(StoreError::Failed(_))), "{answer:?}");
    assert_eq!(test.store.writer.run(Writes::Once, pragmas).await.unwrap(), full);
}

#[tokio::test]
async fn a_failing_disk_fails_the_whole_group() {
    let test = TestStore::with(PATIENT);
    test.add_guild(&guild("g")).await;
    let fail = |_: &Connection| -> Result<((), Option<Change>), Failure> {
        let failure = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR);
        Err(Failure::Sqlite(rusqlite::Error::SqliteFailure(failure, None)))
    };
    let here = guild("g");
    let (before, failed, after, ()) = grouped(&test.store, async |open| {
        tokio::join!(
            test.store.set_points(&here, member(1), 1),
            test.store.writer.run(Writes::Once, fail),
            test.store.set_points(&here, member(2), 2),
            async { open.send(()).unwrap() },
        )
    })
    .await;
    for answer in [before.map(drop), failed, after.map(drop)] {
        assert!(matches!(answer, Err(StoreError::Failed(_))), "{answer:?}");
    }
    assert_eq!(test.store.members(&here, None, usize::MAX).await.unwrap(), []);
    test.store.set_points(&here, member(1), 1).await.unwrap();
}

/// Names the store to the child process of the test below.
const CHILD: &str = "GUILDGATE_TEST_STORE_TO_WRITE_UNTIL_KILLED";

#[tokio::test]
async fn what_was_acknowledged_survives_kill_9() {
    use std::io::{BufRead, BufReader, Write};
    if let Some(path) = std::env::var_os(CHILD) {
        let store = SqliteStore::open(path).unwrap();
        for points in 1.. {
            store.set_points(&guild("g"), member(points as u64 % 10), points).await.unwrap();
            // Not through the test harness, which would capture it.
            writeln!(std::io::stderr(), "acknowledged {points}").unwrap();
        }
    }
    let test = TestStore::new();
    test.add_guild(&guild("g")).await;
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "store::sqlite::tests::writing::what_was_acknowledged_survives_kill_9"])
        .env(CHILD, test.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut last = 0;
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        if let Some(points) = line.unwrap().strip_prefix("acknowledged ") {
            last = points.parse::<i64>().unwrap();
            if last == 40 {
                child.kill().unwrap();
            }
        }
    }
    child.wait().unwrap();
    assert!(last >= 40, "the child ended at {last}");
    for points in last - 9..=last {
        let found = test.store.points(&guild("g"), member(points as u64 % 10)).await.unwrap();
        // One more may have been written and not acknowledged.
        assert!(found == points || found == points + 10 && points + 10 == last + 1, "{points}: {found}");
    }
}

#[tokio::test]
async fn a_writer_ended_by_a_defect_is_reported_and_no_caller_waits_for_it() {
    let test = TestStore::new();
    let ended = test.store.writer_ended();
    let defect =
        test.store.writer.run(Writes::Once, |_| -> Result<((), Option<Change>), Failure> { panic!("planted") });
    let refused = defect.await.unwrap_err();
    assert!(refused.to_string().contains("writer has stopped"), "{refused}");
    tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap();
    assert!(test.store.set_points(&guild("g"), member(7), 1).await.is_err());
}
