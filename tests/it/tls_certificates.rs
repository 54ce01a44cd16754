//! Contract section 3, `server.tls`: the two files, and what becomes of a change of theirs.

use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;

use crate::support::*;

const TLS: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\n\
                   tls = { certificate = \"cert.pem\", private_key = \"key.pem\" }\n[admin]\nlisten = \"\"\n";

#[tokio::test]
async fn files_that_cannot_be_used_end_check_and_serve_and_are_named() {
    let (good, other) = (Identity::new(), Identity::new());
    let broken = good.certificate.replace("MII", "NII");
    assert_ne!(broken, good.certificate);
    let cases: [(&str, Option<&str>, Option<&str>, &str); 8] = [
        ("no certificate", None, Some(&good.private_key), "cert.pem"),
        ("no key", Some(&good.certificate), None, "key.pem"),
        ("an empty certificate", Some(""), Some(&good.private_key), "cert.pem"),
        ("an empty key", Some(&good.certificate), Some(""), "key.pem"),
        ("a key for a certificate", Some(&good.private_key), Some(&good.private_key), "cert.pem"),
        ("a certificate for a key", Some(&good.certificate), Some(&good.certificate), "key.pem"),
        ("a broken certificate", Some(&broken), Some(&good.private_key), "cert.pem"),
        ("another's key", Some(&good.certificate), Some(&other.private_key), "key.pem"),
    ];
    for (what, certificate, key, named) in cases {
        let world = World::new(TLS);
        certificate.map(|text| world.write("cert.pem", text));
        key.map(|text| world.write("key.pem", text));
        world.run(&["check"]).failed(2).names(&[named, "server.tls"]);
        let mut process = world.serve(&[]);
        assert_eq!(process.exit().await, Some(2), "{what}: {}", process.stderr());
        let stderr = process.stderr();
        assert!(stderr.contains(named) && !stderr.contains("ready"), "{what}: {stderr}");
        assert!(!stderr.contains("PRIVATE KEY") || key == Some(""), "{what}: {stderr}");
    }
    let world = World::new(TLS);
    world.put_identity(&good);
    let report = world.run(&["check"]).done().stdout;
    assert!(report.contains("cert.pem"), "{report}");
    let world = World::new(&TLS.replace("127.0.0.1:0", "unix:gate.sock"));
    world.put_identity(&good);
    world.run(&["check"]).failed(2).names(&["server.tls", "needs a TCP address"]);
}

#[tokio::test]
async fn a_certificate_that_has_expired_ends_check_and_serve() {
    let expired = Identity::valid_until("2021-01-01".parse().unwrap());
    let world = World::new(TLS);
    world.put_identity(&expired);
    world.run(&["check"]).failed(2).names(&[
        "gateway.toml:3:",
        "server.tls.certificate",
        "cert.pem",
        "expired at 2021",
    ]);
    let mut process = world.serve(&[]);
    assert_eq!(process.exit().await, Some(2), "{}", process.stderr());
    assert!(process.stderr().contains("expired at 2021"), "{}", process.stderr());
}

#[tokio::test]
async fn a_certificate_that_ends_within_two_weeks_and_a_key_that_others_can_read_are_warned_of_by_check_and_at_the_start()
 {
    let day = chrono::DateTime::from_timestamp_secs(unix_now() + 10 * 86_400).unwrap().date_naive();
    for place in ["server", "admin"] {
        let [server, admin] = ["server", "admin"].map(|section| match section == place {
            true => "tls = { certificate = \"cert.pem\", private_key = \"key.pem\" }",
            false => "",
        });
        let world = World::new(&format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\n{server}\n[admin]\nlisten = \"127.0.0.1:0\"\n{admin}\n"
        ));
        world.put_identity(&Identity::valid_until(day));
        let mode = if place == "server" { 0o644 } else { 0o640 };
        std::fs::set_permissions(world.path("key.pem"), std::fs::Permissions::from_mode(mode)).unwrap();
        let warning = format!("{place}.tls.certificate ends at {day}T00:00:00Z; put a renewed one in its place");
        let report = world.run(&["check"]).done().stdout;
        assert!(report.contains(&warning), "{report}");
        assert_eq!(report.contains("chmod"), mode == 0o644, "{mode:o}");
        let process = world.serve(&[]);
        process.has_said(&format!("WARN {warning}")).await;
        if mode == 0o644 {
            process.has_said("chmod").await;
        }
    }
}

/// What a new connection is shown, by whoever of these is trusted.
async fn certificate_shown(gate: &TestGateway, of: &[&Identity]) -> Vec<u8> {
    let trusted: Vec<&str> = of.iter().map(|identity| identity.certificate.as_str()).collect();
    shown(&TlsClient::new(&trusted, &["http/1.1"]).connect(gate.address()).await.unwrap())
}

#[tokio::test]
async fn a_new_certificate_is_shown_without_a_connection_being_dropped_and_a_bad_one_is_not() {
    let mut gate = TestGateway::builder().tls().key("bot").points("7", 3).start().await;
    let request = gate.request("getPoints", "bot", "memberID=7");
    let (mut kept, mut kept_2) = (gate.connect().await, gate.http2().await);
    kept.ask(&request).await.is("3");
    kept_2.ask(&request).await.is("3");
    let certificate = gate.world().text("cert.pem");
    let first = Identity { certificate, private_key: String::new() };
    let before = certificate_shown(&gate, &[&first]).await;

    let second = Identity::new();
    gate.world().put_identity(&second);
    gate.process().signal(Signal::SIGHUP);
    eventually(PATIENCE, "the second certificate", || async {
        certificate_shown(&gate, &[&first, &second]).await != before
    })
    .await;
    let after = certificate_shown(&gate, &[&second]).await;

    // Without a signal as well, once both files stand still; halfway the pair does not match.
    gate.world().put_identity(&Identity::valid_until("2021-01-01".parse().unwrap()));
    gate.has_said("expired at 2021").await;
    assert_eq!(certificate_shown(&gate, &[&second]).await, after);
    let third = Identity::new();
    gate.world().write("cert.pem", &third.certificate);
    gate.has_said("is not the key of the first certificate").await;
    assert_eq!(certificate_shown(&gate, &[&second]).await, after);
    gate.world().write("key.pem", &third.private_key);
    eventually(PATIENCE, "the third certificate", || async {
        certificate_shown(&gate, &[&second, &third]).await != after
    })
    .await;
    kept.ask(&request).await.is("3");
    kept_2.ask(&request).await.is("3");
}
