//! Contract section 2: `key`, and the key's format.

use std::os::unix::fs::PermissionsExt;

use sha2::Digest as _;

use crate::support::*;

fn world() -> World {
    let world = World::new(
        "[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n\
         [limits.tiers.standard]\nrate = \"20/s\"\n[limits.tiers.gold]\nrate = \"100/s\"\nburst = 200\n",
    );
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    world
}

fn create(world: &World, more: &[&str]) -> String {
    let created = world.run(&[&["key", "create", "--guild", GUILD], more].concat()).done();
    assert_eq!(created.stdout.lines().count(), 1, "the key stands alone on stdout: {created:?}");
    created.stdout.trim_end_matches('\n').to_owned()
}

fn mode(world: &World, file: &str) -> u32 {
    std::fs::metadata(world.path(file)).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_list_tells_everything_but_the_key() {
    let world = world();
    let secret = create(&world, &["--name", "Ada's bot", "--tier", "gold", "--scope", "read", "--expires", "90d"]);
    let plain = create(&world, &[]);
    let listed = world.run(&["key", "list", "--json"]).done();
    let keys = listed.list();
    assert_eq!(keys.len(), 2);
    for key in &keys {
        for name in ["id", "name", "guild", "tier", "scope", "created", "expires", "last_used"] {
            assert!(key.get(name).is_some(), "{name} is missing: {key}");
        }
        assert_eq!(key["guild"], GUILD);
    }
    let ada = keys.iter().find(|k| k["name"] == "Ada's bot").unwrap();
    assert_eq!((&ada["tier"], &ada["scope"]), (&"gold".into(), &"read".into()));
    let other = keys.iter().find(|k| k["name"] != "Ada's bot").unwrap();
    assert_eq!(other["scope"], "write");
    assert!(other["expires"].is_null() && other["last_used"].is_null(), "{other}");
    let id = ada["id"].as_str().unwrap();
    let shown = world.run(&["key", "show", id]).done();
    let text = world.run(&["key", "list"]).done();
    assert!(shown.stdout.contains("Ada's bot") && text.stdout.contains(id), "{shown:?} {text:?}");
    for output in [listed.stdout, shown.stdout, text.stdout] {
        assert!(!output.contains(&secret[3..]) && !output.contains(&plain[3..]), "{output}");
    }
}

#[test]
fn a_key_is_made_as_json_with_what_is_told_of_it() {
    let world = world();
    let created = create(&world, &["--name", "Ada's bot", "--tier", "gold", "--expires", "2100-12-24", "--json"]);
    let created: serde_json::Value = serde_json::from_str(&created).unwrap();
    let mut told = created.as_object().unwrap().clone();
    let key = told.remove("key").unwrap();
    assert_eq!(key.as_str().unwrap().len(), 52, "{key}");
    let listed = world.run(&["key", "list", "--json"]).done().list();
    assert_eq!(listed, [serde_json::Value::Object(told)]);
    assert_eq!(listed[0]["expires"], 4_133_289_600_i64);
    let names: Vec<&String> = listed[0].as_object().unwrap().keys().collect();
    assert_eq!(names, ["created", "expires", "guild", "id", "last_used", "name", "previous_until", "scope", "tier"]);
    let digest = world.run_with_input(&["key", "hash"], key.as_str().unwrap()).done().stdout;
    assert!(digest.starts_with("sha256:"), "{digest}");
    let text = world.run(&["key", "list"]).done().stdout;
    assert!(text.starts_with("ID ") && text.contains("  2100-12-24T00:00:00Z  never "), "{text}");
}

#[test]
fn the_keys_of_one_guild_are_listed() {
    let world = world();
    world.run(&["guild", "add", "999", "--name", "Other"]).done();
    create(&world, &["--name", "here"]);
    world.run(&["key", "create", "--guild", "999", "--name", "there"]).done();
    let of = |guild: &str| world.run(&["key", "list", "--guild", guild, "--json"]).done().list();
    let (here, there) = (of(GUILD), of("999"));
    assert_eq!((here.len(), &here[0]["name"], there.len()), (1, &"here".into(), 1));
    let text = world.run(&["key", "list", "--guild", "999"]).done().stdout;
    assert!(text.contains("there") && text.lines().count() == 2, "{text}");
    world.run(&["guild", "add", "1000", "--name", "Empty"]).done();
    assert!(of("1000").is_empty());
    world.run(&["key", "list", "--guild", "404404"]).failed(1).names(&["404404", "guild list"]);
}

#[test]
fn a_key_cannot_be_made_to_end_in_the_past() {
    let world = world();
    create(&world, &[]);
    let id = world.run(&["key", "list", "--json"]).done().list()[0]["id"].as_str().unwrap().to_owned();
    for expires in ["2020-01-01", "1", "0s"] {
        let create = ["key", "create", "--guild", GUILD, "--expires", expires];
        world.run(&create).failed(1).names(&["not in the future"]);
        world.run(&["key", "set", &id, "--expires", expires]).failed(1).names(&["not in the future"]);
    }
    for late in ["253402300800", "9223372036854775807", "99999999d"] {
        let create = ["key", "create", "--guild", GUILD, "--expires", late];
        world.run(&create).failed(1).names(&["the latest end is 9999-12-31T23:59:59Z"]);
    }
    for unreadable in ["10000-01-01", "2100-12-24T00:00:00+25:00", "99999999999999999999"] {
        let create = ["key", "create", "--guild", GUILD, "--expires", unreadable];
        world.run(&create).failed(2).names(&["the latest is 9999-12-31T23:59:59Z"]);
    }
    world.run(&["key", "set", &id, "--expires", "9999-12-31"]).done();
    assert!(world.run(&["key", "list"]).done().stdout.contains(" 9999-12-31T00:00:00Z "));
    world.run(&["key", "set", &id, "--expires", "2100-12-24T18:00:00Z"]).done();
    assert_eq!(world.run(&["key", "list", "--json"]).done().list()[0]["expires"], 4_133_354_400_i64);
}

#[test]
fn bad_keys_are_not_made() {
    let world = world();
    let refused = |args: &[&str]| world.run(&[&["key", "create"], args].concat()).refused();
    refused(&["--guild", "404404"]).names(&["404404"]);
    refused(&["--guild", GUILD, "--tier", "golf"]).names(&["golf"]);
    refused(&["--guild", GUILD, "--scope", "admin"]);
    refused(&["--guild", GUILD, "--expires", "soon"]);
    assert!(world.run(&["key", "list", "--json"]).done().list().is_empty());
}

#[tokio::test]
async fn a_mistyped_key_is_refused() {
    let gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    let secret = gate.secret("bot").to_owned();
    gate.get_points("bot", "7").await.is("3");
    for at in [3, 20, 45, 46, 51] {
        let typed: String = secret
            .char_indices()
            .map(|(i, c)| match (i == at, c) {
                (true, 'a') => 'b',
                (true, _) => 'a',
                (false, c) => c,
            })
            .collect();
        let answer = gate.send(&Request::post("/getPoints", "memberID=7").key(&typed)).await;
        answer.is_refused(401, INCORRECT_KEY);
    }
    let swapped = format!("{}{}{}", &secret[..10], &secret[11..12], &secret[10..11]) + &secret[12..];
    if swapped != secret {
        gate.send(&Request::post("/getPoints", "memberID=7").key(&swapped)).await.is_refused(401, INCORRECT_KEY);
    }
}

#[tokio::test]
async fn a_running_servers_store_files_are_for_their_owner_only() {
    let gate = TestGateway::builder().key("bot").start().await;
    gate.set_points("bot", "7", 1).await;
    let files = gate.world().files();
    let mut checked = 0;
    for (path, _) in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("guildgate.db") {
            assert_eq!(mode(gate.world(), &name), 0o600, "{name}");
            checked += 1;
        }
    }
    assert!(checked > 0);
}

