//! Contract section 3, `[origin]`: upstreams over https, the roots that they are verified with, and our own certificate.

use nix::sys::signal::Signal;
use tokio_rustls::rustls::version::{TLS12, TLS13};

use crate::support::*;

/// A world with this upstream and this `origin.tls`.
async fn world(origin: &ScriptedOrigin, tls: &str, files: &[(&str, String)]) -> (World, String) {
    let builder = TestGateway::before_http().key("bot").upstreams([origin.url()]).set("origin.tls", tls);
    let (world, _, secrets) = builder.prepare().await;
    for (name, content) in files {
        world.write(name, content);
    }
    (world, secrets["bot"].clone())
}

fn get_points(key: &str, member: &str) -> Request {
    Request::post("/getPoints", format!("memberID={member}")).key(key)
}

/// A gateway in this process with this upstream and this `origin.tls`, and these files beside it.
async fn gate(origin: &ScriptedOrigin, tls: &str, files: &[(&'static str, String)]) -> TestGateway {
    let builder = TestGateway::before_http().key("bot").upstreams([origin.url()]).set("origin.tls", tls);
    files.iter().fold(builder, |builder, (name, text)| builder.file(name, text)).start_here().await
}

/// The gateway's answer in this world, and its stderr.
async fn asked(world: &World, key: &str) -> (Answer, Process) {
    let mut process = world.serve(&[]);
    let address = process.ready().await;
    (Connection::to(address).await.ask(&get_points(key, "7")).await, process)
}

#[tokio::test]
async fn an_upstream_with_a_certificate_of_the_named_authority_is_asked_on_one_connection() {
    let authority = Authority::new();
    for config in [
        authority.server("127.0.0.1"),
        authority.server_of("127.0.0.1", &TLS12),
        authority.server_of("127.0.0.1", &TLS13),
        authority.server_speaking("127.0.0.1", &["h2", "http/1.1"]),
    ] {
        let origin = ScriptedOrigin::start_tls(config).await;
        origin.put_points("7", 3);
        let gate = gate(&origin, r#"{ ca = "ca.pem" }"#, &[("ca.pem", authority.pem())]).await;
        // Within one thread of the gateway, which keeps its connections to itself.
        let mut connection = gate.connect().await;
        connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
        let write = gate.request("setPoints", "bot", "memberID=7&amount=5");
        connection.ask(&write).await.is("Successfully set 'Ada' points to '5'");
        connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("5");
        assert!(origin.seen().iter().all(|seen| seen.connection == 0), "{:#?}", origin.seen());
    }
}

#[tokio::test]
async fn a_certificate_that_has_signed_itself_is_trusted_where_it_is_named() {
    let (config, certificate, _) = Authority::self_signed("127.0.0.1");
    let origin = ScriptedOrigin::start_tls(config).await;
    let gate = gate(&origin, r#"{ ca = "ca.pem" }"#, &[("ca.pem", certificate)]).await;
    gate.get_points("bot", "7").await.is("0");
}

#[tokio::test]
async fn whoever_cannot_prove_the_name_is_sent_nothing() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    for (config, reason) in [
        (stranger.server("127.0.0.1"), "is an intermediate missing?"),
        (authority.server_of_authority("127.0.0.1"), "is that of an authority"),
        (authority.server("guilds.example.org"), "not valid for name"),
        (authority.expired_server("127.0.0.1"), "expired"),
        (authority.server_speaking("127.0.0.1", &["h2"]), "NoApplicationProtocol"),
    ] {
        let origin = ScriptedOrigin::start_tls(config).await;
        let (world, key) = world(&origin, r#"{ ca = "ca.pem" }"#, &[("ca.pem", authority.pem())]).await;
        let (answer, process) = asked(&world, &key).await;
        answer.is_unavailable();
        assert_eq!(origin.seen().len(), 0);
        let told = || async { process.stderr().contains("request to upstream failed") };
        eventually(PATIENCE, "why it was not asked", told).await;
        assert!(process.stderr().contains(reason), "{reason} is not told:\n{}", process.stderr());
    }
}

#[tokio::test]
async fn the_certificate_is_for_the_host_without_its_port_or_for_server_name() {
    let authority = Authority::new();
    let origin = ScriptedOrigin::start_tls(authority.server("guilds.example.org")).await;
    for (host, tls) in [
        ("guilds.example.org", r#"{ ca = "ca.pem" }"#),
        ("guilds.example.org:8443", r#"{ ca = "ca.pem" }"#),
        ("other.example.org", r#"{ ca = "ca.pem", server_name = "guilds.example.org" }"#),
    ] {
        let builder = TestGateway::before_http().key("bot").upstreams([origin.url()]);
        let builder = builder.set("origin.tls", tls).set("origin.host", &format!("{host:?}"));
        let gate = builder.file("ca.pem", &authority.pem()).start_here().await;
        gate.get_points("bot", "7").await.is("0");
        assert_eq!(origin.seen().last().unwrap().header("host"), Some(host));
    }
}

#[tokio::test]
async fn without_a_named_authority_the_systems_are_trusted() {
    let authority = Authority::new();
    let origin = ScriptedOrigin::start_tls(authority.server("127.0.0.1")).await;
    let (world, key) = world(&origin, "{}", &[("system.pem", authority.pem())]).await;
    let config = world.path("gateway.toml");
    let mut command = world.command(&["serve", "--config", config.to_str().unwrap()]);
    let system = command.env("SSL_CERT_FILE", world.path("system.pem")).env_remove("SSL_CERT_DIR");
    let mut process = Process::start(system);
    let address = process.ready().await;
    Connection::to(address).await.ask(&get_points(&key, "7")).await.is("0");
    // Without any roots, the message says what to do.
    let empty = world.write("none.pem", "");
    let mut command = world.command(&["check", "--config", config.to_str().unwrap()]);
    let ran = Ran::of(command.env("SSL_CERT_FILE", empty).env_remove("SSL_CERT_DIR"), "").failed(2);
    ran.names(&["origin.tls.ca", "ca-certificates"]);
}

#[tokio::test]
async fn an_upstream_that_asks_who_we_are_is_told_by_certificate() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let origin = ScriptedOrigin::start_tls(authority.server_for("127.0.0.1", &clients)).await;
    let unknown = gate(&origin, r#"{ ca = "ca.pem" }"#, &[("ca.pem", authority.pem())]).await;
    unknown.get_points("bot", "7").await.is_refused(502, NO_ANSWER);
    assert_eq!(origin.seen().len(), 0);

    let (certificate, private_key) = clients.client();
    let files = [("ca.pem", authority.pem()), ("client.pem", certificate), ("client.key", private_key)];
    let named = r#"{ ca = "ca.pem", certificate = "client.pem", private_key = "client.key" }"#;
    let known = gate(&origin, named, &files).await;
    known.get_points("bot", "7").await.is("0");
    let secret = files[2].1.lines().nth(1).unwrap();
    assert!(!known.run(&["check"]).done().stdout.contains(secret));
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    let origin = ScriptedOrigin::start_tls(authority.server("127.0.0.1")).await;
    let ((certificate, key), (_, other_key)) = (authority.client(), authority.client());
    let files = [
        ("ca.pem", authority.pem()),
        ("empty.pem", String::new()),
        ("torn.pem", authority.pem()[..200].to_owned()),
        ("false.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned()),
        ("client.pem", certificate),
        ("client.key", key),
        ("other.key", other_key),
    ];
    for (tls, named) in [
        (r#"{ ca = "missing.pem" }"#, ["origin.tls.ca", "missing.pem"]),
        (r#"{ ca = "empty.pem" }"#, ["origin.tls.ca", "empty.pem"]),
        (r#"{ ca = "torn.pem" }"#, ["origin.tls.ca", "torn.pem"]),
        (r#"{ ca = "false.pem" }"#, ["origin.tls.ca", "false.pem"]),
        (
            r#"{ ca = "ca.pem", certificate = "client.key", private_key = "client.key" }"#,
            ["origin.tls.certificate", "client.key"],
        ),
        (
            r#"{ ca = "ca.pem", certificate = "client.pem", private_key = "client.pem" }"#,
            ["origin.tls.private_key", "client.pem"],
        ),
        (
            r#"{ ca = "ca.pem", certificate = "client.pem", private_key = "other.key" }"#,
            ["origin.tls.private_key", "other.key"],
        ),
    ] {
        let (world, _) = world(&origin, tls, &files).await;
        let said = world.faults();
        assert!(named.iter().all(|name| said.contains(name)), "{tls}: {said}");
    }
}

#[tokio::test]
async fn an_authority_that_changed_is_taken_up_and_a_bad_file_is_not() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let origin = ScriptedOrigin::start_tls(authority.server("127.0.0.1")).await;
    origin.put_points("7", 3);
    let (world, key) = world(&origin, r#"{ ca = "ca.pem" }"#, &[("ca.pem", stranger.pem())]).await;
    let (answer, process) = asked(&world, &key).await;
    answer.is_unavailable();
    let address = process.stderr().lines().find_map(|l| l.strip_prefix("ready: http://")?.parse().ok()).unwrap();
    let aside = world.write("ca.pem.new", authority.pem());
    std::fs::rename(aside, world.path("ca.pem")).unwrap();
    eventually(PATIENCE, "the other authority", || async {
        Connection::to(address).await.ask(&get_points(&key, "7")).await.body == "3"
    })
    .await;
    world.write("ca.pem", "no PEM at all");
    process.signal(Signal::SIGHUP);
    process.has_said("contains no certificate").await;
    Connection::to(address).await.ask(&get_points(&key, "8")).await.is("0");
}
