//! No answer of the built-in backend is longer than an origin's may be, 1 MiB (contract section 1): what would make one
//! longer is refused by name, and one that is longer already, as another program may have made it, is 20.

use std::sync::Arc;
use std::time::Instant;

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

fn count(gate: &TestGateway, kind: &str, member: u64) -> usize {
    gate.run(&[kind, "list", "--guild", GUILD, "--member", &member.to_string(), "--json"]).done().list().len()
}

async fn ask(gate: &TestGateway, kind: &str, member: u64) -> Answer {
    let operation = if kind == "warn" { "getWarns" } else { "getReviews" };
    let request = gate.request(operation, "bot", &format!("memberID={member}"));
    gate.connect().await.ask(&request).await
}

on_both_stores!(
    what_would_make_an_answer_longer_than_a_mebibyte_is_refused_by_name,
    an_import_of_longer_records_than_there_is_room_for_ends_soon,
    where_the_later_line_of_a_record_does_not_fit_partial_takes_the_earlier_one,
    partial_takes_each_line_that_fits_however_long_a_chain_of_moves_is_left_out,
    of_two_that_fit_alone_and_not_together_one_is_refused,
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
        assert_eq!(count(&gate, what, 7), 10);
        add(&gate, what, 7, left).done();
        let answer = ask(&gate, what, 7).await;
        assert_eq!((answer.status, answer.body.len()), (200, MIB));
        add(&gate, what, 7, 1).failed(1).names(&refused);
        // An import names the line, and takes nothing or the rest.
        let file = line(what, 8, 20, 5, LATER) + &line(what, 7, 21, 5, LATER) + &line(what, 7, 1, 99_000, LATER);
        let lines = gate.world().write("more.jsonl", &file);
        let lines = lines.to_str().unwrap();
        gate.run(&["import", lines]).done(); // the third makes room for the second
        let file = line(what, 8, 22, 5, LATER) + &line(what, 7, 23, 1000, LATER) + &line(what, 7, 24, 5, LATER);
        gate.world().write("more.jsonl", &file);
        gate.run(&["import", lines]).failed(1).names(&["line 2: with it", refused[0], "1 MiB", "nothing was imported"]);
        assert_eq!((count(&gate, what, 7), count(&gate, what, 8)), (12, 1));
        let ran = gate.run(&["import", "--partial", lines]).done().names(&["line 2: with it", "1 MiB"]);
        assert!(ran.stdout.contains("bad lines left out: "), "{ran:?}");
        assert_eq!(count(&gate, what, 8), 2);
        let answer = ask(&gate, what, 8).await;
        assert_eq!(answer.status, 200);
        // One that does not fit keeps none out that does.
        let file = [1_000_000, 200_000, 10, 10].iter().zip(40..).map(|(bytes, id)| line(what, 10, id, *bytes, LATER));
        gate.world().write("more.jsonl", file.collect::<String>());
        let ran = gate.run(&["import", "--partial", lines]).done().names(&["line 2: with it"]);
        assert!(ran.stdout.contains("bad lines left out: 1"), "{ran:?}");
        assert_eq!(count(&gate, what, 10), 3);
        gate.run(&["member", "set", "--guild", GUILD, "--member", "7", "--name", &"n".repeat(65_000)]).done();
    }
    // A warn that has expired is in no answer.
    let expired: String = (30..45).map(|id| line("warn", 9, id, 100_000, 1)).collect();
    gate.world().import(&expired).done();
    add(&gate, "warn", 9, 100_000).done();
    let answer = ask(&gate, "warn", 9).await;
    assert_eq!((answer.status, answer.body.len()), (200, 100_000 + around("warn", 9, 45) + 2));
}

/// Leaving out lines one after the other would take minutes: each stands for a stored record, which comes back.
async fn an_import_of_longer_records_than_there_is_room_for_ends_soon(kind: Kind) {
    const WARNS: u64 = 10_000;
    const BYTES: usize = 30;
    let gate = TestGateway::on(kind).key("bot").points("7", 3).start().await;
    let begun: usize = (1..=WARNS).map(|id| BYTES + around("warn", 7, id) + 2).sum();
    let last = line("warn", 7, WARNS + 1, MIB - begun - around("warn", 7, WARNS + 1) - 2, LATER);
    let lines = |first| -> String {
        let length = |id| if id == 1 { first } else { BYTES };
        (1..=WARNS).map(|id| line("warn", 7, id, length(id), LATER)).chain([last.clone()]).collect()
    };
    gate.world().import(&lines(BYTES)).done();
    let file = gate.world().write("longer.jsonl", lines(BYTES + 1) + &line("warn", 8, WARNS + 2, 5, LATER));
    let file = file.to_str().unwrap();
    gate.run(&["import", file]).failed(1).names(&["with it the answer of warns of member 7", "nothing was imported"]);
    gate.run(&["import", "--partial", file]).done().names(&["line 1: with it"]);
    assert_eq!(count(&gate, "warn", 8), 1);
    let answer = ask(&gate, "warn", 7).await;
    assert_eq!((answer.status, answer.body.len()), (200, MIB));
}

