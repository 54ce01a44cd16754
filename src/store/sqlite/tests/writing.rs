use tokio::task::JoinSet;

use super::*;

/// Long enough that a test ends by what it is about, and not by this.
const PATIENT: Settings = Settings { busy_wait: Duration::from_secs(60), feed_kept: 1000 };
const IMPATIENT: Settings = Settings { busy_wait: Duration::from_millis(30), feed_kept: 1000 };

fn commits(world: &World) -> i64 {
    world.raw().query_row("SELECT max(seq) FROM change", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn many_writes_at_once_share_a_commit_and_are_all_answered_and_durable() {
    let world = World::with(PATIENT);
    world.store.add(&guild("g")).await;
    let before = commits(&world);
    let store = std::sync::Arc::new(world.store);
    let world = World { store: SqliteStore::open(world.folder.path().join("store.db")).unwrap(), folder: world.folder };
    // While another holds the lock they queue up.
    let other = world.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut callers = JoinSet::new();
    for id in 0..300 {
        let store = store.clone();
        callers.spawn(async move { store.set_points(&guild("g"), member(id), id as i64 + 1).await });
    }
    tokio::task::yield_now().await;
    other.execute_batch("COMMIT").unwrap();
    let mut names: Vec<u64> = callers.join_all().await.into_iter().map(|name| name.unwrap().parse().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, (0..300).collect::<Vec<_>>());
    // The first try may have been under way before the rest was queued.
    assert!(commits(&world) - before <= 2);
    drop(store);
    for id in 0..300 {
        assert_eq!(world.store.points(&guild("g"), member(id)).await.unwrap(), id as i64 + 1);
    }
}

#[tokio::test]
async fn a_write_that_is_refused_harms_none_beside_it() {
    let world = World::with(PATIENT);
    world.store.add(&guild("g")).await;
    let other = world.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (here, nowhere) = (guild("g"), guild("nowhere"));
    let (one, two, three, four, ()) = tokio::join!(
        world.store.set_points(&here, member(1), 1),
        world.store.set_points(&nowhere, member(2), 2),
        world.store.add_warn(&nowhere, member(3), "Mod", "spam", 0),
        world.store.set_points(&here, member(4), 4),
        async { other.execute_batch("COMMIT").unwrap() },
    );
    one.unwrap();
    crate::store::suite::gone(two);
    refused(three);
    four.unwrap();
    assert_eq!(world.store.points(&here, member(1)).await.unwrap(), 1);
    assert_eq!(world.store.points(&here, member(4)).await.unwrap(), 4);
}

#[tokio::test]
async fn a_job_that_fails_midway_leaves_nothing_of_itself() {
    let world = World::new();
    world.store.add(&guild("g")).await;
    let highest =
        "INSERT INTO member VALUES (1, 1, 'Ada', 0); INSERT INTO warn VALUES (1, 1, 9223372036854775807, '', '', 0)";
    world.raw().execute_batch(highest).unwrap();
    // The member is made first, then no id is left for the warn.
    refused(world.store.add_warn(&guild("g"), member(2), "Mod", "spam", 0).await);
    assert_eq!(world.store.members(&guild("g")).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_store_held_by_another_is_busy_after_the_wait_and_nothing_is_written() {
    let world = World::with(IMPATIENT);
    world.store.add(&guild("g")).await;
    let other = world.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let answer = world.store.set_points(&guild("g"), member(7), 5).await;
    assert!(matches!(answer, Err(StoreError::Busy(_))), "{answer:?}");
    // Readers do not wait for the one who holds it.
    assert_eq!(world.store.points(&guild("g"), member(7)).await.unwrap(), 0);
    other.execute_batch("COMMIT").unwrap();
    world.store.set_points(&guild("g"), member(8), 6).await.unwrap();
    assert_eq!(world.store.points(&guild("g"), member(7)).await.unwrap(), 0);
    assert_eq!(world.store.points(&guild("g"), member(8)).await.unwrap(), 6);
}

#[tokio::test]
async fn a_caller_who_goes_away_harms_nothing() {
    let world = World::with(PATIENT);
    world.store.add(&guild("g")).await;
    let other = world.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let here = guild("g");
    // The first branch queues its write, then is dropped.
    tokio::select! {
        biased;
        _ = world.store.set_points(&here, member(7), 5) => panic!("the lock is held"),
        () = async {} => {}
    }
    other.execute_batch("COMMIT").unwrap();
    world.store.set_points(&here, member(8), 6).await.unwrap();
    assert_eq!(world.store.points(&here, member(7)).await.unwrap(), 5);
}

#[tokio::test]
async fn after_a_full_disk_the_writes_fail_and_with_room_they_go_on() {
    let world = World::new();
    world.store.add(&guild("g")).await;
    let no_room = |conn: &Connection| {
        let pages: i64 = conn.pragma_query_value(None, "page_count", |row| row.get(0))?;
        conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
        Ok(((), Change::Directory))
    };
    world.store.writer.run(Writes::Once, no_room).await.unwrap();
    let mut acknowledged = 0;
    let fault = loop {
        match world.store.set_points(&guild("g"), member(acknowledged), 9).await {
            Ok(_) => acknowledged += 1,
            Err(fault) => break fault,
        }
        assert!(acknowledged < 10_000, "the disk never filled");
    };
    assert!(matches!(&fault, StoreError::Failed(line) if line.contains("is full")), "{fault:?}");
    assert_eq!(world.store.points(&guild("g"), member(acknowledged)).await.unwrap(), 0);
    // The limit went away with the connection, which is opened anew after a failure.
    world.store.set_points(&guild("g"), member(acknowledged), 9).await.unwrap();
    assert_eq!(world.store.members(&guild("g")).await.unwrap().len() as u64, acknowledged + 1);
}

#[tokio::test]
async fn dropping_the_store_finishes_what_is_queued() {
    let World { store, folder } = World::with(PATIENT);
    store.add(&guild("g")).await;
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
