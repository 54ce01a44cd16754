//! Tests of opening a PostgreSQL store: several nodes at once on a new database, a schema of a newer version, a
//! database that another program uses too, and for each fault of the server one line that says what to do.

use super::*;

async fn version(url: &str) -> i64 {
    let row = connect(url).await.query_one("SELECT max(version)::bigint FROM refinery_schema_history", &[]).await;
    row.unwrap().get(0)
}

fn failed<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Failed(line) | StoreError::Refused(line) | StoreError::Unreachable(line)) => line,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn several_nodes_may_open_a_new_database_at_once() {
    let url = Postgres::shared().database().await;
    let at = at(&url);
    assert_eq!(PostgresStore::state(&at).await.unwrap(), StoreState::Missing);
    let missing = failed(PostgresStore::open(&at, IfMissing::Refuse).await);
    assert!(missing.starts_with("there is no store at postgres://"), "{missing}");
    assert_eq!(PostgresStore::state(&at).await.unwrap(), StoreState::Missing);
    let open = || PostgresStore::open(&at, IfMissing::Make);
    let (a, b, c) = tokio::join!(open(), open(), open());
    let (a, _, c) = (a.unwrap(), b.unwrap(), c.unwrap());
    a.add_guild(&guild("g"), "A guild").await.unwrap();
    assert_eq!(c.points(&guild("g"), member(7)).await.unwrap(), 0);
    assert_eq!(PostgresStore::state(&at).await.unwrap(), StoreState::Current);
    assert_eq!(version(&url).await, 1);
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_not_changed() {
    let test = TestStore::new().await;
    let other = connect(&test.url).await;
    let newer =
        "INSERT INTO refinery_schema_history SELECT 99, name, applied_on, checksum FROM refinery_schema_history";
    other.batch_execute(newer).await.unwrap();
    let why = failed(PostgresStore::open(&at(&test.url), IfMissing::Make).await);
    assert!(why.contains("newer Guildgate") && why.contains("99"), "{why}");
    assert_eq!(version(&test.url).await, 99);
}

#[tokio::test]
async fn what_is_wrong_with_a_server_is_one_line_with_what_to_do() {
    let url = Postgres::shared().database().await;
    let why = failed(PostgresStore::open(&at(&format!("{url}x")), IfMissing::Make).await);
    assert!(why.contains("does not exist") && why.contains("createdb"), "{why}");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = format!("postgres://me:hunter2@127.0.0.1:{port}/db");
    let why = failed(PostgresStore::open(&at(&nobody), IfMissing::Make).await);
    assert!(why.contains("is the server running") && !why.contains("hunter2"), "{why}");
    connect(&url).await.batch_execute("CREATE ROLE guest LOGIN").await.unwrap();
    let why = failed(PostgresStore::open(&at(&url.replace("guildgate@", "guest@")), IfMissing::Make).await);
    assert!(why.contains("GRANT CREATE"), "{why}");
}

#[tokio::test]
async fn another_programs_tables_in_the_same_database_are_not_changed() {
    let url = Postgres::shared().database().await;
    let other = connect(&url).await;
    other
        .batch_execute("CREATE TABLE public.member (mine text); INSERT INTO public.member VALUES ('kept')")
        .await
        .unwrap();
    let store = PostgresStore::open(&at(&url), IfMissing::Make).await.unwrap();
    store.add_guild(&guild("g"), "A guild").await.unwrap();
    store.set_points(&guild("g"), member(7), 1).await.unwrap();
    let row = other.query_one("SELECT mine FROM public.member", &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "kept");
}
