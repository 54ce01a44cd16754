//! Group commit: what shares a transaction, what waits for another's lock, and what becomes of writes whose callers go away.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::store::writer::Work;

/// Another process that holds the store's lock for writers, until it is dropped.
enum Holder {
    Sqlite(rusqlite::Connection),
    Postgres { _session: tokio_postgres::Client },
}

async fn hold(test: &TestStore) -> Holder {
    match &test.at {
        StoreAt::Sqlite(path) => {
            let conn = rusqlite::Connection::open(path).unwrap();
            conn.execute_batch("BEGIN IMMEDIATE").unwrap();
            Holder::Sqlite(conn)
        }
        StoreAt::Postgres(at) => {
            let session = session(at).await;
            session.batch_execute("BEGIN; LOCK TABLE member IN EXCLUSIVE MODE").await.unwrap();
            Holder::Postgres { _session: session }
        }
    }
}

impl Holder {
    fn release(self) {
        if let Holder::Sqlite(conn) = &self {
            conn.execute_batch("COMMIT").unwrap();
        }
    }
}

pub(crate) async fn many_writes_at_once_are_all_answered_and_durable(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let write = |id: u64| {
        let store = test.store().clone();
        // Two to each member: the later one counts.
        async move {
            let g = guild("g");
            let (first, second) = (store.set_points(&g, member(id), -1), store.set_points(&g, member(id), id as i64));
            let (first, second) = tokio::join!(first, second);
            assert_eq!((first.unwrap(), second.unwrap()), (id.to_string(), id.to_string()));
        }
    };
    let writes: Vec<_> = (0..300).map(|id| tokio::spawn(write(id))).collect();
    for write in writes {
        write.await.unwrap();
    }
    let test = test.reopen().await;
    for id in 0..300 {
        assert_eq!(test.store().points(&guild("g"), member(id)).await.unwrap(), id as i64);
    }
}

pub(crate) async fn a_refused_write_does_not_affect_others_of_its_group(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let (store, g) = (test.store(), guild("g"));
    let held = hold(&test).await;
    let long = Note { id: 1, author: "Mod".into(), text: "x".repeat(1 << 20), number: i64::MAX };
    let none = guild("none");
    let writes = async {
        tokio::join!(
            store.set_points(&g, member(7), 1),
            store.set_points(&none, member(7), 1),
            store.put_note(&WARN, &g, member(8), long),
            store.set_member(&g, member(9), Some("Cy"), None),
            store.write(None, |conn| conn.batch("SELECT * FROM no_such_table")),
        )
    };
    let (writes, ()) = tokio::join!(writes, async {
        tokio::time::sleep(Duration::from_millis(50)).await; // they are queued by then, or not grouped
        held.release();
    });
    assert_eq!(writes.0.unwrap(), "7");
    is_departed(writes.1);
    assert!(refused(writes.2).contains("1 MiB"));
    writes.3.unwrap();
    assert!(matches!(writes.4, Err(StoreError::Failed(_))), "{:?}", writes.4);
    assert_eq!(store.write_fault(), None, "it is that write's alone");
    let members = store.members(&g, None, usize::MAX).await.unwrap();
    assert_eq!(members.iter().map(|m| (m.member.get(), m.points)).collect::<Vec<_>>(), [(7, 1), (9, 0)]);
}

pub(crate) async fn a_store_held_by_another_is_busy_after_a_second_and_nothing_is_written(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let held = hold(&test).await;
    let answer = test.store().set_points(&guild("g"), member(7), 5).await;
    assert!(matches!(answer, Err(StoreError::Busy(_))), "{answer:?}");
    assert_eq!(test.store().write_fault(), None, "another's lock is no fault");
    held.release();
    test.store().set_points(&guild("g"), member(8), 6).await.unwrap();
    assert_eq!(test.store().members(&guild("g"), None, usize::MAX).await.unwrap().len(), 1);
}

