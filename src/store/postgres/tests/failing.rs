//! Tests of a PostgreSQL server that fails or is short of connections: calls are refused within their deadlines, others
//! go on, and a change that is refused or breaks off leaves nothing behind. Tests that harm their server start one.

use super::*;

#[tokio::test]
async fn a_pool_that_is_used_up_is_busy_within_the_deadline_and_writes_go_on() {
    let test = TestStore::with(Settings { connections: 2, ..Settings::default() }).await;
    test.add_guild(&guild("g")).await;
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    let (one, two) = (test.store.pool.get(until).await.unwrap(), test.store.pool.get(until).await.unwrap());
    let start = std::time::Instant::now();
    let answer = test.store.points(&guild("g"), member(7)).await;
    assert!(matches!(&answer, Err(StoreError::Busy(line)) if line.contains("all 2 connections")), "{answer:?}");
    assert!(start.elapsed() >= READ, "it did not wait for a free connection");
    test.store.set_points(&guild("g"), member(7), 5).await.unwrap();
    drop(one);
    assert_eq!(test.store.points(&guild("g"), member(7)).await.unwrap(), 5);
    drop(two);
}

#[tokio::test]
async fn where_the_server_has_too_few_slots_the_pool_makes_room_for_the_dedicated_connections() {
    let server =
        Postgres::start(&["max_connections = 10", "superuser_reserved_connections = 0", "max_wal_senders = 0"]);
    let url = server.database().await;
    let store = PostgresStore::open(&at(&url), IfMissing::Make).await.unwrap();
    store.add_guild(&guild("g"), "A guild").await.unwrap();
    let (g, amount) = (guild("g"), std::cell::Cell::new(0));
    // Readers take every slot before the first write, and again after all connections were cut.
    let read_at_once = async || {
        let all = futures_util::future::join_all((0..100).map(|_| store.points(&g, member(7)))).await;
        all.into_iter().for_each(|read| assert_eq!(read.unwrap(), amount.get()));
    };
    for round in 1..4 {
        read_at_once().await;
        store.set_points(&g, member(7), round).await.unwrap();
        amount.set(round);
        assert_eq!(store.guilds().await.unwrap().len(), 1);
        store.changes().await.unwrap();
        read_at_once().await;
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'guildgate'";
        store.pool.read(cut, &[]).await.unwrap_err();
        let feed = async { while store.changes().await.is_err() {} };
        tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(read_at_once(), feed) }).await.unwrap();
    }
}

#[tokio::test]
async fn a_list_that_waits_for_a_server_that_was_left_comes_from_the_next_one() {
    let (one, two) = (Postgres::start(&[]), Postgres::start(&[]));
    let (url, elsewhere) = (one.database().await, two.database().await);
    let database = |url: &str| url.rsplit_once('/').unwrap().1.to_owned();
    connect(&elsewhere).await.batch_execute(&format!("CREATE DATABASE {}", database(&url))).await.unwrap();
    let next = elsewhere.replace(&database(&elsewhere), &database(&url));
    PostgresStore::open(&at(&next), IfMissing::Make).await.unwrap().add_guild(&guild("g"), "A guild").await.unwrap();
    let hosts = format!(":{},127.0.0.1:{}/", one.port(), two.port());
    let both = format!("{}?connect_timeout=1", url.replace(&format!(":{}/", one.port()), &hosts));
    let store = PostgresStore::open(&at(&both), IfMissing::Make).await.unwrap();
    assert!(store.guilds().await.unwrap().is_empty());
    let _frozen = one.freeze();
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    let (listed, connected) = tokio::join!(store.guilds(), store.pool.connector().connect(until, None));
    connected.unwrap();
    assert_eq!(listed.unwrap().len(), 1);
}

#[tokio::test]
async fn idle_connections_that_were_cut_cost_no_answer() {
    let test = TestStore::new().await;
    test.add_guild(&guild("g")).await;
    test.store.set_points(&guild("g"), member(7), 5).await.unwrap();
    let other = connect(&test.url).await;
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
        WHERE application_name = 'guildgate' AND datname = current_database()";
    for round in 6..12 {
        let cut: i64 = other.query_one(cut, &[]).await.unwrap().get(0);
        assert!(cut > 0, "{round}");
        assert_eq!(test.store.set_points(&guild("g"), member(7), round).await.unwrap(), "7");
        assert_eq!(test.store.points(&guild("g"), member(7)).await.unwrap(), round);
    }
}

#[tokio::test]
async fn a_change_refused_midway_is_rolled_back_and_returns_its_connection() {
    let test = TestStore::with(Settings { connections: 1, ..Settings::default() }).await;
    test.add_guild(&guild("g")).await;
    let highest =
        "INSERT INTO member VALUES (1, 1, 'Ada', 0); INSERT INTO warn VALUES (1, 1, 9223372036854775807, '', '', 0)";
    connect(&test.url).await.batch_execute(highest).await.unwrap();
    // The member is added first, then there is no free id for the warn.
    suite::refused(test.store.add_note(&guild("g"), member(2), suite::warn_for("spam", 0)).await);
    assert_eq!(test.store.members(&guild("g"), None, usize::MAX).await.unwrap().len(), 1);
    let session = async || -> i32 {
        let rows = test.store.pool.read("SELECT pg_backend_pid()", &[]).await.unwrap();
        column(&rows[0], 0).unwrap()
    };
    let before = session().await;
    suite::refused(test.store.add_guild(&guild("g"), "Again").await);
    assert_eq!(session().await, before, "a refusal does not cost the connection");
}

#[tokio::test]
async fn days_long_past_are_removed_a_thousand_at_a_time_and_yesterday_is_not() {
    let test = TestStore::new().await;
    let other = connect(&test.url).await;
    let rows = async || -> i64 { other.query_one("SELECT count(*) FROM daily", &[]).await.unwrap().get(0) };
    let many = (0..1500).map(|n| (format!("k{n}").into(), 1)).collect();
    test.store.add_daily(10, many).await.unwrap();
    test.store.add_daily(11, vec![("today".into(), 1)]).await.unwrap();
    assert_eq!(rows().await, 1501);
    test.store.add_daily(12, vec![("k3".into(), 1)]).await.unwrap();
    assert_eq!(rows().await, 501, "1,499 of day 10 were there");
    test.store.add_daily(12, Vec::new()).await.unwrap();
    assert_eq!(rows().await, 2);
}
