//! `origin.store` as a `postgres://` URL (contract sections 2 and 3): a server that cannot be had is named with what it
//! said and what to do, `sslmode` means what it means to libpq, and no message holds a password.

use crate::support::*;

/// Who has a password on the server: its rules let everybody else in without.
const RULES: &str = "host all guildgate 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";

const TLS: [&str; 3] = ["ssl = on", "ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.key'"];

fn config(store: &str) -> String {
    format!("[server]\nlisten = [\"127.0.0.1:0\"]\n[origin]\nstore = {store:?}\n[admin]\nlisten = \"\"\n")
}

const COMMANDS: [&[&str]; 4] =
    [&["serve"], &["guild", "add", GUILD, "--name", "Night Watch"], &["key", "list"], &["check"]];

#[tokio::test]
async fn a_server_that_refuses_is_named_with_what_it_said_and_never_the_password_and_sslmode_says_whether_it_is_verified()
 {
    let ours = Authority::new();
    let (certificate, key) = ours.pem_for("127.0.0.1");
    let files = [("pg_hba.conf", RULES), ("server.pem", certificate.as_str()), ("server.key", key.as_str())];
    let server = Postgres::start_with(&TLS, &files);
    let url = server.database().await;
    one_that_refuses_is_named_with_what_it_said_and_never_the_password(&server, &url).await;
    a_url_with_a_slip_is_named_by_check_without_its_password();
    sslmode_says_whether_the_server_is_verified(&ours, &server.database().await).await;
}

/// `hunter2` is the password of a user `bot` of this database.
async fn one_that_refuses_is_named_with_what_it_said_and_never_the_password(server: &Postgres, url: &str) {
    let admin = postgres::connect(url).await;
    admin.batch_execute("CREATE ROLE bot LOGIN PASSWORD 'hunter2'").await.unwrap();
    let name = url.rsplit('/').next().unwrap();
    admin.batch_execute(&format!("GRANT ALL ON DATABASE {name} TO bot")).await.unwrap();
    let (url, password) = (url.replace("guildgate@", "bot@"), "hunter2");
    let port = server.port().to_string();
    let closed = free_address().port().to_string();
    let with = |password: &str| url.replace("bot@", &format!("bot:{password}@"));
    for (url, words) in [
        (url.clone(), ["password missing", "what origin.store says"]),
        (with("wrong-one"), ["password authentication failed for user \"bot\"", "lets this user in"]),
        (with(password).replace(&port, &closed), ["Connection refused", "check that the server runs"]),
        (with(password) + "x", ["does not exist", "what origin.store says"]),
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

fn a_url_with_a_slip_is_named_by_check_without_its_password() {
    for (url, words) in [
        ("postgres://me:hunter2@host/db?sslmod=require", "names are sslmode"),
        ("postgres//me:hunter2@host/db", "is no usable postgres:// URL"),
        ("postgres://me:hun@ter2@host/db", "%40"),
        ("postgres://me:hunter2@nowhere.invalid/db", "cannot connect to PostgreSQL at"),
    ] {
        let world = World::new(&config(url));
        let ran = world.run(&["check"]).failed(2).names(&["gateway.toml:4:9: origin.store", words]);
        assert!(!ran.stderr.contains("ter2") && !ran.stdout.contains("ter2"), "{ran:?}");
    }
}

async fn sslmode_says_whether_the_server_is_verified(ours: &Authority, url: &str) {
    let other = Authority::new();
    let world = World::new("");
    world.write("ours.pem", ours.pem());
    world.write("other.pem", other.pem());
    let with = |query: &str, host: &str| {
        let url = format!("{}?{query}", url.replace("127.0.0.1", host));
        world.write("gateway.toml", format!("[origin]\nstore = {url:?}\n"));
        world.run(&["guild", "list"])
    };
    world.write("gateway.toml", format!("[origin]\nstore = {url:?}\n"));
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    for query in [
        "sslmode=disable",
        "",
        "sslmode=require",
        "sslmode=verify-ca&sslrootcert=ours.pem",
        "sslmode=verify-full&sslrootcert=ours.pem",
    ] {
        with(query, "127.0.0.1").done();
    }
    for query in [
        "sslmode=verify-ca&sslrootcert=other.pem",
        "sslmode=verify-full&sslrootcert=other.pem",
        "sslmode=verify-full",
        "sslmode=verify-full&sslrootcert=none.pem",
    ] {
        let ran = with(query, "127.0.0.1").failed(1);
        assert!(ran.stderr.contains("ertificate") || ran.stderr.contains("none.pem"), "{query}: {ran:?}");
    }
    // The certificate is for the address, and not for the name.
    with("sslmode=verify-ca&sslrootcert=ours.pem", "localhost").done();
    with("sslmode=verify-full&sslrootcert=ours.pem", "localhost").failed(1);
    let without_tls = Postgres::shared().database().await;
    world.write("gateway.toml", format!("[origin]\nstore = \"{without_tls}?sslmode=require\"\n"));
    world.run(&["guild", "list"]).failed(1).names(&["server does not support TLS"]);
}

#[tokio::test]
async fn a_certificate_of_the_server_that_has_signed_itself_is_trusted_where_it_is_named() {
    let (_, certificate, key) = Authority::self_signed("127.0.0.1");
    let files = [("server.pem", &*certificate), ("server.key", &*key)];
    let server = Postgres::start_with(&TLS, &files);
    let url = format!("{}?sslmode=verify-full&sslrootcert=ours.pem", server.database().await);
    let world = World::new(&format!("[origin]\nstore = {url:?}\n"));
    world.write("ours.pem", &certificate);
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    world.write("ours.pem", Authority::new().pem());
    world.run(&["guild", "list"]).failed(1).names(&["that of an authority (CA:TRUE) and itself not in", "ours.pem"]);
}
