//! TLS to PostgreSQL: `sslmode` in `origin.store` means what it means to libpq.

use crate::support::*;

#[tokio::test]
async fn sslmode_says_whether_the_server_is_verified() {
    let (ours, other) = (Authority::new(), Authority::new());
    let (certificate, key) = ours.pem_for("127.0.0.1");
    let files = [("server.pem", certificate.as_str()), ("server.key", key.as_str())];
    let settings = ["ssl = on", "ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.key'"];
    let server = Postgres::start_with(&settings, &files);
    let url = server.database().await;
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
}

#[tokio::test]
async fn sslmode_require_does_not_do_without_tls() {
    let url = Postgres::shared().database().await;
    let world = World::new(&format!("[origin]\nstore = \"{url}?sslmode=require\"\n"));
    let ran =
        world.run(&["guild", "list"]).failed(1).names(&["server does not support TLS", "ssl = on", "sslmode=prefer"]);
    assert!(!ran.stderr.contains("is the server running"), "{ran:?}");
    world.write("gateway.toml", format!("[origin]\nstore = \"{url}\"\n"));
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
}
