//! Contract section 2, `serve`: readiness, the end, and the demo.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::*;

/// A gateway with a write that the origin holds: its connection, and what lets it go.
async fn during_a_request(drain: &str, delay: &str) -> (TestGateway, Connection, Gate) {
    let gate = TestGateway::before_http()
        .key("bot")
        .points("7", 3)
        .set("server.drain_timeout", &format!("{drain:?}"))
        .set("server.drain_delay", &format!("{delay:?}"))
        .set("server.body_timeout", r#""60s""#)
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
async fn an_empty_store_is_made_every_address_is_served_and_the_service_manager_is_told_when_it_is_ready() {
    use std::os::linux::net::SocketAddrExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    // A port that is free for both kinds of addresses.
    let port = std::net::TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port();
    let listen = format!("\"0.0.0.0:{port}\", \"[::]:{port}\", \"unix:gate.sock\"");
    let world = World::new(&format!("[server]\nlisten = [{listen}]\n[admin]\nlisten = \"\"\n"));
    world.run(&["check"]).done();
    // An abstract address.
    let name = world.path("notify").display().to_string();
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let manager = std::os::unix::net::UnixDatagram::bind_addr(&address).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    // The configuration is named by the environment, and relative paths start at its folder.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut command = world.command(&["serve"]);
    command.current_dir(elsewhere.path()).env("GUILDGATE_CONFIG", world.path("gateway.toml"));
    let mut process = Process::start(command.env("NOTIFY_SOCKET", format!("@{name}")));
    process.ready().await;
    let ready: Vec<_> = process.stderr().lines().filter(|l| l.starts_with("ready: ")).map(str::to_owned).collect();
    assert_eq!(ready[..2], [format!("ready: http://0.0.0.0:{port}"), format!("ready: http://[::]:{port}")]);
    let mut told = [0; 64];
    let length = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..length], b"READY=1\n");
    assert!(world.path("guildgate.db").is_file());
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0, "nothing is made where it was started");
    let request = Request::post("/getPoints", "memberID=7").key("x");
    for address in ["127.0.0.1", "[::1]"] {
        let mut connection = Connection::to(format!("{address}:{port}").parse().unwrap()).await;
        connection.ask(&request).await.is_refused(401, INCORRECT_KEY);
    }
    let mut socket = tokio::net::UnixStream::connect(world.path("gate.sock")).await.unwrap();
    socket.write_all(&request.header("Connection", "close").bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await.expect("no answer on the socket").unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.ends_with(INCORRECT_KEY), "{answer}");
    the_first_line_says_what_starts_and_by_which_configuration().await;
}

async fn the_first_line_says_what_starts_and_by_which_configuration() {
    let world = World::new("[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n");
    let (path, folder) = (world.path("gateway.toml"), world.path(""));
    let with_file = format!("config=\"{}\" hash=", path.display());
    let folder = folder.canonicalize().unwrap();
    let without = format!("config=\"no gateway.toml in {}; using the defaults\" hash=", folder.display());
    for config in [with_file, without] {
        // Whether the default address is free does not matter here.
        let mut process = Process::start(&mut world.command(&["serve"]));
        process.has_said("\n").await;
        let said = process.stderr();
        let (before, hash) = said.lines().next().unwrap().split_once(&config).unwrap_or_else(|| panic!("{said}"));
        assert!(before.ends_with(&format!("guildgate starts version=\"{}\" ", env!("CARGO_PKG_VERSION"))), "{said}");
        assert!(hash.len() == 12 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()), "{said}");
        if !path.exists() {
            continue;
        }
        // The default file that is removed is no reason for the defaults.
        process.ready().await;
        std::fs::remove_file(&path).unwrap();
        process.signal(Signal::SIGHUP);
        process.has_said("gateway.toml is missing").await;
        assert!(!process.stderr().contains("configuration reloaded"), "{}", process.stderr());
    }
}

