//! Contract section 4: the audit log has a line for each change that is asked for, whatever its caller does meanwhile, and
//! no key in it.

use rusqlite::Connection as Sqlite;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

/// The lines from the one at `from` on, once there are so many.
async fn lines(gate: &TestGateway, from: usize, count: usize) -> Vec<Value> {
    let text = || gate.world().text("audit.log");
    eventually(PATIENCE, "the lines", || async { text().lines().count() >= from + count }).await;
    text().lines().skip(from).map(|line| serde_json::from_str(line).unwrap_or_else(|_| line.into())).collect()
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

/// On a gateway whose audit log is empty, with this read token.
pub async fn each_change_that_is_asked_for_gets_a_line_without_a_key_whatever_its_caller_does(
    gate: &TestGateway,
    read: &str,
) {
    let (admin, path) = (gate.admin().await, format!("/api/keys/{}", gate.key_id("bot")));

    // A caller that hangs up while its change waits for another writer.
    let writer = Sqlite::open(gate.world().path("guildgate.db")).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut stream = TcpStream::connect(admin.address).await.unwrap();
    stream.write_all(patch(&admin, &path, r#"{"name":"first"}"#).as_bytes()).await.unwrap();
    drop(stream);
    for _ in 0..3 {
        admin.get(&path).await.is(200); // the request is read before this
    }
    drop(writer);
    let line = lines(gate, 0, 1).await.remove(0);
    assert_eq!((&line["change"]["name"], line["status"].as_i64()), (&json!("first"), Some(200)));
    assert_eq!(admin.get(&path).await.is(200)["name"], "first");

    // A caller that closes its own direction gets its answer.
    let mut stream = TcpStream::connect(admin.address).await.unwrap();
    stream.write_all(patch(&admin, &path, r#"{"name":"n"}"#).as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(r#""name":"n""#), "{answer}");
    assert_eq!(lines(gate, 1, 1).await[0]["status"], 200);

    // What a token may not do, and a body that is too large.
    let guild = format!("/api/guilds/{GUILD}");
    admin.with_token(read).send("DELETE", &guild, &[], "").await.is_problem(403, "read token");
    admin.post("/api/keys", &"x".repeat(64 * 1024 + 1)).await.is_problem(413, "64 KiB");
    admin.post("/api/keys", &"x".repeat(5000)).await.is_problem(400, "the body");
    let found = lines(gate, 2, 3).await;
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

    // A key is hidden however it is escaped.
    let digits = gate.secret("bot").strip_prefix("gg_").unwrap();
    let rename = format!(r#"{{"name":"\u0067g_{digits}"}}"#);
    admin.json("PATCH", &guild, &rename).await.is(200);
    admin.json("PATCH", &guild, &format!(r#"{{"\u0067g_{digits}":[1]}}"#)).await.is(400);
    for path in [format!("/api/keys/%67g_{digits}"), format!("/api/keys/gg%5f{digits}")] {
        admin.send("DELETE", &path, &[], "").await.is(404);
    }
    let found = lines(gate, 5, 4).await;
    assert!(!found.iter().any(|line| line.to_string().contains(&digits[8..])), "{found:#?}");
    assert_eq!((&found[0]["change"]["name"], &found[2]["path"]), (&json!("gg_…"), &json!("/api/keys/gg_…")));
}
