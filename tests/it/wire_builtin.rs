//! Contract section 1, "Built-in backend", and the form of each answer. What each store holds and gives is tested by
//! `src/store/suite`, on SQLite and on PostgreSQL.

use crate::support::*;

const FAR: i64 = 4_000_000_000;

#[tokio::test]
async fn the_four_operations_answer_in_the_specs_words() {
    let gate = TestGateway::builder()
        .key("bot")
        .points("190551803669118976", 1250)
        .warn("190551803669118976", 17, "Mod", "spam", FAR)
        .review("190551803669118976", 9, "Bo", 5, "Quick and kind")
        .points("7", 0)
        .warn("7", 100, "C", "c", FAR)
        .warn("7", 9, "A", "a", FAR)
        .warn("7", 10, "B", "over", unix_now())
        .review("7", 10, "B", 1, "b, really")
        .review("7", 2, "A", 5, "a")
        .line(&format!(r#"{{"guild":"{GUILD}","member":"8","name":"A\nd\ta","points":1}}"#))
        .warn("8", 1, "M\r\nod", "sp\u{0}am\u{7f}\u{85}", FAR)
        .review("8", 1, "B\no", 5, "nice\r\n\r\nHTTP/1.1 200 OK")
        .start()
        .await;
    let warn = |member: &str, id: u64, text: &str| format!("warns_{member}_id_{id}_{FAR}={text} (Expires {FAR})");
    let ada = "190551803669118976";
    gate.get_points("bot", ada).await.is("1250");
    gate.get_warns("bot", ada).await.is(&format!("{{{}}}", warn(ada, 17, "Mod: spam")));
    gate.get_reviews("bot", ada).await.is(&format!("{{reviews_{ada}_id_9_5=Bo (5★): Quick and kind}}"));
    gate.set_points("bot", ada, -7).await.is("Successfully set 'Ada' points to '-7'");
    gate.get_points("bot", ada).await.is("-7");
    // Joined by a comma, sorted as numbers, without what is over.
    gate.get_warns("bot", "007").await.is(&format!("{{{}, {}}}", warn("7", 9, "A: a"), warn("7", 100, "C: c")));
    gate.get_reviews("bot", "7").await.is("{reviews_7_id_2_5=A (5★): a, reviews_7_id_10_1=B (1★): b, really}");
    // One line, whatever the texts hold.
    gate.set_points("bot", "8", 2).await.is("Successfully set 'A d a' points to '2'");
    gate.get_warns("bot", "8").await.is(&format!("{{{}}}", warn("8", 1, "M  od: sp am  ")));
    gate.get_reviews("bot", "8").await.is("{reviews_8_id_1_5=B o (5★): nice    HTTP/1.1 200 OK}");
    // A member whom nobody knows has nothing. Reading makes no member, setPoints makes one.
    for (operation, nothing) in [("getPoints", "0"), ("getWarns", "{}"), ("getReviews", "{}")] {
        gate.send(&gate.request(operation, "bot", "memberID=42")).await.is(nothing);
    }
    gate.set_points("bot", "0043", 5).await.is("Successfully set '43' points to '5'");
    gate.get_points("bot", "43").await.is("5");
    gate.run(&["export", gate.world().path("out.jsonl").to_str().unwrap()]).done();
    let lines = gate.world().text("out.jsonl");
    assert_eq!(["\"42\"", "\"43\""].map(|member| lines.matches(member).count()), [0, 2], "{lines}");
}

#[tokio::test]
async fn a_key_sees_its_own_guild_only_and_shares_the_answers_of_that() {
    let gate = TestGateway::builder()
        .key("bot")
        .key("twin")
        .key_of_guild("other", "999")
        .points("7", 3)
        .line(r#"{"guild":"999","member":"7","name":"Eve","points":8}"#)
        .start_here()
        .await;
    gate.get_points("bot", "7").await.is("3").is_miss();
    gate.get_points("other", "7").await.is("8").is_miss();
    gate.get_points("twin", "7").await.is("3").is_hit();
    gate.set_points("other", "7", 9).await.is("Successfully set 'Eve' points to '9'");
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("other", "7").await.is("9");
    gate.set_points("twin", "7", 4).await;
    gate.get_points("bot", "7").await.is("4");
}