#[tokio::test]
async fn a_signal_lets_requests_finish_and_idle_connections_close_after_the_delay_within_the_drain_time_out() {
    for (signal, delay) in [(Signal::SIGTERM, "0s"), (Signal::SIGINT, "300ms"), (Signal::SIGQUIT, "0s")] {
        let (mut gate, mut connection, hold) = during_a_request("60s", delay).await;
        let ask = gate.request("getPoints", "bot", "memberID=8").bytes();
        let (mut idle, _silent) = (gate.connect_and_send(ask.clone()).await, gate.connect().await);
        idle.answer().await.is("0");
        // One that has begun is read to its end, however long after the signal that comes.
        let mut begun = gate.connect_and_send(ask.clone()).await;
        begun.answer().await.is("0");
        begun.send(&ask[..20]).await;
        gate.has_read_requests().await;
        gate.process().signal(Signal::SIGUSR2); // means something to other servers, and ends nothing here
        let begin = Instant::now();
        gate.process().signal(signal);
        let address = gate.address();
        if delay != "0s" {
            gate.has_said("stopping after server.drain_delay").await;
            assert_eq!(gate.send(&Request::bare("GET", "/healthz")).await.status, 503, "the listener is open");
            eventually(PATIENCE, "the listener closes", async || Connection::try_to(address).await.is_err()).await;
            assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
        }
        eventually(PATIENCE, "no new connections", || async { !is_served(address).await }).await;
        idle.is_closed().await;
        begun.send(&ask[20..]).await;
        assert!(begun.answer().await.is("0").closes(), "{signal}");
        begun.is_closed().await;
        hold.open();
        let answer = connection.answer().await;
        assert!(answer.is("Successfully set 'Ada' points to '5'").closes(), "{signal}: {answer:#?}");
        connection.is_closed().await;
        assert_eq!(gate.process().exit().await, Some(0), "{signal}; stderr:\n{}", gate.stderr());
    }
    let (mut gate, _connection, _never_opened) = during_a_request("300ms", "0s").await;
    assert_eq!(gate.stop().await, Some(0), "stderr:\n{}", gate.stderr());
}

/// Whether a new connection gets an answer other than 503 from the health path.
async fn is_served(address: std::net::SocketAddr) -> bool {
    let Ok(mut connection) = Connection::try_to(address).await else { return false };
    if connection.try_send(Request::bare("GET", "/healthz").bytes()).await.is_err() {
        return false;
    }
    connection.answer_if_any().await.is_some_and(|answer| answer.status == 200)
}

async fn the_link_logs_in_once_and_the_pages_show_traffic(said: &str, admin: &AdminClient) {
    let link = said.lines().find(|line| line.contains("/login?once=")).unwrap_or_else(|| panic!("{said}"));
    let path = link.strip_prefix(&format!("http://{}", admin.address)).unwrap();
    let nobody = admin.with_token("");
    assert_eq!(nobody.get("/login?once=x").await.status, 200);
    let answer = nobody.get(path).await;
    let cookie = answer.header("set-cookie").split(';').next().unwrap().to_owned();
    assert_eq!((answer.status, answer.header("location")), (303, "/"), "{answer:?}");
    let dashboard = Dashboard { client: nobody.clone(), cookie };
    let is_refused = async || dashboard.get("/refusals").await.text.contains("over rate of free");
    eventually(PATIENCE, "one of the callers is over its limit", is_refused).await;
    let again = nobody.get(path).await;
    assert_eq!((again.status, again.header("set-cookie")), (200, ""), "{again:?}");
}

#[tokio::test]
async fn the_demos_curl_line_works_as_it_is_printed_and_it_takes_nothing_of_the_file() {
    let world = World::new("[admin]\nlisten = \"0.0.0.0:9180\"\n[log]\naudit = \"audit.log\"\n");
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

    process.has_said("admin listener ready url=\"http://127.0.0.1:").await;
    let said = process.stderr();
    assert!(said.lines().next().unwrap().contains("config=\"the demo's own settings\""), "{said}");
    let url = said.split("admin listener ready url=\"http://").nth(1).unwrap();
    let address = url.split('"').next().unwrap().parse().unwrap();
    let folders = std::fs::read_dir(world.path("")).unwrap().map(|entry| entry.unwrap().path());
    let folder = folders.into_iter().find(|path| path.display().to_string().contains("guildgate-demo-")).unwrap();
    let token = std::fs::read_to_string(folder.join("admin.token")).unwrap();
    let admin = AdminClient { address, token: token.trim_end().to_owned() };
    let config = admin.get("/api/config").await.is(200);
    let shown: toml::Table = config["toml"].as_str().unwrap().parse().unwrap();
    let text = |path: [&str; 2]| shown[path[0]][path[1]].as_str().unwrap();
    // Where its usual port is taken, it takes any.
    assert!([address.to_string(), "127.0.0.1:0".to_owned()].contains(&text(["admin", "listen"]).to_owned()));
    assert_eq!(text(["origin", "store"]), folder.join("guildgate.db").display().to_string());
    assert_eq!((text(["keys", "source"]), shown["log"].get("audit")), ("store", None));
    let page = Dashboard::log_in(&admin, &admin.token).await.get("/configuration").await.text;
    assert!(page.contains("This is a demo") && !page.contains("Reload the files"), "{page}");
    the_link_logs_in_once_and_the_pages_show_traffic(&process.stdout(), &admin).await;
}
