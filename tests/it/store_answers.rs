//! No answer of the built-in backend is longer than an origin's may be, 1 MiB (contract section 1): one that is longer, as
//! another program may have made it, is 20. That the store refuses what would make one longer is tested beside the store.

use rusqlite::Connection as Sqlite;

use crate::support::*;

const MIB: usize = 1 << 20;

/// An end that is far away.
const LATER: i64 = 4_000_000_000;

/// Adds a warn or a review by the command.
fn add(gate: &TestGateway, kind: &str, member: u64, bytes: usize) -> Ran {
    let (member, text, later) = (member.to_string(), "x".repeat(bytes), LATER.to_string());
    let of = [kind, "add", "--guild", GUILD, "--member", &member, "--author", "Mod"];
    match kind {
        "warn" => gate.run(&[&of[..], &["--reason", &text, "--expires", &later]].concat()),
        _ => gate.run(&[&of[..], &["--rating", "5", "--text", &text]].concat()),
    }
}

async fn ask(gate: &TestGateway, kind: &str, member: u64) -> Answer {
    let operation = if kind == "warn" { "getWarns" } else { "getReviews" };
    let request = gate.request(operation, "bot", &format!("memberID={member}"));
    gate.connect().await.ask(&request).await
}

#[tokio::test]
async fn an_answer_that_is_longer_already_is_20_and_named_in_the_log() {
    let gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    let long = "x".repeat(MIB);
    let insert = |kind: i64, number: i64| {
        format!(
            "INSERT INTO note (guild, member, kind, id, author, text, number) \
             SELECT guild, member, {kind}, 1, 'Mod', '{long}', {number} FROM member WHERE member = 7"
        )
    };
    for sql in [insert(1, LATER), insert(2, 5)] {
        Sqlite::open(gate.world().path("guildgate.db")).unwrap().execute_batch(&sql).unwrap();
    }
    for what in ["warn", "review"] {
        let answer = ask(&gate, what, 7).await;
        assert_eq!(answer.code(), Some(20), "{answer:?}");
        add(&gate, what, 7, 1).failed(1).names(&["longer than 1 MiB"]);
        // What helps is said, and helps.
        gate.run(&[what, "remove", "--guild", GUILD, "1"]).done();
        eventually(SECOND_AND_SLACK, "an answer", async || ask(&gate, what, 7).await.body == "{}").await;
    }
    let is_named =
        |line: &&str| line.contains("larger than 1 MiB") && line.contains(GUILD) && line.contains("member=7");
    let are_named = async || gate.stderr().lines().filter(is_named).count() >= 2;
    eventually(PATIENCE, "both are named", are_named).await;
}
