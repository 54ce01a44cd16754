//! Contract section 2, `serve`: readiness, the end, and the demo.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::support::*;

/// A gateway with a write that the origin holds: its connection, and what lets it go.
async fn during_a_request(drain: &str) -> (TestGateway, Connection, Gate) {
    let gate = TestGateway::before_http()
        .key("bot")
        .points("7", 3)
        .set("server.drain_timeout", &format!("{drain:?}"))
        .set("origin.timeout", r#""60s""#)
        .start()
        .await;
    let hold = Gate::shut();
    gate.origin().next("setPoints", Act::HoldAll(hold.clone()));
    let connection = gate.connect_and_send(gate.request("setPoints", "bot", "memberID=7&amount=5")).await;
    gate.origin().has_been_asked("setPoints", 1).await;
    (gate, connection, hold)
}

#[tokio::test]
async fn the_ready_line_comes_once_it_accepts() {
    let gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    gate.get_points("bot", "7").await.is("3");
    let ready: Vec<_> = gate.stderr().lines().filter(|l| l.starts_with("ready: ")).map(str::to_owned).collect();
    assert_eq!(ready, [format!("ready: http://{}", gate.address())]);
}

#[tokio::test]
async fn it_listens_on_every_address_it_is_told() {
    let gate = TestGateway::builder()
        .key("bot")
        .points("7", 3)
        .set("server.listen", r#"["127.0.0.1:0", "unix:gate.sock"]"#)
        .start()
        .await;
    gate.get_points("bot", "7").await.is("3");
    let mut socket = tokio::net::UnixStream::connect(gate.world().path("gate.sock")).await.unwrap();
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let request = gate.request("getPoints", "bot", "memberID=7").header("Connection", "close");
    socket.write_all(&request.bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await.expect("no answer on the socket").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n3"), "{answer}");
}

#[tokio::test]
async fn it_listens_on_all_addresses_of_both_kinds_where_both_are_named() {
    // A port that is free for both.
    let port = std::net::TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port();
    let world =
        World::new(&format!("[server]\nlisten = [\"0.0.0.0:{port}\", \"[::]:{port}\"]\n[admin]\nlisten = \"\"\n"));
    world.run(&["check"]).done();
    let mut process = world.serve(&[]);
    process.ready().await;
    for address in ["127.0.0.1", "[::1]"] {
        assert!(is_served(format!("{address}:{port}").parse().unwrap()).await, "{address}");
    }
}

#[tokio::test]
async fn the_service_manager_is_told_at_an_abstract_address_too() {
    use std::os::linux::net::SocketAddrExt;
    let world = World::plain();
    let name = world.path("notify").display().to_string();
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let manager = std::os::unix::net::UnixDatagram::bind_addr(&address).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut process = Process::start(world.command(&["serve"]).env("NOTIFY_SOCKET", format!("@{name}")));
    process.ready().await;
    let mut told = [0; 64];
    let length = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..length], b"READY=1\n");
}

#[tokio::test]
async fn sigterm_and_sigint_let_a_request_finish_and_exit_0() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT] {
        let (mut gate, mut connection, hold) = during_a_request("30s").await;
        gate.process().signal(Signal::SIGUSR2); // means something to other servers, and ends nothing here
        gate.process().signal(signal);
        let address = gate.address();
        eventually(PATIENCE, "no new connections", || async { !is_served(address).await }).await;
        hold.open();
        let answer = connection.answer().await;
        assert!(answer.is("Successfully set 'Ada' points to '5'").closes(), "{answer:#?}");
        connection.is_closed().await;
        assert_eq!(gate.process().exit().await, Some(0), "{signal}; stderr:\n{}", gate.stderr());
    }
}

/// Whether a new connection gets an answer other than 503 from the health path.
async fn is_served(address: std::net::SocketAddr) -> bool {
    let Ok(mut connection) = Connection::try_to(address).await else { return false };
    if connection.try_send(Request::bare("GET", "/healthz").bytes()).await.is_err() {
        return false;
    }
    connection.answer_if_any().await.is_some_and(|answer| answer.status == 200)
}

