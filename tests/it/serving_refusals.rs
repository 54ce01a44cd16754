//! `serve` that cannot: one clear line, no panic, the right exit code.

use crate::support::*;

/// Runs `serve` to its end, which must come by itself.
async fn ends(world: &World) -> (Option<i32>, String) {
    let mut process = world.serve(&[]);
    let code = process.exit().await;
    // The catching threads may be a moment behind the end.
    eventually(PATIENCE, "something on stderr", || async { !process.stderr().is_empty() }).await;
    let stderr = process.stderr();
    assert!(!stderr.contains("panicked") && !stderr.contains("RUST_BACKTRACE"), "{stderr}");
    assert!(!stderr.contains("ready: "), "{stderr}");
    (code, stderr)
}

fn config(more: &str) -> World {
    World::new(&format!("{more}\n[admin]\nlisten = \"\"\n"))
}

#[tokio::test]
async fn a_start_that_cannot_be_is_one_line_and_the_right_exit_code() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, stderr) = ends(&config(&format!("[server]\nlisten = [\"{address}\"]"))).await;
    assert!(code == Some(1) && stderr.contains(&address), "{code:?} {stderr}");
    an_address_of_the_admin_listener_in_use(&taken).await;
    a_start_that_fails_says_why_as_json(&address).await;
    bad_usage();
    // A port that is not for this user, in a network of its own, where no other setting of the machine's holds.
    let as_root: &[&str] = if nix::unistd::geteuid().is_root() { &[] } else { &["--map-root-user"] };
    let alone = [&["unshare", "--net"], as_root, &["setpriv", "--bounding-set=-net_bind_service"]].concat();
    let words = ["cannot listen on 0.0.0.0:80: this user may not", "CAP_NET_BIND_SERVICE"];
    config("[server]\nlisten = [\"0.0.0.0:80\"]").run_by(&alone, &["serve"]).failed(1).names(&words);
    // A key file that is missing or bad is named and gives no key away.
    for keys in [
        None,
        Some("[[key]]\nid = \"a\"\ndigest = \"secret-in-the-wrong-place\"\nguild = \"1\"\n"),
        Some("[[key]]\nid = \"a\"\nguild = \"1\"\n"),
        Some("not toml at all secret-in-the-wrong-place"),
    ] {
        let world = config("[server]\nlisten = [\"127.0.0.1:0\"]\n[keys]\nsource = \"file\"\nfile = \"keys.toml\"");
        keys.map(|keys| world.write("keys.toml", keys));
        let (code, stderr) = ends(&world).await;
        assert!(code == Some(2) && stderr.contains("keys.toml"), "{keys:?}: {code:?} {stderr}");
        assert!(!stderr.contains("secret-in-the-wrong-place"), "{stderr}");
    }
}

/// It ends a server only where the file names it: the default address may be taken by anybody on this machine; if it is
/// free, the first one takes it.
async fn an_address_of_the_admin_listener_in_use(taken: &std::net::TcpListener) {
    let address = taken.local_addr().unwrap();
    let world = World::new(&format!("[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"{address}\"\n"));
    world.run(&["serve"]).failed(1).names(&["in use", "change admin.listen"]);
    let both = [(); 2].map(|()| World::new("[server]\nlisten = [\"127.0.0.1:0\"]\n"));
    let mut processes = both.each_ref().map(|world| world.serve(&[]));
    for process in &mut processes {
        process.ready().await;
    }
    let has_warned = |process: &Process| process.stderr().contains("This process has no admin listener");
    assert!(processes.iter().any(has_warned), "{:?}", processes.each_ref().map(|p| p.stderr()));
}

/// Where that is the format of the log.
async fn a_start_that_fails_says_why_as_json(address: &str) {
    for (config, code) in [
        (format!("[server]\nlisten = [\"{address}\"]\n"), 1),
        ("[server]\ntls = { certificate = \"cert.pem\", private_key = \"key.pem\" }\n".to_owned(), 2),
    ] {
        let world = World::new(&format!("{config}[admin]\nlisten = \"\"\n[log]\nformat = \"json\"\n"));
        let identity = Identity::new();
        world.put_identity(&identity);
        world.write("key.pem", Identity::new().private_key); // of another certificate
        let mut process = world.serve(&[]);
        assert_eq!(process.exit().await, Some(code), "{}", process.stderr());
        let lines = process
            .stderr()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect::<Vec<serde_json::Value>>();
        assert!(lines.iter().any(|line| line["level"] == "ERROR"), "{lines:?}");
    }
}

/// Bad usage, or a configuration that was named and is not there.
fn bad_usage() {
    let world = World::plain();
    let missing = world.path("nowhere.toml");
    for command in ["serve", "check"] {
        let args = [command, "--config", missing.to_str().unwrap()];
        Ran::of(&mut world.command(&args), "").failed(2).names(&["nowhere.toml"]);
    }
    Ran::of(world.command(&["check"]).env("GUILDGATE_CONFIG", &missing), "").failed(2).names(&["nowhere.toml"]);
    for args in [&["sevre"][..], &[], &["serve", "--demmo"], &["key"], &["key", "create"], &["guild", "add"]] {
        Ran::of(&mut world.command(args), "").failed(2);
    }
    for args in [&["--help"][..], &["serve", "--help"], &["key", "create", "--help"], &["import", "--help"]] {
        let ran = Ran::of(&mut world.command(args), "").done();
        assert!(ran.stdout.contains("--config") || args == ["--help"], "{ran:#?}");
    }
}