pub(crate) async fn a_guild_is_removed_while_others_hold_it_for_seconds_and_add_members(kind: Kind) {
    let test = TestStore::new(kind).await;
    let g = guild("g");
    test.add_guild(&g).await;
    let other = test.open_second().await;
    other.set_points(&g, member(1), 1).await.unwrap();
    let held = hold(&test).await;
    let (removed, ()) = tokio::join!(test.store().remove_guild(&g), async {
        tokio::time::sleep(Duration::from_secs(2)).await; // longer than a short write may take
        held.release();
    });
    assert_eq!(removed.unwrap().members, 1);
    for _ in 0..5 {
        test.add_guild(&g).await;
        other.set_points(&g, member(1), 1).await.unwrap();
        let add = async {
            for id in 2..200 {
                match other.set_points(&g, member(id), 1).await {
                    Ok(_) => {}
                    error => return is_departed(error),
                }
            }
        };
        let (removed, ()) = tokio::join!(test.store().remove_guild(&g), add);
        removed.unwrap();
        is_departed(test.store().points(&g, member(1)).await);
    }
}

pub(crate) async fn a_connection_that_comes_too_late_for_a_read_is_the_next_ones(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let (opener, opened) = (test.store().opener.clone(), Arc::new(AtomicU32::new(0)));
    let count = opened.clone();
    let slow = Opener::new(move |longest| {
        std::thread::sleep(Duration::from_millis(200)); // as through a network that loses the first packets
        count.fetch_add(1, Ordering::SeqCst);
        (opener.open)(longest)
    });
    let workers = Workers::start("slow", 1, &slow).unwrap();
    let read = |conn: &mut dyn Conn| conn.rows("SELECT 1", &[]).map(|rows| rows.len());
    assert!(workers.run(Duration::from_millis(50), read).await.is_err());
    assert_eq!(workers.run(Duration::from_secs(30), read).await.unwrap(), 1);
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

/// A writer that gets no connection, and so begins nothing, before the other end is dropped.
fn hanging_writer(test: &TestStore) -> (std::sync::mpsc::Sender<()>, Writer) {
    let (goes_on, hangs) = std::sync::mpsc::channel();
    let (opener, hangs) = (test.store().opener.clone(), parking_lot::Mutex::new(hangs));
    let hanging = Opener::new(move |longest| {
        let _ = hangs.lock().recv();
        (opener.open)(longest)
    });
    (goes_on, Writer::start(&hanging, None).unwrap())
}

fn points(writer: &Writer, id: u64) -> impl Future<Output = Result<String, StoreError>> {
    writer.queue(Work::Points { guild: guild("g"), member: member(id), amount: 5 })
}

pub(crate) async fn a_write_that_could_not_begin_within_a_second_because_the_store_hung_is_refused_and_never_written(
    kind: Kind,
) {
    let test = TestStore::with_guild(kind).await;
    let (goes_on, writer) = hanging_writer(&test);
    let name = |conn: &mut dyn Conn| conn.batch("UPDATE guild SET name = 'late'").map(|()| ((), None));
    let (first, other, ()) = tokio::join!(points(&writer, 7), writer.run(name), async {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        drop(goes_on);
    });
    assert!(matches!((&first, &other), (Err(StoreError::Busy(_)), Err(StoreError::Busy(_)))), "{first:?} {other:?}");
    assert_eq!(points(&writer, 8).await.unwrap(), "8", "it goes on");
    assert_eq!(test.store().members(&guild("g"), None, usize::MAX).await.unwrap().len(), 1);
    assert_eq!(test.store().guilds().await.unwrap()[0].name, "A guild");
}

pub(crate) async fn a_write_whose_caller_has_gone_before_it_begins_is_not_written(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let (goes_on, writer) = hanging_writer(&test);
    for id in 0..20 {
        let mut write = Box::pin(points(&writer, id));
        assert!(futures_util::poll!(&mut write).is_pending());
    }
    drop(goes_on);
    points(&writer, 99).await.unwrap();
    let members = test.store().members(&guild("g"), None, usize::MAX).await.unwrap();
    assert_eq!(members.iter().map(|member| member.member.get()).collect::<Vec<_>>(), [99]);
}
