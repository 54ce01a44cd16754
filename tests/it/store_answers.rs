//! No answer of the built-in backend is longer than an origin's may be, 1 MiB (contract section 1): what would make one
//! longer is refused by name, and one that is longer already, as another program may have made it, is 20.

use rusqlite::Connection as Sqlite;

use crate::support::postgres::connect;
use crate::support::*;

const MIB: usize = 1 << 20;

/// An end that is far away.
const LATER: i64 = 4_000_000_000;

/// A warn or a review as JSON Lines have it, with a text of this many bytes.
fn line(kind: &str, member: u64, id: u64, bytes: usize, expires: i64) -> String {
    let text = "x".repeat(bytes);
    let of = format!(r#""guild":"{GUILD}","member":"{member}","{kind}":"{id}","author":"Mod""#);
    match kind {
        "warn" => format!("{{{of},\"reason\":\"{text}\",\"expires\":{expires}}}\n"),
        _ => format!("{{{of},\"rating\":5,\"text\":\"{text}\"}}\n"),
    }
}

/// Its bytes in the answer, apart from the text.
fn around(kind: &str, member: u64, id: u64) -> usize {
    match kind {
        "warn" => format!("warns_{member}_id_{id}_{LATER}=Mod:  (Expires {LATER})").len(),
        _ => format!("reviews_{member}_id_{id}_5=Mod (5★): ").len(),
    }
}

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

on_both_stores!(
    what_would_make_an_answer_longer_than_a_mebibyte_is_refused_by_name,
    an_answer_that_is_longer_already_is_20_and_named_in_the_log,
);

async fn what_would_make_an_answer_longer_than_a_mebibyte_is_refused_by_name(kind: Kind) {
    let gate = TestGateway::on(kind).key("bot").points("7", 3).start().await;
    for what in ["warn", "review"] {
        let lines: String = (1..=10).map(|id| line(what, 7, id, 100_000, LATER)).collect();
        gate.world().import(&lines).done();
        let begun: usize = (1..=10).map(|id| 100_000 + around(what, 7, id) + 2).sum();
        // The last byte that fits, and the first that does not.
        let left = MIB - begun - around(what, 7, 11) - 2;
        let refused = [&format!("member 7 in guild {GUILD}"), "longer than 1 MiB", "remove"];
        add(&gate, what, 7, left + 1).failed(1).names(&refused);
        add(&gate, what, 7, left).done();
        let answer = ask(&gate, what, 7).await;
        assert_eq!((answer.status, answer.body.len()), (200, MIB));
        // An import is refused whole, and names the members.
        gate.world().write("more.jsonl", line(what, 8, 22, 5, LATER) + &line(what, 7, 23, 1000, LATER));
        let member = format!("the answer of {what}s would be longer than 1 MiB for member 7 of guild {GUILD}");
        for partial in [&[][..], &["--partial"]] {
            let ran = gate.run(&[&["import", "more.jsonl"], partial].concat()).failed(1);
            ran.names(&[&member, "nothing was imported"]);
        }
        assert_eq!(ask(&gate, what, 8).await.body, "{}");
    }
    // A warn that has expired is in no answer.
    gate.world().import(&(30..45).map(|id| line("warn", 9, id, 100_000, 1)).collect::<String>()).done();
    add(&gate, "warn", 9, 100_000).done();
    let answer = ask(&gate, "warn", 9).await;
    assert_eq!((answer.status, answer.body.len()), (200, 100_000 + around("warn", 9, 45) + 2));
}

async fn an_answer_that_is_longer_already_is_20_and_named_in_the_log(kind: Kind) {
    let postgres = match kind {
        Kind::Builtin | Kind::Http => None,
        Kind::Postgres => Some(Postgres::shared().database().await),
    };
    let builder = TestGateway::on(kind).key("bot").points("7", 3);
    let builder = postgres.iter().fold(builder, |builder, url| builder.store(url));
    let gate = builder.start().await;
    let long = "x".repeat(MIB);
    let insert = |kind: i64, number: i64| {
        format!(
            "INSERT INTO note (guild, member, kind, id, author, text, number) \
             SELECT guild, member, {kind}, 1, 'Mod', '{long}', {number} FROM member WHERE member = 7"
        )
    };
    for sql in [insert(1, LATER), insert(2, 5)] {
        match &postgres {
            Some(url) => connect(url).await.batch_execute(&sql).await.unwrap(),
            None => Sqlite::open(gate.world().path("guildgate.db")).unwrap().execute_batch(&sql).unwrap(),
        }
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
