//! A pooler between Guildgate and PostgreSQL (docs/storage.md, "Behind a pooler"): one that drops what is asked for with a
//! connection, or that is in transaction mode, is refused by name, and a table of another program is never touched.

use crate::support::postgres::connect;
use crate::support::*;

const SESSION: &str = "pool_mode = session\nignore_startup_parameters = options";
const TRANSACTION: &str = "pool_mode = transaction\nignore_startup_parameters = options";

fn config(url: &str) -> String {
    format!("[server]\nlisten = [\"127.0.0.1:0\"]\n[origin]\nstore = {url:?}\n[admin]\nlisten = \"\"\n")
}

/// What the page has an admin of the database enter, for the database of this URL.
fn role_settings(url: &str) -> String {
    let (_, section) = include_str!("../../docs/storage.md").split_once("\n## Behind a pooler\n").unwrap();
    let (_, block) = section.split_once("\n```sql\n").unwrap();
    let database = url.rsplit_once('/').unwrap().1;
    block.split_once("```").unwrap().0.replace("IN DATABASE guildgate", &format!("IN DATABASE {database}"))
}

/// The tables of a database, each with its schema.
async fn tables(url: &str) -> Vec<String> {
    let sql = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')";
    connect(url).await.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_pooler_that_drops_the_settings_is_refused_and_no_table_of_others_is_touched() {
    let server = Postgres::shared();
    let direct = server.database().await;
    let pooler = PgBouncer::before(server.port(), SESSION).await;
    let others = connect(&direct).await;
    let sql =
        "CREATE TABLE public.guild (id text, name text); INSERT INTO public.guild VALUES ('theirs', 'Their Guild')";
    others.batch_execute(sql).await.unwrap();
    let world = World::new(&config(&pooler.url(&direct)));
    let said = [
        "search_path is \"$user\", public instead of guildgate",
        "statement_timeout is 0 instead of 4000",
        "lock_timeout is 0 instead of 2000",
        "idle_in_transaction_session_timeout is 0 instead of 2000",
        "ignore_startup_parameters = options",
        "Name PostgreSQL's own host and port in origin.store",
    ];
    for command in [&["guild", "add", GUILD, "--name", "Night Watch"][..], &["guild", "list"]] {
        let ran = world.run(command).failed(1).names(&said);
        assert!(!ran.stderr.contains("made a new store"), "{ran:?}");
    }
    world.import(&format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}")).failed(1).names(&said);
    let mut serve = world.serve(&[]);
    assert_eq!(serve.exit().await, Some(1));
    assert!(said.iter().all(|said| serve.stderr().contains(said)), "{}", serve.stderr());
    assert_eq!(tables(&direct).await, ["public.guild"]);
    let theirs = others.query("SELECT id, name FROM public.guild", &[]).await.unwrap();
    assert_eq!((theirs.len(), theirs[0].get::<_, &str>(0)), (1, "theirs"));
}

#[tokio::test]
async fn a_pooler_in_session_mode_will_do_where_the_user_has_the_settings() {
    let server = Postgres::shared();
    let direct = server.database().await;
    connect(&direct).await.batch_execute(&role_settings(&direct)).await.unwrap();
    let pooler = PgBouncer::before(server.port(), SESSION).await;
    let gate = TestGateway::builder().store(&pooler.url(&direct)).key("bot").points("7", 3).start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    gate.get_points("bot", "7").await.is("5");
    assert!(tables(&direct).await.iter().all(|table| table.starts_with("guildgate.")));
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_refused_by_name_whatever_settings_the_user_has() {
    let server = Postgres::shared();
    let direct = server.database().await;
    let world = World::new("");
    for settings in [String::new(), role_settings(&direct)] {
        connect(&direct).await.batch_execute(&settings).await.unwrap();
        // One that has the settings from its beginning.
        let pooler = PgBouncer::before(server.port(), TRANSACTION).await;
        world.write("gateway.toml", config(&pooler.url(&direct)));
        let said = ["is in transaction mode", "pool_mode = session"];
        world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).failed(1).names(&said);
        let mut serve = world.serve(&[]);
        assert_eq!(serve.exit().await, Some(1));
        assert!(said.iter().all(|said| serve.stderr().contains(said)), "{}", serve.stderr());
    }
    assert!(tables(&direct).await.is_empty());
}

#[tokio::test]
async fn a_pooler_that_refuses_the_settings_is_named() {
    let server = Postgres::shared();
    let direct = server.database().await;
    let pooler = PgBouncer::before(server.port(), "pool_mode = session").await;
    let world = World::new(&config(&pooler.url(&direct)));
    let ran = world
        .run(&["guild", "list"])
        .failed(1)
        .names(&["unsupported startup parameter: options", "a pooler in between"]);
    assert!(!ran.stderr.contains("is the server running"), "{ran:?}");
}