#[tokio::test]
async fn the_drain_ends_at_its_time_out_and_still_exits_0() {
    let (mut gate, _connection, _never_opened) = during_a_request("300ms").await;
    assert_eq!(gate.stop().await, Some(0), "stderr:\n{}", gate.stderr());
}

#[tokio::test]
async fn a_kept_connection_is_told_in_the_answer_to_a_request_that_was_on_its_way() {
    let mut gate =
        TestGateway::builder().key("bot").points("7", 3).set("server.drain_timeout", r#""60s""#).start().await;
    let mut connection = gate.connect().await;
    let ask = gate.request("getPoints", "bot", "memberID=7").bytes();
    connection.send(&ask).await;
    connection.answer().await.is("3");
    // One that has begun is read to its end, however long after the signal that comes.
    connection.send(&ask[..20]).await;
    gate.get_points("bot", "7").await.is("3"); // read after it, most likely
    gate.process().signal(Signal::SIGTERM);
    gate.has_said("stopping").await;
    connection.send(&ask[20..]).await;
    assert!(connection.answer().await.is("3").closes());
    connection.is_closed().await;
    assert_eq!(gate.process().exit().await, Some(0));
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_up_the_end() {
    let mut gate =
        TestGateway::builder().key("bot").points("7", 3).set("server.drain_timeout", r#""60s""#).start().await;
    let mut connection = gate.connect().await;
    connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    let _silent = gate.connect().await;
    assert_eq!(gate.stop().await, Some(0)); // waits for 15 s, not for 60
    connection.is_closed().await;
}

#[tokio::test]
async fn an_empty_config_without_a_store_is_made_ready() {
    let world = World::plain();
    let mut process = world.serve(&[]);
    let mut connection = Connection::to(process.ready().await).await;
    connection.ask(&Request::post("/getPoints", "memberID=7").key("x")).await.is_refused(401, INCORRECT_KEY);
    assert!(world.path("guildgate.db").is_file(), "relative paths start at the config's folder");
}

#[tokio::test]
async fn the_config_may_be_named_by_the_environment() {
    let world = World::plain();
    let elsewhere = tempfile::tempdir().unwrap();
    let mut command = world.command(&["serve"]);
    command.current_dir(elsewhere.path()).env("GUILDGATE_CONFIG", world.path("gateway.toml"));
    Process::start(&mut command).ready().await;
    assert!(world.path("guildgate.db").is_file());
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0, "nothing is made where it was started");
}

#[tokio::test]
async fn the_demos_curl_line_works_as_it_is_printed_and_its_key_reads_and_writes_everything() {
    let world = World::plain();
    let mut process = world.serve(&["--demo"]);
    let address = process.ready().await;
    assert!(address.ip().is_loopback());
    let line = || process.stdout().lines().find(|line| line.starts_with("curl ")).map(str::to_owned);
    eventually(PATIENCE, "a line that begins with `curl `", || async { line().is_some() }).await;
    let line = line().unwrap();
    let ran = Ran::of(Command::new("sh").args(["-c", &line]).env("no_proxy", "*"), "").done();
    assert!(ran.stdout.trim().parse::<i64>().is_ok_and(|points| points != 0), "{line}\n{ran:#?}");
    let words: Vec<&str> = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    let key = words.iter().find(|w| w.starts_with("gg_")).unwrap();
    assert_eq!(key.len(), 52, "{line}");
    let member = words.iter().position(|w| *w == "memberID").map(|at| words[at + 1]).unwrap();
    let mut connection = Connection::to(address).await;
    let post = |path: &str, more: &str| Request::post(path, format!("memberID={member}{more}")).key(key);
    for (path, more, answer) in [
        ("/getWarns", "", "{warns_"),
        ("/getReviews", "", "{reviews_"),
        ("/setPoints", "&amount=77", "Successfully set"),
        ("/getPoints", "", "77"),
    ] {
        let answered = connection.ask(&post(path, more)).await;
        assert!(answered.status == 200 && answered.body.starts_with(answer), "{answered:#?}");
    }
    assert!(!world.path("guildgate.db").exists(), "the demo's store is a throw-away one");
}