#[tokio::test]
async fn a_hash_from_stdin_works_in_a_key_file() {
    let world = World::plain();
    let digest = world.run_with_input(&["key", "hash"], "another service's key\n").done();
    let digest = digest.stdout.trim_end_matches('\n').to_owned();
    // sha256 of the key without the newline that ends the line.
    assert!(digest.starts_with("sha256:") && digest.len() == 7 + 64, "{digest}");
    assert_eq!(world.run_with_input(&["key", "hash"], "another service's key").done().stdout.trim_end(), digest);
    world.run_with_input(&["key", "hash"], "").refused();

    let world = World::new(
        "[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n[keys]\nsource = \"file\"\nfile = \"keys.toml\"\n",
    );
    world.run(&["guild", "add", GUILD, "--name", "N"]).done();
    world.write("keys.toml", format!("[[key]]\nid = \"old\"\ndigest = {digest:?}\nguild = {GUILD:?}\n"));
    let mut process = world.serve(&[]);
    let mut connection = Connection::to(process.ready().await).await;
    let request = Request::post("/getPoints", "memberID=7");
    connection.ask(&request.clone().key("another service's key")).await.is("0");
    connection.ask(&request.key("another service's keys")).await.is_refused(401, INCORRECT_KEY);
}

#[test]
fn a_mistyped_key_is_not_hashed_and_what_only_looks_like_one_is() {
    let world = world();
    let key = create(&world, &[]);
    world.run_with_input(&["key", "hash"], &key).done();
    let last = if key.ends_with('a') { "b" } else { "a" };
    let mistyped = format!("{}{last}", &key[..key.len() - 1]);
    let ran = world.run_with_input(&["key", "hash"], &mistyped).failed(1).names(&["checksum", "copy it again"]);
    assert!(ran.stdout.is_empty() && !ran.stderr.contains(&mistyped[3..]), "{ran:#?}");
    for other_service in [&key[..51], &format!("{key}a"), &format!("gg_{}", "-".repeat(49))] {
        world.run_with_input(&["key", "hash"], other_service).done();
    }
}

