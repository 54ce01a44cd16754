//! Contract sections 3 and 4: where the admin listener listens, under which tokens, and what becomes of it when one
//! server takes another's place.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use crate::support::*;

fn world(admin: &str) -> World {
    World::new(&format!("[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\n{admin}\n"))
}

#[tokio::test]
async fn the_token_is_made_once_for_its_owner_only() {
    let mut gate = TestGateway::builder().admin().start().await;
    let admin = gate.admin().await;
    let path = gate.world().path("admin.token");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(admin.token.len(), 43);
    assert!(admin.token.bytes().all(|b| b.is_ascii_alphanumeric()));
    let said = gate.stderr();
    assert!(said.contains("admin.token") && !said.contains(&admin.token), "{said}");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    gate.restart().await;
    let again = gate.admin().await;
    assert_eq!(again.token, admin.token);
    again.get("/api/status").await.is(200);
    assert!(gate.stderr().contains("every user of this machine may read"), "{}", gate.stderr());
    let checked = gate.run(&["check"]).done().stdout;
    assert!(checked.contains("admin.token: every user of this machine may read"), "{checked}");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let checked = gate.run(&["check"]).done().stdout;
    assert!(!checked.contains("every user of this machine"), "{checked}");
}

#[tokio::test]
async fn what_is_unsafe_or_unusable_ends_check_and_serve_with_2() {
    let long = "0123456789abcdef";
    for (admin, words) in [
        ("listen = \"0.0.0.0:0\"".to_owned(), &["4:10", "beyond loopback", "admin.plaintext"][..]),
        ("token = \"short\"".to_owned(), &["5:9", "admin.token", "shorter than 16"]),
        (format!("token = \"{long}\"\nbot_token = \"{long}\""), &["6:13", "admin.bot_token", "another role"]),
        ("read_token = \"file:none\"".to_owned(), &["admin.read_token", "none cannot be read"]),
        ("read_token = \"env:GUILDGATE_NO_SUCH\"".to_owned(), &["GUILDGATE_NO_SUCH"]),
        (
            "tls = { certificate = \"no.pem\", private_key = \"no.pem\" }".to_owned(),
            &["admin.tls.certificate", "no.pem"],
        ),
    ] {
        let listen = if admin.contains("listen") { String::new() } else { "listen = \"127.0.0.1:0\"\n".to_owned() };
        let world = world(&format!("{listen}{admin}"));
        for command in ["check", "serve"] {
            let ran = world.run(&[command]).failed(2);
            let ran = if listen.is_empty() || words.len() < 3 { ran.names(&words[1..]) } else { ran.names(words) };
            assert!(!ran.stderr.contains(long), "{ran:?}");
        }
        assert!(!world.path("admin.token").exists(), "a check makes nothing");
    }
}

#[tokio::test]
async fn a_link_to_a_token_that_is_not_there_is_a_fault() {
    let world = world("listen = \"127.0.0.1:0\"");
    std::os::unix::fs::symlink("/nonexistent/token", world.path("admin.token")).unwrap();
    for command in ["check", "serve"] {
        let ran = world.run(&[command]).failed(2).names(&["admin.token", "cannot be read"]);
        assert!(!ran.stderr.contains("made the admin token"), "{ran:?}");
    }
}

#[tokio::test]
async fn an_address_in_use_ends_a_server_only_where_the_file_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let world = world(&format!("listen = \"{}\"", taken.local_addr().unwrap()));
    world.run(&["serve"]).failed(1).names(&["in use", "change admin.listen"]);
    // The default address may be taken by anybody on this machine; if it is free, the first one takes it.
    let both = [(); 2].map(|()| World::new("[server]\nlisten = [\"127.0.0.1:0\"]\n"));
    let mut processes = both.each_ref().map(|world| world.serve(&[]));
    for process in &mut processes {
        process.ready().await;
    }
    let has_warned = |process: &Process| process.stderr().contains("This process has no admin listener");
    assert!(processes.iter().any(has_warned), "{:?}", processes.each_ref().map(|p| p.stderr()));
}