async fn where_the_later_line_of_a_record_does_not_fit_partial_takes_the_earlier_one(kind: Kind) {
    let gate = TestGateway::on(kind).key("bot").points("7", 3).start().await;
    for what in ["warn", "review"] {
        let begun: String = (1..=2).map(|id| line(what, 7, id, MIB / 2 - around(what, 7, id) - 2, LATER)).collect();
        gate.world().import(&begun).done();
        // The stored record, then one that fits, then those that do not, one of them of a member who has nothing else.
        gate.world().import(&line(what, 8, 20, 5, LATER)).done();
        let fits = line(what, 9, 20, 6, LATER);
        let file = gate.world().write("twice.jsonl", fits.clone() + &line(what, 7, 20, 5, LATER));
        let file = file.to_str().unwrap();
        gate.run(&["import", file]).failed(1).names(&["line 2: with it", "nothing was imported"]);
        let ran = gate.run(&["import", "--partial", file]).done().names(&["line 2: with it"]);
        assert!(ran.stdout.contains("1 records imported, bad lines left out: 1\n"), "{ran:?}");
        assert_eq!([7, 8, 9].map(|member| count(&gate, what, member)), [2, 0, 1]);
        // As many lines of one record as one likes take no more time than lines of so many records.
        let many = line(what, 8, 20, 7, LATER) + &line(what, 7, 20, 5, LATER).repeat(20_000);
        gate.world().write("twice.jsonl", many);
        let begin = Instant::now();
        let ran = gate.run(&["import", "--partial", file]).done().names(&["line 2: with it"]);
        assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
        assert!(ran.stdout.contains("1 records imported, bad lines left out: 20000\n"), "{ran:?}");
        assert_eq!([7, 8, 9].map(|member| count(&gate, what, member)), [2, 1, 0]);
    }
}

/// Each line that is left out brings its record back to a member who then has no room for the record of the line before.
async fn partial_takes_each_line_that_fits_however_long_a_chain_of_moves_is_left_out(kind: Kind) {
    const MEMBERS: u64 = 8;
    let gate = TestGateway::on(kind).key("bot").points("7", 3).start().await;
    for what in ["warn", "review"] {
        let full = |member| (1..=10).map(move |id| line(what, member, member * 10 + id, 100_000, LATER));
        gate.world().import(&(1..=MEMBERS).flat_map(full).collect::<String>()).done();
        let moves = (1..MEMBERS).map(|member| line(what, member + 1, member * 10 + 1, 100_000, LATER));
        let small = (1..=MEMBERS).map(|member| line(what, member, 1000 + member, 5, LATER));
        let file = gate.world().write("chain.jsonl", moves.chain(small).collect::<String>());
        let ran = gate.run(&["import", "--partial", file.to_str().unwrap()]).done();
        let left_out = MEMBERS - 1;
        assert!(
            ran.stdout.contains(&format!("{MEMBERS} records imported, bad lines left out: {left_out}\n")),
            "{ran:?}"
        );
        assert!((1..=MEMBERS).all(|member| count(&gate, what, member) == 11));
    }
}

async fn of_two_that_fit_alone_and_not_together_one_is_refused(kind: Kind) {
    let gate = Arc::new(TestGateway::on(kind).key("bot").points("7", 3).start().await);
    let lines: String = (1..=9).map(|id| line("warn", 7, id, 100_000, LATER)).collect();
    gate.world().import(&lines).done();
    let adds = [0, 1].map(|_| {
        let gate = gate.clone();
        std::thread::spawn(move || add(&gate, "warn", 7, 100_000).code)
    });
    let mut codes = adds.map(|add| add.join().unwrap());
    codes.sort();
    assert_eq!(codes, [Some(0), Some(1)]);
    assert_eq!(ask(&gate, "warn", 7).await.status, 200);
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
    let warn =
        format!("INSERT INTO warn SELECT guild, member, 1, 'Mod', '{long}', {LATER} FROM member WHERE member = 7");
    let review = format!("INSERT INTO review SELECT guild, member, 1, 'Bo', 5, '{long}' FROM member WHERE member = 7");
    for sql in [
        warn.replace("INTO warn", "INTO warn (guild, member, id, author, reason, expires)"),
        review.replace("INTO review", "INTO review (guild, member, id, author, rating, text)"),
    ] {
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
