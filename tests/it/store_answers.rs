//! No answer of the built-in backend is longer than an origin's may be, 1 MiB (contract section 1): one that is longer, as
//! another program may have made it, is 20. That the store refuses what would make one longer is tested beside the store.

use rusqlite::Connection as Sqlite;

use crate::support::*;

#[tokio::test]
async fn an_answer_that_is_longer_already_is_20_and_named_in_the_log() {
    let gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    let store = Sqlite::open(gate.world().path("guildgate.db")).unwrap();
    for (kind, what, number) in [(1, "warn", 4_000_000_000_i64), (2, "review", 5)] {
        let sql = "INSERT INTO note (guild, member, kind, id, author, text, number) \
            SELECT guild, member, ?1, 1, 'Mod', ?2, ?3 FROM member WHERE member = 7";
        store.execute(sql, (kind, "x".repeat(1 << 20), number)).unwrap();
        let ask = async || match what {
            "warn" => gate.get_warns("bot", "7").await,
            _ => gate.get_reviews("bot", "7").await,
        };
        let answer = ask().await;
        assert_eq!(answer.code(), Some(20), "{answer:?}");
        // What helps is said, and helps.
        gate.run(&[what, "remove", "--guild", GUILD, "1"]).done();
        eventually(SECOND_AND_SLACK, "an answer", async || ask().await.body == "{}").await;
    }
    let is_named =
        |line: &&str| line.contains("larger than 1 MiB") && line.contains(GUILD) && line.contains("member=7");
    let are_named = async || gate.stderr().lines().filter(is_named).count() >= 2;
    eventually(PATIENCE, "both are named", are_named).await;
}
