//! Contract section 5, guarantees 1, 2 and 7, where several nodes share one PostgreSQL and nothing else.

use crate::support::*;

const DEPARTED: &str = "03 | Error while retrieving guild using this API key. Is Guildgate still on guild?";

/// Two nodes on one database, in folders of their own.
async fn two_nodes() -> (TestGateway, TestGateway) {
    let url = Postgres::shared().database().await;
    let here = TestGateway::on(Kind::Postgres).store(&url).key("bot").key("other").points("7", 3).start().await;
    let there = here.node(&url).await;
    (here, there)
}

#[tokio::test]
async fn guarantee_2_what_one_node_writes_shows_on_the_other_within_a_second() {
    let (here, there) = two_nodes().await;
    for round in 0..5 {
        for (writer, reader, amount) in [(&here, &there, 100 + round), (&there, &here, 200 + round)] {
            reader.get_points("bot", "7").await;
            writer.set_points("bot", "7", amount).await.is(&format!("Successfully set 'Ada' points to '{amount}'"));
            writer.get_points("bot", "7").await.is(&amount.to_string());
            let follows = async || reader.get_points("bot", "7").await.body == amount.to_string();
            eventually(SECOND_AND_SLACK, "the other node follows", follows).await;
        }
    }
    there.get_points("bot", "7").await;
    there.get_points("bot", "7").await.is_hit();
}

#[tokio::test]
async fn guarantee_7_a_key_revoked_at_one_node_stops_at_the_other_within_a_second() {
    let (here, there) = two_nodes().await;
    there.get_points("bot", "7").await.is("3");
    there.get_points("bot", "7").await.is("3").is_hit();
    here.run(&["key", "revoke", &here.key_id("bot")]).done();
    let stopped = async || there.get_points("bot", "7").await.code() == Some(2);
    eventually(SECOND_AND_SLACK, "02", stopped).await;
    there.set_points("bot", "7", 4).await.is_refused(401, INCORRECT_KEY);
    there.get_points("other", "7").await.is("3");
}

/// Waits until a statement with these words in it waits for a lock.
pub async fn has_to_wait(client: &tokio_postgres::Client, words: &str) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
        AND query LIKE '%' || $1 || '%'";
    let waits = async || client.query_one(sql, &[&words]).await.unwrap().get::<_, i64>(0) == 1;
    eventually(PATIENCE, &format!("{words} waits"), waits).await;
}

#[tokio::test]
async fn guarantee_7_while_the_list_of_keys_does_not_come_a_revoked_key_is_21_and_so_is_every_other() {
    let url = Postgres::shared().database().await;
    let gate = TestGateway::on(Kind::Postgres).store(&url).key("bot").key("other").points("7", 3).start().await;
    let stranger = Request::post("/getPoints", "memberID=7").key("nobody's");
    for key in ["bot", "other", "bot", "other"] {
        gate.get_points(key, "7").await.is("3");
    }
    gate.send(&stranger).await.is_refused(401, INCORRECT_KEY);
    let id = gate.key_id("bot");
    let [first, second, watch] = [(); 3].map(|()| postgres::connect(&url));
    let (first, second, watch) = (first.await, second.await, watch.await);
    // The revocation waits for the first, and the second for the revocation: from its commit on, nobody reads a key.
    first.batch_execute("BEGIN; LOCK TABLE key IN SHARE MODE").await.unwrap();
    let mut revoke = Process::start(&mut gate.world().command(&["key", "revoke", &id]));
    has_to_wait(&watch, "DELETE FROM key").await;
    let lock = tokio::spawn(async move {
        second.batch_execute("BEGIN; LOCK TABLE key IN ACCESS EXCLUSIVE MODE").await.unwrap();
        second
    });
    has_to_wait(&watch, "ACCESS EXCLUSIVE MODE").await;
    first.batch_execute("COMMIT").await.unwrap();
    let second = lock.await.unwrap();
    assert_eq!(revoke.exit().await, Some(0), "{}", revoke.stderr());

    eventually(SECOND_AND_SLACK, "21", async || gate.get_points("bot", "7").await.code() == Some(21)).await;
    for _ in 0..20 {
        gate.get_points("bot", "7").await.is_unavailable();
        gate.set_points("bot", "7", 9).await.is_unavailable();
        gate.get_points("other", "7").await.is_unavailable();
        gate.send(&stranger).await.is_unavailable(); // it may have been made meanwhile
    }
    second.batch_execute("COMMIT").await.unwrap();
    eventually(PATIENCE, "the list comes", async || gate.get_points("other", "7").await.status == 200).await;
    gate.get_points("bot", "7").await.is_refused(401, INCORRECT_KEY);
    gate.send(&stranger).await.is_refused(401, INCORRECT_KEY);
    gate.get_points("other", "7").await.is("3");
}