#[tokio::test]
async fn beyond_loopback_it_speaks_tls() {
    let gate = TestGateway::builder()
        .tls()
        .set("admin.listen", r#""0.0.0.0:0""#)
        .set("admin.tls", r#"{ certificate = "cert.pem", private_key = "key.pem" }"#)
        .start()
        .await;
    let admin = gate.admin().await;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], admin.address.port()));
    let stream = gate.tls_client(&["http/1.1"]).connect(address).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let form = format!("token={}", admin.token);
    let request = format!(
        "POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: https://localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    tokio::io::AsyncWriteExt::write_all(&mut writer, request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut reader, &mut answer).await.unwrap();
    assert!(answer.contains("; HttpOnly; SameSite=Strict; Path=/; Secure\r\n"), "{answer}");
    assert!(gate.stderr().contains("url=\"https://0.0.0.0:"), "{}", gate.stderr());
}

#[tokio::test]
async fn its_thread_has_a_lower_priority_and_what_writes_to_the_store_has_not() {
    let mut gate = TestGateway::builder().admin().key("bot").start().await;
    let admin = gate.admin().await;
    admin.get("/api/guilds").await.is(200);
    let threads = gate.process().nice();
    let nice_of = |name: &str| threads.iter().filter(|(of, _)| of == name).map(|(_, nice)| *nice).collect::<Vec<_>>();
    assert_eq!(nice_of("admin"), [10]);
    assert_eq!(nice_of("store-writer"), nice_of("guildgate")[..1]);
}

#[tokio::test]
async fn a_demo_has_one_too_and_takes_nothing_of_the_file() {
    let world = World::new("[admin]\nlisten = \"0.0.0.0:9180\"\n[log]\naudit = \"audit.log\"\n");
    let mut demo = world.serve(&["--demo"]);
    demo.ready().await;
    demo.has_said("admin listener ready url=\"http://127.0.0.1:").await;
    assert!(demo.stderr().lines().next().unwrap().contains("config=\"the demo's own settings\""), "{}", demo.stderr());
    let url = demo.stderr().split("admin listener ready url=\"http://").nth(1).unwrap().to_owned();
    let address = url.split('"').next().unwrap().parse().unwrap();
    let folders = std::fs::read_dir(world.path("")).unwrap().map(|entry| entry.unwrap().path());
    let folder = folders.into_iter().find(|path| path.display().to_string().contains("guildgate-demo-")).unwrap();
    let token = std::fs::read_to_string(folder.join("admin.token")).unwrap();
    let admin = AdminClient { address, token: token.trim_end().to_owned() };
    let config = admin.get("/api/config").await.is(200);
    let shown: toml::Table = config["toml"].as_str().unwrap().parse().unwrap();
    let text = |path: [&str; 2]| shown[path[0]][path[1]].as_str().unwrap();
    assert_eq!(text(["admin", "listen"]), address.to_string());
    assert_eq!(text(["origin", "store"]), folder.join("guildgate.db").display().to_string());
    assert_eq!((text(["keys", "source"]), shown["log"].get("audit")), ("store", None));
    let page = Dashboard::log_in(&admin, &admin.token).await.get("/configuration").await.text;
    assert!(page.contains("This is a demo") && !page.contains("Reload the files"), "{page}");
}

#[tokio::test]
async fn the_successor_has_the_address_after_a_hand_over() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut gate = TestGateway::builder()
        .key("bot")
        .set("admin.listen", &format!("\"{port}\""))
        .set("server.handover", r#""handover.sock""#)
        .start()
        .await;
    let first = gate.admin().await.get("/api/status").await.is(200)["pid"].clone();
    for _ in 0..2 {
        let mut before = gate.replace().await;
        let admin = gate.admin().await;
        assert_eq!(admin.address, port);
        let status = admin.get("/api/status").await.is(200);
        assert_eq!((status["pid"].as_u64(), status["ready"].as_bool()), (Some(gate.process_id().into()), Some(true)));
        assert_ne!(status["pid"], first);
        assert_eq!(before.exit().await, Some(0), "{}", before.stderr());
        admin.get("/readyz").await;
    }
    assert!(!gate.stderr().contains("ERROR"), "{}", gate.stderr());
}
