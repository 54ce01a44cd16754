//! A store that cannot be had (contract section 2: exit 1): the message names the server or the file, what it said or
//! whose it is, and what to do; and no message holds a password.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use crate::support::*;

/// Who has a password on the server of [`with_passwords`]: its rules let everybody else in without.
const RULES: &str = "host all guildgate 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";

/// A server that asks a user for a password, the URL of a database there, and that user's password.
async fn with_passwords() -> (Postgres, String, &'static str) {
    let server = Postgres::start_with(&[], &[("pg_hba.conf", RULES)]);
    let url = server.database().await;
    let name = url.rsplit('/').next().unwrap();
    let admin = postgres::connect(&url).await;
    admin.batch_execute("CREATE ROLE bot LOGIN PASSWORD 'hunter2'").await.unwrap();
    admin.batch_execute(&format!("GRANT ALL ON DATABASE {name} TO bot")).await.unwrap();
    (server, url.replace("guildgate@", "bot@"), "hunter2")
}

fn config(store: &str) -> String {
    format!("[server]\nlisten = [\"127.0.0.1:0\"]\n[origin]\nstore = {store:?}\n[admin]\nlisten = \"\"\n")
}

const COMMANDS: [&[&str]; 4] =
    [&["serve"], &["guild", "add", GUILD, "--name", "Night Watch"], &["key", "list"], &["check"]];

#[tokio::test]
async fn a_postgres_server_that_refuses_is_named_with_what_it_said_and_never_the_password() {
    let (server, url, password) = with_passwords().await;
    let port = server.port().to_string();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let with = |password: &str| url.replace("bot@", &format!("bot:{password}@"));
    for (url, words) in [
        (url.clone(), ["password missing", "origin.store has none"]),
        (with("wrong-one"), ["password authentication failed for user \"bot\"", "check user and password"]),
        (with(password).replace(&port, &closed), ["Connection refused", "is the server running"]),
        (with(password) + "x", ["does not exist", "createdb"]),
    ] {
        let world = World::new(&config(&url));
        let at = if words[0] == "Connection refused" { &closed } else { &port };
        let place = format!("cannot connect to PostgreSQL at postgres://bot@127.0.0.1:{at}/");
        for command in COMMANDS {
            let code = if command == ["check"] { 2 } else { 1 };
            let ran = world.run(command).failed(code).names(&[&place, words[0], words[1]]);
            let said = ran.stdout + &ran.stderr;
            for other in [password, "wrong-one", "the store is busy"] {
                assert!(!said.contains(other), "{command:?} says {other}: {said}");
            }
        }
    }
}

#[tokio::test]
async fn the_stores_url_is_read_from_a_file_as_every_secret_is() {
    let (_server, url, password) = with_passwords().await;
    let world = World::new(&config("file:store.url"));
    world.run(&["check"]).failed(2).names(&["origin.store", "store.url cannot be read"]);
    for (content, words) in [
        ("", "store.url is empty"),
        ("a.db\nb.db\n", "has several lines"),
        ("\u{1}", "control characters"),
        ("postgres://bot:hun@ter2@host/db\n", "%40"),
    ] {
        world.write("store.url", content);
        let ran = world.run(&["check"]).failed(2).names(&["gateway.toml:4:", "origin.store", words]);
        assert!(!ran.stderr.contains("ter2"), "{ran:?}");
    }
    world.write("store.url", b"\xff\xfe");
    world.run(&["check"]).failed(2).names(&["is not UTF-8 text"]);
    world.write("store.url", "x".repeat(17 << 10));
    world.run(&["check"]).failed(2).names(&["is larger than"]);
    // With or without an end of its line.
    for end in ["", "\n", "\r\n"] {
        world.write("store.url", url.replace("bot@", &format!("bot:{password}@")) + end);
        let ran = world.run(&["check"]).done();
        assert!(ran.stdout.contains("postgres://bot@") && !ran.stdout.contains(password), "{}", ran.stdout);
    }
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    let mut server = world.serve(&[]);
    server.ready().await;
    // A path is as good as a URL, and starts where every path of the configuration does.
    world.write("store.url", "there.db\n");
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    assert!(world.path("there.db").exists());
}

#[test]
fn a_store_of_another_user_is_named_with_its_owner_and_what_to_do() {
    if !nix::unistd::geteuid().is_root() {
        // Nobody else may give files away, but root has some everywhere.
        let world = World::new(&config("/etc/shadow"));
        world.run(&["key", "list"]).failed(1).names(&["/etc/shadow belongs to root and may not be used by", "chown"]);
        return;
    }
    let as_anybody = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"];
    let world = World::plain();
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    let store = world.path("guildgate.db");
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    chown(&store, Some(nobody.uid.as_raw()), None).unwrap();
    // Whether it can be read or not.
    for mode in [0o600, 0o644] {
        fs::set_permissions(&store, fs::Permissions::from_mode(mode)).unwrap();
        for command in [&["serve"][..], &["key", "list"], &["guild", "add", "1", "--name", "N"]] {
            let ran = world.run_by(&as_anybody, command).failed(1);
            ran.names(&[
                "guildgate.db belongs to nobody and may not be used by root",
                "run it as nobody",
                "chown root",
            ]);
        }
    }
    // Nor is a log that another user left, such as by a command.
    chown(&store, Some(0), None).unwrap();
    let log = world.write("guildgate.db-wal", "");
    chown(&log, Some(nobody.uid.as_raw()), None).unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o600)).unwrap();
    world.run_by(&as_anybody, &["key", "list"]).failed(1).names(&["guildgate.db-wal belongs to nobody"]);
    fs::remove_file(log).unwrap();
    // Nor is the folder, in which SQLite makes files.
    let folder = world.path("there");
    fs::create_dir(&folder).unwrap();
    fs::rename(&store, folder.join("guildgate.db")).unwrap();
    world.write("gateway.toml", config("there/guildgate.db"));
    chown(&folder, Some(nobody.uid.as_raw()), None).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    world.run_by(&as_anybody, &["key", "list"]).failed(1).names(&["there belongs to nobody"]);
}
