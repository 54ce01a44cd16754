//! Contract section 5, guarantee 2: one store serves several processes, which see each other's writes within a second. That
//! none is lost is tested beside the store.

use crate::support::*;

#[tokio::test]
async fn a_server_sees_what_a_command_changes_within_a_second() {
    let gate = TestGateway::builder().key("bot").points("7", 3).start().await;
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
}
