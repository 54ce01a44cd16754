//! Contract section 5, guarantee 2: one store serves several processes, which see each other's writes within a second. That
//! none is lost is tested beside the store. And no answer of the built-in backend is longer than an origin's may be, 1 MiB
//! (section 1): one that another program made longer is 20. That the store makes none is tested beside it.

use rusqlite::Connection as Sqlite;

use crate::support::*;

#[tokio::test]
async fn a_server_sees_what_a_command_changes_within_a_second_and_an_answer_that_others_made_too_long_is_20() {
    let gate = TestGateway::builder().key("bot").points("7", 3).points("8", 1).start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is("3").is_hit();
    gate.run(&["member", "set", "--guild", GUILD, "--member", "7", "--points", "10"]).done();
    eventually(SECOND_AND_SLACK, "10", async || gate.get_points("bot", "7").await.body == "10").await;
    gate.get_warns("bot", "7").await.is("{}");
    gate.get_reviews("bot", "7").await.is("{}");
    let warn =
        format!(r#"{{"guild":"{GUILD}","member":"7","warn":"1","author":"M","reason":"r","expires":4000000000}}"#);
    let review = format!(r#"{{"guild":"{GUILD}","member":"7","review":"1","author":"B","rating":4,"text":"t"}}"#);
    gate.world().import(&format!("{warn}\n{review}\n")).done();
    let warned = async || gate.get_warns("bot", "7").await.body.contains("M: r");
    eventually(SECOND_AND_SLACK, "the imported warn", warned).await;
    let reviewed = async || gate.get_reviews("bot", "7").await.body.contains("★): t");
    eventually(SECOND_AND_SLACK, "the imported review", reviewed).await;
    an_answer_that_is_longer_already_is_20_and_named_in_the_log(&gate).await;
}

async fn an_answer_that_is_longer_already_is_20_and_named_in_the_log(gate: &TestGateway) {
    let store = Sqlite::open(gate.world().path("guildgate.db")).unwrap();
    for (kind, what, number) in [(1, "warn", 4_000_000_000_i64), (2, "review", 5)] {
        let sql = "INSERT INTO note (guild, member, kind, id, author, text, number) \
            SELECT guild, member, ?1, 2, 'Mod', ?2, ?3 FROM member WHERE member = 8";
        store.execute(sql, (kind, "x".repeat(1 << 20), number)).unwrap();
        let ask = async || match what {
            "warn" => gate.get_warns("bot", "8").await,
            _ => gate.get_reviews("bot", "8").await,
        };
        let answer = ask().await;
        assert_eq!(answer.code(), Some(20), "{answer:?}");
        // What helps is said, and helps.
        gate.run(&[what, "remove", "--guild", GUILD, "2"]).done();
        eventually(SECOND_AND_SLACK, "an answer", async || ask().await.body == "{}").await;
    }
    let is_named =
        |line: &&str| line.contains("larger than 1 MiB") && line.contains(GUILD) && line.contains("member=8");
    let are_named = async || gate.stderr().lines().filter(is_named).count() >= 2;
    eventually(PATIENCE, "both are named", are_named).await;
}
