//! Contract section 2, `key rotate` and `key set`, and guarantee 7: what is changed of a key while
//! a server runs holds within one second, cached answers included.

use sha2::{Digest as _, Sha256};

use crate::support::*;

/// Rotates a key of this gateway; answers its new secret.
fn rotate(gate: &TestGateway, id: &str, more: &[&str]) -> String {
    let ran = gate.run(&[&["key", "rotate", id], more].concat()).done();
    assert_eq!(ran.stdout.lines().count(), 1, "the key stands alone on stdout: {ran:?}");
    ran.stdout.trim_end_matches('\n').to_owned()
}

/// Asks for member 7's points with this secret.
async fn ask(gate: &TestGateway, secret: &str) -> Answer {
    gate.send(&Request::post("/getPoints", "memberID=7").key(secret)).await
}

/// Waits until a running server answers a secret that it was told of just now.
async fn works(gate: &TestGateway, secret: &str) {
    eventually(SECOND_AND_SLACK, "the new secret works", || async { ask(gate, secret).await.status == 200 }).await;
}

fn shown(gate: &TestGateway, id: &str) -> serde_json::Value {
    serde_json::from_str(&gate.run(&["key", "show", id, "--json"]).done().stdout).unwrap()
}

#[tokio::test]
async fn both_secrets_of_a_rotated_key_are_one_key_and_neither_is_in_the_stores_files() {
    let gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    let (id, old) = (gate.key_id("bot"), gate.secret("bot").to_owned());
    ask(&gate, &old).await.is("3");
    // Who reads an older state keeps the WAL from being emptied into the store.
    let reader = rusqlite::Connection::open(gate.world().path("guildgate.db")).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM key").unwrap();
    let before = shown(&gate, &id);
    let new = rotate(&gate, &id, &[]);
    works(&gate, &new).await;
    ask(&gate, &old).await.is("3").is_hit();
    // Neither secret is in the store's files.
    let holds = |bytes: &[u8], needle: &[u8]| bytes.windows(needle.len()).any(|w| w == needle);
    // Both are looked through where they must be found: as digests.
    for (file, secret) in [("guildgate.db", &old), ("guildgate.db-wal", &old), ("guildgate.db-wal", &new)] {
        assert!(holds(&gate.world().read(file), &Sha256::digest(secret)), "{file} is not where the digests are");
    }
    for (path, bytes) in gate.world().files() {
        for secret in [&old, &new] {
            // The random part alone would do for a thief.
            assert!(!holds(&bytes, &secret.as_bytes()[3..46]), "{} holds a key", path.display());
        }
    }
    let mut after = shown(&gate, &id);
    // Without --overlap it is a day, as the contract's line shows.
    let ends = after.as_object_mut().unwrap().remove("previous_until").unwrap().as_i64().unwrap();
    assert!((ends - unix_now()).abs_diff(86_400) < 60, "{ends}");
    assert!(gate.run(&["key", "show", &id]).done().stdout.contains("previous until  2"));
    // Its last use alone may have moved on.
    for shown in [&mut after, &mut before.clone()] {
        shown.as_object_mut().unwrap().remove("last_used");
        assert_eq!(shown["id"], *id);
    }
    let names: Vec<&String> = after.as_object().unwrap().keys().collect();
    assert!(names.iter().all(|name| after[*name] == before[*name]), "{before} {after}");
    let (before, _) = (unix_now(), rotate(&gate, &id, &["--overlap", "2h"]));
    let ends = shown(&gate, &id)["previous_until"].as_i64().unwrap();
    assert!((before + 7200..=unix_now() + 7201).contains(&ends), "{ends}");
    let listed = gate.run(&["key", "list", "--json"]).done().list();
    let mut fields: Vec<&String> = listed[0].as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["created", "expires", "guild", "id", "last_used", "name", "previous_until", "scope", "tier"]);
}

#[test]
fn what_is_set_of_a_key_is_changed_and_the_rest_stays_and_nonsense_is_refused() {
    let (world, id) = world();
    let row = || world.run(&["key", "list", "--json"]).done().list().remove(0);
    let mut expected = row();
    for (change, field, value) in [
        (&["--name", "Ada's bot"][..], "name", serde_json::json!("Ada's bot")),
        (&["--tier", "gold"], "tier", "gold".into()),
        (&["--scope", "read"], "scope", "read".into()),
        (&["--expires", "4102444800"], "expires", 4_102_444_800_i64.into()),
        (&["--default-tier"], "tier", "standard".into()),
        (&["--expires", "never"], "expires", serde_json::Value::Null),
    ] {
        let ran = world.run(&[&["key", "set", &id], change].concat()).done();
        assert_eq!(ran.stdout, "");
        expected[field] = value;
        assert_eq!(row(), expected, "{change:?}");
    }
    world.run(&["key", "set", &id, "--name", "b", "--tier", "gold", "--scope", "write", "--expires", "1h"]).done();
    let row = row();
    assert_eq!((&row["name"], &row["tier"], &row["scope"]), (&"b".into(), &"gold".into(), &"write".into()));
    assert!((row["expires"].as_i64().unwrap() - unix_now()).abs_diff(3600) < 60, "{row}");
    // A change that makes no sense is refused by name and changes nothing.
    let before = world.run(&["key", "list", "--json"]).done().stdout;
    let ran = |args: &[&str]| world.run(&[&["key"], args].concat());
    ran(&["set", &id]).failed(2).names(&["--tier", "--scope", "--name", "--expires"]);
    ran(&["set", &id, "--tier", "gold", "--default-tier"]).failed(2);
    ran(&["set", &id, "--scope", "admin"]).failed(2).names(&["admin"]);
    ran(&["set", &id, "--expires", "soon"]).failed(2).names(&["soon", "never"]);
    ran(&["set", &id, "--name", "x", "--tier", "golf"]).failed(1).names(&["golf", "gold", "standard"]);
    ran(&["set", &id, "--name", "x", "--expires", "1000"]).failed(1).names(&["expires"]);
    ran(&["set", "nobody", "--name", "x"]).failed(1).names(&["nobody"]);
    ran(&["rotate"]).failed(2);
    ran(&["rotate", "nobody"]).failed(1).names(&["nobody"]);
    ran(&["rotate", &id, "--overlap", "366d"]).failed(2).names(&["366d", "365d"]);
    ran(&["rotate", &id, "--overlap", "soon"]).failed(2).names(&["soon"]);
    assert_eq!(world.run(&["key", "list", "--json"]).done().stdout, before);
    // A tier may have any name, "default" among them.
    world.write("gateway.toml", "[limits.tiers.standard]\n[limits.tiers.default]\nrate = \"1/s\"\n");
    world.run(&["key", "set", &id, "--tier", "default"]).done();
    assert_eq!(world.run(&["key", "list", "--json"]).done().list()[0]["tier"], "default");
}

/// A world with the tiers standard and gold and one key, and that key's id.
fn world() -> (World, String) {
    let world = World::new("[limits.tiers.standard]\n[limits.tiers.gold]\nrate = \"100/s\"\nburst = 200\n");
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    world.run(&["key", "create", "--guild", GUILD, "--name", "bot"]).done();
    let id = world.run(&["key", "list", "--json"]).done().list()[0]["id"].as_str().unwrap().to_owned();
    (world, id)
}
