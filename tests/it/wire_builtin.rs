//! Contract section 1, "Built-in backend", and the form of each answer.

use crate::support::*;

const FAR: i64 = 4_000_000_000;

async fn the_four_operations_answer_in_the_specs_words(kind: Kind) {
    let gate = TestGateway::on(kind)
        .key("bot")
        .points("190551803669118976", 1250)
        .warn("190551803669118976", 17, "Mod", "spam", FAR)
        .review("190551803669118976", 9, "Bo", 5, "Quick and kind")
        .start()
        .await;
    let ada = "190551803669118976";
    gate.get_points("bot", ada).await.is("1250");
    let warns = format!("{{warns_{ada}_id_17_{FAR}=Mod: spam (Expires {FAR})}}");
    gate.get_warns("bot", ada).await.is(&warns);
    gate.get_reviews("bot", ada).await.is(&format!("{{reviews_{ada}_id_9_5=Bo (5★): Quick and kind}}"));
    gate.set_points("bot", ada, -7).await.is("Successfully set 'Ada' points to '-7'");
    gate.get_points("bot", ada).await.is("-7");
}

async fn entries_are_joined_by_a_comma_in_ascending_numeric_order(kind: Kind) {
    let gate = TestGateway::on(kind)
        .key("bot")
        .points("7", 0)
        .warn("7", 100, "C", "c", FAR)
        .warn("7", 9, "A", "a", FAR)
        .warn("7", 10, "B", "b", FAR)
        .review("7", 10, "B", 1, "b, really")
        .review("7", 2, "A", 5, "a")
        .start()
        .await;
    let warn = |id: u64, a: &str, r: &str| format!("warns_7_id_{id}_{FAR}={a}: {r} (Expires {FAR})");
    let warns = [warn(9, "A", "a"), warn(10, "B", "b"), warn(100, "C", "c")].join(", ");
    gate.get_warns("bot", "7").await.is(&format!("{{{warns}}}"));
    gate.get_reviews("bot", "7").await.is("{reviews_7_id_2_5=A (5★): a, reviews_7_id_10_1=B (1★): b, really}");
}

async fn an_unknown_member_is_made_by_setpoints_and_named_by_its_id(kind: Kind) {
    let gate = TestGateway::on(kind).key("bot").start().await;
    gate.get_points("bot", "42").await.is("0");
    gate.set_points("bot", "0042", 5).await.is("Successfully set '42' points to '5'");
    gate.get_points("bot", "42").await.is("5");
    gate.get_warns("bot", "42").await.is("{}");
    let exported = gate.world().path("out.jsonl");
    gate.run(&["export", exported.to_str().unwrap()]).done();
    let lines = gate.world().text("out.jsonl");
    let made = lines.lines().filter(|l| l.contains("\"42\"")).count();
    assert_eq!(made, 1, "reading makes no member, setPoints makes one: {lines}");
}

async fn an_answer_is_one_line_whatever_the_texts_hold(kind: Kind) {
    let gate = TestGateway::on(kind)
        .key("bot")
        .line(&format!(r#"{{"guild":"{GUILD}","member":"7","name":"A\nd\ta","points":1}}"#))
        .warn("7", 1, "M\r\nod", "sp\u{0}am\u{7f}\u{85}", FAR)
        .review("7", 1, "B\no", 5, "nice\r\n\r\nHTTP/1.1 200 OK")
        .start()
        .await;
    gate.set_points("bot", "7", 2).await.is("Successfully set 'A d a' points to '2'");
    gate.get_warns("bot", "7").await.is(&format!("{{warns_7_id_1_{FAR}=M  od: sp am   (Expires {FAR})}}"));
    gate.get_reviews("bot", "7").await.is("{reviews_7_id_1_5=B o (5★): nice    HTTP/1.1 200 OK}");
}

async fn expired_warns_are_not_answered(kind: Kind) {
    let now = unix_now();
    let gate = TestGateway::on(kind)
        .key("bot")
        .points("7", 0)
        .warn("7", 1, "Mod", "long ago", 1)
        .warn("7", 2, "Mod", "just now", now)
        .warn("7", 3, "Mod", "still on", FAR)
        .start()
        .await;
    gate.get_warns("bot", "7").await.is(&format!("{{warns_7_id_3_{FAR}=Mod: still on (Expires {FAR})}}"));
}

async fn a_key_sees_its_own_guild_only(kind: Kind) {
    let gate = TestGateway::on(kind)
        .key("bot")
        .key_of_guild("other", "999")
        .points("7", 3)
        .line(r#"{"guild":"999","member":"7","name":"Eve","points":8}"#)
        .start()
        .await;
    for _ in 0..2 {
        gate.get_points("bot", "7").await.is("3");
        gate.get_points("other", "7").await.is("8");
    }
    gate.set_points("other", "7", 9).await.is("Successfully set 'Eve' points to '9'");
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("other", "7").await.is("9");
}

async fn two_keys_of_one_guild_share_its_answers(kind: Kind) {
    let gate = TestGateway::on(kind).key("one").key("two").points("7", 3).start().await;
    gate.get_points("one", "7").await.is("3").is_miss();
    gate.get_points("two", "7").await.is("3").is_hit();
    gate.set_points("two", "7", 4).await;
    gate.get_points("one", "7").await.is("4");
}

async fn the_backend_knows_keys_from_a_file_too(kind: Kind) {
    let gate = TestGateway::on(kind).keys_in_file().key("bot").read_key("reader").points("7", 3).start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
    assert_eq!(gate.set_points("reader", "7", 5).await.code(), Some(15));
}

async fn a_key_of_a_guild_that_is_not_in_the_store_is_03(kind: Kind) {
    let gate = TestGateway::on(kind).keys_in_file().key("bot").start().await;
    gate.world().edit("keys.toml", GUILD, "12345");
    let mut process = gate.world().serve(&[]);
    let mut connection = Connection::to(process.ready().await).await;
    let answer = connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await;
    let line = "03 | Error while retrieving guild using this API key. Is Guildgate still on guild?";
    answer.is_refused(403, line);
}

on_both_stores!(
    the_four_operations_answer_in_the_specs_words,
    entries_are_joined_by_a_comma_in_ascending_numeric_order,
    an_unknown_member_is_made_by_setpoints_and_named_by_its_id,
    an_answer_is_one_line_whatever_the_texts_hold,
    expired_warns_are_not_answered,
    a_key_sees_its_own_guild_only,
    two_keys_of_one_guild_share_its_answers,
    the_backend_knows_keys_from_a_file_too,
    a_key_of_a_guild_that_is_not_in_the_store_is_03,
);
