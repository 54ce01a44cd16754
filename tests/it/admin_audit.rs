//! Contract section 4: the audit log has a line for each change that is asked for, whatever its caller does meanwhile, and
//! no key in it.

use rusqlite::Connection as Sqlite;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

fn audited() -> Builder {
    TestGateway::builder().key("bot").admin().set("log.audit", r#""audit.log""#)
}

/// The lines, once there are so many.
async fn lines(gate: &TestGateway, count: usize) -> Vec<Value> {
    let text = || gate.world().text("audit.log");
    eventually(PATIENCE, "the lines", || async { text().lines().count() >= count }).await;
    text().lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| line.into())).collect()
}

/// A change of a key, as it is written on a connection.
fn patch(admin: &AdminClient, path: &str, body: &str) -> String {
    format!(
        "PATCH {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        admin.token,
        body.len()
    )
}

#[tokio::test]
async fn a_change_whose_caller_hangs_up_is_made_and_gets_its_line() {
    let gate = audited().start().await;
    let (admin, path) = (gate.admin().await, format!("/api/keys/{}", gate.key_id("bot")));
    // The change waits for another writer.
    let writer = Sqlite::open(gate.world().path("guildgate.db")).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut stream = TcpStream::connect(admin.address).await.unwrap();
    stream.write_all(patch(&admin, &path, r#"{"name":"first"}"#).as_bytes()).await.unwrap();
    drop(stream);
    for _ in 0..3 {
        admin.get(&path).await.is(200); // the request is read before this
    }
    drop(writer);
    let line = lines(&gate, 1).await.remove(0);
    assert_eq!((&line["change"]["name"], line["status"].as_i64()), (&json!("first"), Some(200)));
    assert_eq!(admin.get(&path).await.is(200)["name"], "first");
}

#[tokio::test]
async fn a_caller_that_closes_its_own_direction_gets_its_answer() {
    let gate = audited().start().await;
    let (admin, path) = (gate.admin().await, format!("/api/keys/{}", gate.key_id("bot")));
    let mut stream = TcpStream::connect(admin.address).await.unwrap();
    stream.write_all(patch(&admin, &path, r#"{"name":"n"}"#).as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(r#""name":"n""#), "{answer}");
    assert_eq!(lines(&gate, 1).await[0]["status"], 200);
}

#[tokio::test]
async fn what_a_token_may_not_do_and_a_body_that_is_too_large_are_recorded() {
    let read = "read-token-0123456789";
    let gate = audited().set("admin.read_token", &format!("{read:?}")).start().await;
    let admin = gate.admin().await;
    let guild = format!("/api/guilds/{GUILD}");
    admin.with_token(read).send("DELETE", &guild, &[], "").await.is_problem(403, "read token");
    admin.post("/api/keys", &"x".repeat(64 * 1024 + 1)).await.is_problem(413, "64 KiB");
    admin.post("/api/keys", &"x".repeat(5000)).await.is_problem(400, "the body");
    let found = lines(&gate, 3).await;
    let told = found.iter().map(|line| json!([line["role"], line["method"], line["path"], line["status"]]));
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            json!(["read", "DELETE", guild, 403]),
            json!(["admin", "POST", "/api/keys", 413]),
            json!(["admin", "POST", "/api/keys", 400])
        ]
    );
    assert_eq!(found[2]["change"], "5000 bytes");
}

#[tokio::test]
async fn a_key_is_hidden_however_it_is_escaped() {
    let gate = audited().start().await;
    let admin = gate.admin().await;
    let digits = gate.secret("bot").strip_prefix("gg_").unwrap();
    let rename = format!(r#"{{"name":"\u0067g_{digits}"}}"#);
    admin.json("PATCH", &format!("/api/guilds/{GUILD}"), &rename).await.is(200);
    admin.json("PATCH", &format!("/api/guilds/{GUILD}"), &format!(r#"{{"\u0067g_{digits}":[1]}}"#)).await.is(400);
    for path in [format!("/api/keys/%67g_{digits}"), format!("/api/keys/gg%5f{digits}")] {
        admin.send("DELETE", &path, &[], "").await.is(404);
    }
    let found = lines(&gate, 4).await;
    assert!(!found.iter().any(|line| line.to_string().contains(&digits[8..])), "{found:#?}");
    assert_eq!((&found[0]["change"]["name"], &found[2]["path"]), (&json!("gg_…"), &json!("/api/keys/gg_…")));
}
