//! Contract section 4: who may use the admin listener, what is recorded of it, and what nobody can do to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::admin_audit::each_change_that_is_asked_for_gets_a_line_without_a_key_whatever_its_caller_does;
use crate::admin_start::the_token_is_made_once_for_its_owner_only_and_its_thread_has_a_lower_priority;
use crate::support::*;

const READ: &str = "read-token-0123456789";
const BOT: &str = "bot-token-01234567890";

#[tokio::test]
async fn each_change_is_in_the_audit_log_each_token_does_what_its_role_may_and_only_wrong_ones_are_throttled() {
    let builder = TestGateway::builder().key("bot").points("7", 3).admin().set("log.audit", r#""audit.log""#);
    let builder = builder.set("admin.read_token", &format!("{READ:?}")).set("admin.bot_token", &format!("{BOT:?}"));
    let gate = builder.start().await;
    each_change_that_is_asked_for_gets_a_line_without_a_key_whatever_its_caller_does(&gate, READ).await;
    let admin = gate.admin().await;
    let (read, bot) = (admin.with_token(READ), admin.with_token(BOT));
    let member = format!("/api/guilds/{GUILD}/members/7");
    for path in ["/api/guilds", "/api/keys", "/api/status", "/api/config", &member, "/api/openapi.json"] {
        admin.get(path).await.is(200);
        read.get(path).await.is(200);
    }
    for (method, path) in [("POST", "/api/guilds"), ("DELETE", &*member), ("POST", "/api/reload"), ("PUT", &*member)] {
        read.json(method, path, "{}").await.is_problem(403, "read token");
    }
    for (method, path) in
        [("GET", "/api/guilds"), ("GET", "/api/keys"), ("POST", "/api/reload"), ("GET", "/api/status")]
    {
        bot.json(method, path, "").await.is_problem(403, "bot token");
    }
    bot.json("PUT", &member, r#"{"points":4}"#).await.is(200);
    bot.get(&format!("/api/guilds/{GUILD}/warns")).await.is(200);
    let warn = json!({"author": "M", "reason": "r", "expires": "1d"}).to_string();
    bot.post(&format!("{member}/warns"), &warn).await.is(201);
    bot.send("DELETE", &member, &[], "").await.is(204);
    bot.json("PATCH", &format!("/api/guilds/{GUILD}"), r#"{"left":true}"#).await.is_problem(403, "bot token");

    let mut throttled = 0;
    for n in 0..300 {
        let answer = admin.with_token(&format!("{n}{}", admin.token)).get("/api/status").await;
        match answer.status {
            401 => assert_eq!(answer.header("www-authenticate"), "Bearer"),
            status => {
                assert_eq!((status, answer.header("retry-after")), (429, "1"), "{answer:?}");
                throttled += 1;
            }
        }
        admin.get("/api/status").await.is(200);
        if throttled == 5 {
            break;
        }
    }
    assert_eq!(throttled, 5);
    let said = gate.stderr();
    assert!(!said.contains(&admin.token) && !said.contains(READ), "{said}");
}

#[tokio::test]
async fn the_token_is_made_once_and_anybody_may_ask_whether_it_is_ready_and_it_is_not_while_the_store_is_away() {
    let mut gate = TestGateway::builder().key("bot").admin().start().await;
    the_token_is_made_once_for_its_owner_only_and_its_thread_has_a_lower_priority(&mut gate).await;
    let admin = gate.admin().await;
    let nobody = admin.with_token("");
    connections_are_bounded(&nobody).await;
    assert_eq!(nobody.get("/healthz").await.text, "ok");
    nobody.get("/nothing").await.is_problem(404, "no such path");
    // On a busy machine what is known of the store may be too old at one moment.
    eventually(PATIENCE, "it is ready", || async { nobody.get("/readyz").await.text == "ok" }).await;
    let (store, away) = (gate.world().path("guildgate.db"), gate.world().path("away.db"));
    std::fs::rename(&store, &away).unwrap();
    eventually(PATIENCE, "503", || async { nobody.get("/readyz").await.status == 503 }).await;
    assert!(nobody.get("/readyz").await.text.contains("store"), "{:?}", nobody.get("/readyz").await);
    assert_eq!(admin.get("/api/status").await.is(200)["ready"], false);
    admin.get("/api/guilds").await.is_problem(503, "moved away");
    std::fs::rename(&away, &store).unwrap();
    eventually(PATIENCE, "200", || async { nobody.get("/readyz").await.status == 200 }).await;
    admin.get("/api/guilds").await.is(200);
}

#[tokio::test]
async fn before_an_http_origin_answers_are_purged_and_what_is_not_in_the_store_is_not_changed_there() {
    let gate = TestGateway::before_http().key("bot").key_of_guild("other", "99").admin();
    let gate = gate.key_of_tier("idle", "daily").set("limits.tiers.daily.daily", "2");
    let gate = gate.points("7", 3).points("8", 4).start().await;
    let admin = gate.admin().await;
    admin.get("/api/guilds/1/members").await.is_problem(409, "HTTP origin");
    admin.get("/api/keys").await.is_problem(409, "key file");
    what_is_purged_is_asked_for_again(&gate, &admin).await;
    a_day_is_reset_before_its_first_count_is_stored(&gate, &admin).await;
    a_reload_is_not_waited_for_as_long_as_a_file_keeps_changing(&gate, &admin).await;
    a_reload_tells_what_changed_and_every_fault_with_its_place(&gate, &admin).await;
    let learned = TestGateway::before_http().keys_at_the_origin().key("bot").admin().start().await;
    let admin = learned.admin().await;
    admin.get("/api/guilds").await.is_problem(409, "no store");
    assert_eq!(admin.get("/api/status").await.is(200)["store"], Value::Null);
    admin.get("/api/keys").await.is_problem(409, "only the origin");
    admin.post("/api/cache/purge", r#"{"guild":"1"}"#).await.is_problem(409, "only the origin");
}

/// What a key has used of its day is given back by both in `admin_api`.
async fn a_day_is_reset_before_its_first_count_is_stored(gate: &TestGateway, admin: &AdminClient) {
    gate.run(&["limits", "reset", "idle"]).done();
    admin.send("POST", "/api/keys/idle/reset-day", &[], "").await.is(204);
}

async fn what_is_purged_is_asked_for_again(gate: &TestGateway, admin: &AdminClient) {
    let asks = [("bot", "7", "3"), ("bot", "8", "4"), ("other", "7", "3"), ("other", "8", "4")];
    for (purge, missed) in [
        (json!({}), [true; 4]),
        (json!({"member": "7"}), [true, false, true, false]),
        (json!({"guild": GUILD}), [true, true, false, false]),
        (json!({"guild": "99", "member": "8"}), [false, false, false, true]),
        (json!({"guild": "unknown"}), [false; 4]),
    ] {
        for (key, member, points) in asks {
            gate.get_points(key, member).await.is(points);
            gate.get_points(key, member).await.is(points).is_hit();
        }
        admin.post("/api/cache/purge", &purge.to_string()).await.is(204);
        for ((key, member, points), missed) in asks.into_iter().zip(missed) {
            let answer = gate.get_points(key, member).await;
            assert_eq!(!answer.is(points).was_hit(), missed, "{purge}: {key} {member}");
        }
    }
    admin.post("/api/cache/purge", r#"{"member":"x"}"#).await.is_problem(400, "digits");
    admin.post("/api/cache/purge", "").await.is(204);
}

async fn a_reload_is_not_waited_for_as_long_as_a_file_keeps_changing(gate: &TestGateway, admin: &AdminClient) {
    let keys = gate.world().text("keys.toml");
    let (path, new) = (gate.world().path("keys.toml"), gate.world().path("keys.new"));
    let stops = Arc::new(AtomicBool::new(false));
    let stopped = stops.clone();
    let keeps_changing = std::thread::spawn(move || {
        for n in 0.. {
            // Whole at each moment: an empty file would be refused as such.
            std::fs::write(&new, format!("{keys}\n# {n}\n")).unwrap();
            std::fs::rename(&new, &path).unwrap();
            if stopped.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1)); // so that no two looks find the same
        }
    });
    let is_not_waited_for = async || {
        let answer = admin.post("/api/reload", "").await;
        if answer.status == 200 {
            return false; // on a busy machine the file may stand still for two looks
        }
        answer.is_problem(503, "a file keeps changing");
        true
    };
    eventually(PATIENCE, "a reload that is not waited for", is_not_waited_for).await;
    stops.store(true, Ordering::Relaxed);
    keeps_changing.join().unwrap();
    admin.post("/api/reload", "").await.is(200);
}

async fn a_reload_tells_what_changed_and_every_fault_with_its_place(gate: &TestGateway, admin: &AdminClient) {
    let before = admin.get("/api/config").await.is(200);
    let config = gate.world().text("gateway.toml");
    assert_eq!(admin.post("/api/reload", "").await.is(200), json!({"changed": [], "after_restart": []}));
    let other = config.replace("threads = 2", "threads = 3") + "[answers]\nkey_command = \"/new\"\n";
    gate.world().write("gateway.toml", other.replace("listen = \"127.0.0.1:0\"", "listen = \"127.0.0.1:1\""));
    let reloaded = admin.post("/api/reload", "").await.is(200);
    assert_eq!(reloaded["changed"], json!(["answers"]));
    assert_eq!(reloaded["after_restart"], json!(["server.threads", "admin"]));
    let after = admin.get("/api/config").await.is(200);
    assert!(after["toml"].as_str().unwrap().contains("/new") && after["hash"] != before["hash"], "{after}");
    assert_eq!(after["after_restart"], reloaded["after_restart"]);
    let key = format!("gg_{}", "7".repeat(49));
    gate.world().write("gateway.toml", format!("[limts]\n[cache]\nmax_size = 5\n[keys.{key}]\n[limits.tiers.{key}]\n"));
    gate.world().write("keys.toml", "[[key]]\nid = 5\n");
    let rejected = admin.post("/api/reload", "").await;
    rejected.is_problem(422, "rejected");
    let faults = rejected.is(422)["faults"].as_array().unwrap().clone();
    let has = |file: &str, place: &str, words: &str| {
        let is = |fault: &Value| {
            let (at, detail) = (fault["place"].as_str().unwrap_or_default(), fault["detail"].as_str().unwrap());
            at.contains(file) && at.ends_with(place) && detail.contains(words)
        };
        assert!(faults.iter().any(is), "{file}{place} {words}: {faults:#?}");
    };
    has("gateway.toml", ":1:2", "did you mean `limits`?");
    has("gateway.toml", ":3:12", "max_size");
    has("keys.toml", "", "id");
    has("gateway.toml", ":4:7", "keys.gg_…: unknown name `gg_…`");
    // The same reloads are remembered.
    let reloads = admin.get("/api/config").await.is(200)["reloads"].as_array().unwrap().clone();
    let of = |file: &str| reloads.iter().find(|reload| reload["file"] == file).unwrap();
    let [config, keys] = [of("gateway.toml"), of("keys.file")].map(|reload| reload["faults"].as_array().unwrap());
    assert_eq!([&config[..], &keys[..]].concat(), faults);
    assert!(!format!("{reloads:?}{}", gate.stderr()).contains(&key), "{reloads:?}");
    let accepted = reloads.iter().find(|reload| reload["changed"] == json!(["answers"])).unwrap();
    assert_eq!((&accepted["after_restart"], &accepted["faults"]), (&reloaded["after_restart"], &json!([])));
    gate.get_points("bot", "7").await.is("3");
}

/// One connection too many is closed at once, and the next one is served when there is room.
async fn connections_are_bounded(admin: &AdminClient) {
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(TcpStream::connect(admin.address).await.unwrap());
    }
    let mut over = TcpStream::connect(admin.address).await.unwrap();
    let closed = tokio::time::timeout(PATIENCE, over.read_to_end(&mut Vec::new())).await;
    assert!(closed.is_ok(), "it stays open");
    held.clear();
    let is_served = async || {
        let mut stream = TcpStream::connect(admin.address).await.unwrap();
        // One over the bound is closed.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer.starts_with("HTTP/1.1 200")
    };
    eventually(PATIENCE, "there is room", is_served).await;
}
