//! A pooler between Guildgate and PostgreSQL: one in session mode will do, one in transaction mode is refused by name, and
//! a table of another program is never touched.

use crate::support::postgres::connect;
use crate::support::*;

const TRANSACTION: &str = "pool_mode = transaction\nignore_startup_parameters = options";

fn config(url: &str) -> String {
    format!("[server]\nlisten = [\"127.0.0.1:0\"]\n[origin]\nstore = {url:?}\n[admin]\nlisten = \"\"\n")
}

/// The tables of a database, each with its schema.
async fn tables(url: &str) -> Vec<String> {
    let sql = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')";
    connect(url).await.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_pooler_in_session_mode_will_do_and_touches_no_table_of_others_and_one_in_transaction_mode_is_refused() {
    let server = Postgres::shared();
    for mode in ["pool_mode = session\nignore_startup_parameters = options", "pool_mode = session"] {
        let direct = server.database().await;
        let pooler = PgBouncer::before(server.port(), mode).await;
        let others = connect(&direct).await;
        let sql =
            "CREATE TABLE public.guild (id text, name text); INSERT INTO public.guild VALUES ('theirs', 'Their Guild')";
        others.batch_execute(sql).await.unwrap();
        let world = World::new(&config(&pooler.url(&direct)));
        world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done().names(&["made a new store"]);
        let ran = world.run(&["guild", "add", "82", "--name", "Day Watch"]).done();
        assert!(!ran.stderr.contains("made a new store"), "{ran:?}");
        let ours = tables(&direct).await.into_iter().filter(|table| table != "public.guild").collect::<Vec<_>>();
        assert!(ours.len() > 4 && ours.iter().all(|table| table.starts_with("guildgate.")), "{ours:?}");
        let theirs = others.query("SELECT id, name FROM public.guild", &[]).await.unwrap();
        assert_eq!((theirs.len(), theirs[0].get::<_, &str>(0)), (1, "theirs"));
        let gate = TestGateway::builder().store(&pooler.url(&direct)).key("bot").points("7", 3).start().await;
        gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
        gate.get_points("bot", "7").await.is("5");
    }
    let direct = server.database().await;
    let pooler = PgBouncer::before(server.port(), TRANSACTION).await;
    let world = World::new(&config(&pooler.url(&direct)));
    let said = ["a pooler that shares connections between transactions", "pool_mode = session"];
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).failed(1).names(&said);
    let mut serve = world.serve(&[]);
    assert_eq!(serve.exit().await, Some(1));
    assert!(said.iter().all(|said| serve.stderr().contains(said)), "{}", serve.stderr());
    assert!(tables(&direct).await.is_empty());
}