#[tokio::test]
async fn guarantee_7_a_guild_departed_at_one_node_answers_03_at_the_other_until_it_returns() {
    let (here, there) = two_nodes().await;
    there.get_points("bot", "7").await.is("3");
    here.run(&["guild", "leave", GUILD]).done();
    eventually(SECOND_AND_SLACK, "03", async || there.get_points("bot", "7").await.code() == Some(3)).await;
    there.set_points("bot", "7", 4).await.is_refused(403, DEPARTED);
    here.run(&["guild", "return", GUILD]).done();
    eventually(SECOND_AND_SLACK, "3", async || there.get_points("bot", "7").await.body == "3").await;
}

#[tokio::test]
async fn an_import_at_one_node_shows_on_the_other_and_is_exported_byte_for_byte() {
    let (here, there) = two_nodes().await;
    there.get_warns("bot", "7").await.is("{}");
    let lines = [
        format!(r#"{{"guild":"{GUILD}","name":"Night Watch"}}"#),
        format!(r#"{{"guild":"{GUILD}","member":"7","name":"Ada \\ \"A\" ★","points":-5}}"#),
        format!(r#"{{"guild":"{GUILD}","member":"7","warn":"17","author":"M","reason":"r","expires":4000000000}}"#),
        format!(r#"{{"guild":"{GUILD}","member":"7","review":"9","author":"B","rating":4,"text":"t"}}"#),
    ];
    here.world().import(&(lines.join("\n") + "\n")).done();
    eventually(SECOND_AND_SLACK, "the imported warn", async || there.get_warns("bot", "7").await.body.contains("M: r"))
        .await;
    there.get_points("bot", "7").await.is("-5");
    there.run(&["export", "out.jsonl"]).done();
    assert_eq!(there.world().text("out.jsonl"), lines.join("\n") + "\n");
    let bad = here.world().import("{\"guild\":\"1\",\"name\":\"G\"}\nnonsense\n").failed(1).names(&["line 2"]);
    assert!(bad.stderr.contains("nothing was imported"), "{bad:?}");
    assert_eq!(here.run(&["guild", "list", "--json"]).done().list().len(), 1);
}

#[tokio::test]
async fn two_nodes_writing_at_once_lose_nothing() {
    let (here, there) = two_nodes().await;
    let mut tasks = Vec::new();
    for writer in 0..6_u64 {
        let key = here.secret("bot").to_owned();
        let mut connection = if writer % 2 == 0 { here.connect().await } else { there.connect().await };
        tasks.push(tokio::spawn(async move {
            for amount in 1..=20 {
                let body = format!("memberID={writer}&amount={amount}");
                let answer = connection.ask(&Request::post("/setPoints", &body).key(&key)).await;
                answer.is(&format!("Successfully set '{writer}' points to '{amount}'"));
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for member in ["0", "1", "2", "3", "4", "5"] {
        for node in [&here, &there] {
            let settled = async || node.get_points("bot", member).await.body == "20";
            eventually(SECOND_AND_SLACK, "20 at each node", settled).await;
        }
    }
}
