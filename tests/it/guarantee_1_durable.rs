//! Contract section 5, guarantees 1 and 2: one store serves several processes, which see each other's writes within a
//! second and lose none.

use crate::support::*;

#[tokio::test]
async fn a_server_sees_what_a_command_changes_within_a_second() {
    let gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is("3").is_hit();
    gate.run(&["member", "set", "--guild", GUILD, "--member", "7", "--points", "10"]).done();
    eventually(SECOND_AND_SLACK, "the command's 10 points", || async {
        gate.get_points("bot", "7").await.body == "10"
    })
    .await;
    gate.get_warns("bot", "7").await.is("{}");
    gate.get_reviews("bot", "7").await.is("{}");
    let warn =
        format!(r#"{{"guild":"{GUILD}","member":"7","warn":"1","author":"M","reason":"r","expires":4000000000}}"#);
    let review = format!(r#"{{"guild":"{GUILD}","member":"7","review":"1","author":"B","rating":4,"text":"t"}}"#);
    gate.world().import(&format!("{warn}\n{review}\n")).done();
    eventually(SECOND_AND_SLACK, "the imported warn", || async {
        gate.get_warns("bot", "7").await.body.contains("M: r")
    })
    .await;
    eventually(SECOND_AND_SLACK, "the imported review", || async {
        gate.get_reviews("bot", "7").await.body.contains("★): t")
    })
    .await;
    gate.run(&["guild", "add", "555", "--name", "New"]).done();
    let key = gate.run(&["key", "create", "--guild", "555"]).done().stdout.trim_end().to_owned();
    let request = Request::post("/getPoints", "memberID=7").key(&key);
    eventually(SECOND_AND_SLACK, "the new key works", || async { gate.send(&request).await.status == 200 }).await;
    gate.send(&request).await.is("0");
}

#[tokio::test]
async fn two_servers_writing_at_once_lose_nothing() {
    let gate = TestGateway::builder().key("bot").start().await;
    let mut other = gate.world().serve(&[]);
    let addresses = [gate.address(), other.ready().await];
    let mut tasks = Vec::new();
    for writer in 0..6_u64 {
        let key = gate.secret("bot").to_owned();
        let address = addresses[(writer % 2) as usize];
        tasks.push(tokio::spawn(async move {
            let mut connection = Connection::to(address).await;
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
    let mut third = gate.world().serve(&[]);
    let mut connection = Connection::to(third.ready().await).await;
    for member in 0..6 {
        connection.ask(&gate.request("getPoints", "bot", &format!("memberID={member}"))).await.is("20");
    }
}