#[tokio::test]
async fn the_list_tells_when_a_key_was_last_used() {
    let gate = TestGateway::builder().key("bot").start().await;
    gate.get_points("bot", "7").await.is("0");
    let told = || async { !gate.run(&["key", "list", "--json"]).done().list()[0]["last_used"].is_null() };
    eventually(PATIENCE, "last_used is told", told).await;
    let text = gate.run(&["key", "list"]).done().stdout;
    assert!(text.contains("never") && text.contains("Z  bot"), "{text}");
}

#[test]
fn a_key_typed_where_an_id_belongs_is_not_shown() {
    let world = World::plain();
    world.run(&["guild", "add", GUILD, "--name", "N"]).done();
    let secret = create(&world, &["--name", "a"]);
    let secret = secret.trim();
    for args in [
        vec!["key", "show", secret],
        vec!["key", "revoke", secret],
        vec!["key", "rotate", secret],
        vec!["key", "set", secret, "--name", "b"],
        vec!["key", "create", "--guild", secret],
        vec!["key", "create", "--guild", GUILD, "--tier", secret],
        vec!["key", "create", "--guild", GUILD, "--scope", secret],
        vec!["guild", "leave", secret],
        vec![secret],
    ] {
        let ran = world.run(&args);
        assert!(!format!("{}{}", ran.stdout, ran.stderr).contains(&secret[3..]), "{ran:?}");
        assert!(ran.stderr.contains("gg_…"), "{args:?}: {ran:?}");
    }
}

#[test]
fn a_key_is_found_by_its_secret_with_what_is_wrong_with_it() {
    let world = world();
    let secret = create(&world, &["--tier", "gold", "--scope", "read"]);
    let id = world.run(&["key", "list", "--json"]).done().list()[0]["id"].as_str().unwrap().to_owned();
    let find = |key: &str| world.run_with_input(&["key", "find"], key);
    let found = find(&format!("{secret}\n")).done().stdout;
    assert!([&*id, GUILD, "gold", "read"].iter().all(|part| found.contains(part)), "{found}");
    assert!(!found.contains(&secret[3..]), "{found}");
    let json = world.run_with_input(&["key", "find", "--json"], &secret).done().stdout;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["id"], *id);
    world.run(&["guild", "leave", GUILD]).done();
    let left = find(&secret).done().stdout;
    assert!(left.contains(&id) && left.contains("wrong    the bot has left guild 81384788765712384 (03)"), "{left}");
    world.run(&["guild", "return", GUILD]).done();
    world.run(&["key", "rotate", &id]).done();
    assert!(find(&secret).done().stdout.contains("expires  2"), "the secret before a rotation ends");
    world.run(&["key", "rotate", &id]).done();
    find(&secret).failed(1).names(&["no key has this secret", "revoked", "no trace is kept"]);
    let last = if secret.ends_with('x') { 'y' } else { 'x' };
    find(&format!("{}{last}", &secret[..51])).failed(1).names(&["mistyped"]);
    let store = rusqlite::Connection::open(world.path("guildgate.db")).unwrap();
    store.execute("UPDATE key SET expires = 1700000000", []).unwrap();
    let digest = world.run_with_input(&["key", "hash"], &secret).done().stdout;
    let bytes: Vec<u8> = sha2::Sha256::digest(&secret).to_vec();
    store.execute("UPDATE key SET digest = ?1", [bytes]).unwrap();
    let expired = find(&secret).done().stdout;
    assert!(expired.contains("wrong    it expired at 2023-11-14T22:13:20Z"), "{expired}");
    // The keys of a file, whose guilds the store has.
    let config = world.text("gateway.toml");
    world.write("gateway.toml", format!("{config}[keys]\nsource = \"file\"\nfile = \"keys.toml\"\n"));
    let entry = |guild: &str| format!("[[key]]\nid = \"f\"\ndigest = \"{}\"\nguild = \"{guild}\"\n", digest.trim());
    world.write("keys.toml", entry(GUILD));
    let listed = find(&secret).done().stdout;
    assert!(listed.starts_with("id       f\n") && listed.ends_with("wrong    nothing\n"), "{listed}");
    world.write("keys.toml", entry("404"));
    assert!(find(&secret).done().stdout.contains("guild 404 is not in the store"));
}
