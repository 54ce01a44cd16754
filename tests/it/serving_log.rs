//! Contract section 3, `[log]`: the access line of each request.

use serde_json::Value;

use crate::support::*;

fn gate(format: &str) -> Builder {
    TestGateway::builder().key("bot").points("7", 3).set("log.format", &format!("{format:?}"))
}

async fn some_requests(gate: &TestGateway) {
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(gate.set_points("bot", "7", 4).await.status, 200);
    assert_eq!(gate.get_points("bot", "x").await.code(), Some(5));
    assert_eq!(gate.send(&Request::post("/getPoints", "").key("nobody")).await.code(), Some(2));
    assert_eq!(gate.send(&Request::post("/nothing", "")).await.code(), Some(10));
}

#[tokio::test]
async fn the_access_log_has_a_line_a_request_with_the_keys_id_and_never_the_key() {
    for format in ["text", "json"] {
        let mut gate = gate(format).set("log.access", r#""access.log""#).start().await;
        let id = gate.key_id("bot");
        some_requests(&gate).await;
        assert_eq!(gate.stop().await, Some(0));
        let log = gate.world().text("access.log");
        assert_eq!(log.lines().count(), 6, "{log}");
        assert_eq!(log.lines().filter(|l| l.contains(&id)).count(), 4, "four requests had a known key: {log}");
        assert_eq!(log.lines().filter(|l| l.contains("getPoints")).count(), 4, "{log}");
        assert!(!log.contains(gate.secret("bot")) && !log.contains("nobody"), "{log}");
        if format == "json" {
            let lines = json_lines(&log);
            let statuses = [200, 400, 401, 404].map(|status| lines.iter().filter(|l| l["status"] == status).count());
            assert_eq!(statuses, [3, 1, 1, 1], "{log}");
            assert_eq!(lines.iter().filter(|line| line["key"] == *id).count(), 4, "{log}");
        }
    }
}

#[tokio::test]
async fn sigusr1_reopens_the_logs_and_reloads_nothing() {
    let mut gate = gate("text").set("log.access", r#""access.log""#).set("log.audit", r#""audit.log""#);
    gate = gate.set("log.decisions", r#""d.log""#).admin();
    let mut gate = gate.start().await;
    gate.get_points("bot", "7").await.is("3");
    let logs = ["access.log", "audit.log", "d.log"];
    gate.has_logged("access.log", "the first request", |line| line.contains("getPoints")).await;
    for turn in 0..3 {
        for log in logs {
            std::fs::rename(gate.world().path(log), gate.world().path(&format!("{log}.{turn}"))).unwrap();
        }
        gate.process().signal(nix::sys::signal::Signal::SIGUSR1);
        eventually(PATIENCE, "the logs are opened again", || async {
            logs.iter().all(|log| gate.world().path(log).exists())
        })
        .await;
        let id = gate.get_points("bot", "7").await.header("x-request-id").unwrap().to_owned();
        gate.has_logged("access.log", "the next request", |line| line.contains(&id)).await;
    }
    assert_eq!(gate.admin().await.get("/api/config").await.is(200)["reloads"], Value::Array(Vec::new()));
    assert_eq!(gate.stop().await, Some(0));
}

#[tokio::test]
async fn the_access_log_goes_to_stderr_unless_an_empty_setting_turns_it_off() {
    for (builder, lines) in [(gate("text"), 4), (gate("text").set("log.access", r#""""#), 0)] {
        let mut gate = builder.start().await;
        some_requests(&gate).await;
        assert_eq!(gate.stop().await, Some(0));
        assert_eq!(gate.stderr().matches("getPoints").count(), lines, "{}", gate.stderr());
    }
}

#[tokio::test]
async fn an_access_log_that_may_grow_no_longer_stops_no_answer() {
    let gate = TestGateway::before_http().key("bot").points("7", 3).set("log.access", r#""access.log""#);
    let gate = gate.launched_by(&["prlimit", "--fsize=65536"]).start().await;
    let mut connection = gate.connect().await;
    for _ in 0..1000 {
        connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    }
    gate.has_said("the access log cannot be written; its lines are lost").await;
    connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    assert_eq!(gate.world().read("access.log").len(), 65536);
}

#[tokio::test]
async fn a_stderr_that_nobody_reads_stops_neither_the_answers_nor_the_end() {
    let (world, _, secrets) = TestGateway::builder().key("bot").points("7", 3).prepare().await;
    let (mut process, address, _stderr) = Process::unread(&mut world.command(&["serve"]));
    fill_stderr(address, &secrets["bot"]).await;
    process.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(process.exit().await, Some(0));
}

/// Has an access line written for each of so many requests that a pipe is full which nobody reads: it holds 64 KiB, and
/// these lines are several times that.
pub async fn fill_stderr(address: std::net::SocketAddr, key: &str) {
    let mut connection = Connection::to(address).await;
    let request = Request::post("/getPoints", "memberID=7").key(key);
    for _ in 0..3000 {
        connection.ask(&request).await.is("3");
    }
}

#[tokio::test]
async fn the_request_that_proves_a_key_is_logged_with_its_operation() {
    let gate = TestGateway::before_http()
        .key("bot")
        .key("writer")
        .keys_at_the_origin()
        .set("log.format", r#""json""#)
        .set("log.access", r#""access.log""#);
    let mut gate = gate.start().await;
    assert_eq!(gate.get_warns("bot", "7").await.status, 200);
    assert_eq!(gate.set_points("writer", "7", 5).await.status, 200);
    assert_eq!(gate.send(&Request::post("/getPoints", "memberID=7").key("nobody")).await.code(), Some(2));
    assert_eq!(gate.stop().await, Some(0));
    let log = gate.world().text("access.log");
    let operations: Vec<Value> =
        log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["operation"].clone()).collect();
    assert_eq!(operations, ["getWarns", "setPoints", "getPoints"], "{log}");
}

/// Every line as JSON.
fn json_lines(stderr: &str) -> Vec<Value> {
    stderr.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}\n{stderr}"))).collect()
}

#[tokio::test]
async fn with_the_json_format_every_line_on_stderr_is_json() {
    use nix::sys::signal::Signal;

    let (world, _, secrets) = gate("json").prepare().await;
    let mut process = world.serve(&[]);
    let address = process.ready().await;
    let mut connection = Connection::to(address).await;
    connection.ask(&Request::post("/getPoints", "memberID=7").key(&secrets["bot"])).await.is("3");
    // Several faults, of which each has lines of its own.
    world.write("gateway.toml", "[server]\nlisten = 7\nbase_path = 8\n[log]\nformat = \"json\"\n");
    process.signal(Signal::SIGHUP);
    let refused = |said: &str| said.contains("base_path") && said.ends_with('\n');
    eventually(PATIENCE, "the faults", || async { refused(&process.stderr()) }).await;
    process.signal(Signal::SIGTERM);
    assert_eq!(process.exit().await, Some(0));
    let lines = json_lines(&process.stderr());
    assert!(lines.iter().any(|line| line["ready"] == format!("http://{address}")), "{lines:?}");
    let faults: Vec<&Value> = lines.iter().filter(|line| line.to_string().contains("base_path")).collect();
    assert!(faults.len() == 1 && faults[0].to_string().contains("listen"), "{faults:?}");
    assert!(lines.iter().any(|line| line["operation"] == "getPoints"), "{lines:?}");
}

#[tokio::test]
async fn a_start_that_fails_says_why_as_json_where_that_is_the_format() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
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
        let lines = json_lines(&process.stderr());
        assert!(lines.iter().any(|line| line["level"] == "ERROR"), "{lines:?}");
    }
}

#[tokio::test]
async fn the_log_says_why_an_answer_of_the_origin_is_not_usable_and_repeats_none_of_it() {
    let gate = TestGateway::before_http().key("bot").start().await;
    let body = r#"{"points": 1250, "name": "Ada Lovelace"}"#;
    gate.origin().next("getPoints", Act::say(200, body));
    gate.get_points("bot", "7").await.is_refused(502, NO_ANSWER);
    let said = "expected digits";
    gate.has_said(said).await;
    gate.origin().next("getWarns", Act::say(500, "Ada Lovelace is broken"));
    gate.get_warns("bot", "7").await.is_refused(502, NO_ANSWER);
    let said = "status=500 why=\"expected a status of 2xx";
    gate.has_said(said).await;
    assert!(!gate.stderr().contains("1250") && !gate.stderr().contains("Lovelace"), "{}", gate.stderr());
}

#[tokio::test]
async fn the_first_line_says_what_starts_and_by_which_configuration() {
    let world = World::new("[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n");
    let (path, folder) = (world.path("gateway.toml"), world.path(""));
    let with_file = format!("config=\"{}\" hash=", path.display());
    let folder = folder.canonicalize().unwrap();
    let without = format!("config=\"no gateway.toml in {}; using the defaults\" hash=", folder.display());
    for config in [with_file, without] {
        // Whether the default address is free does not matter here.
        let process = Process::start(&mut world.command(&["serve"]));
        process.has_said("\n").await;
        let said = process.stderr();
        let (before, hash) = said.lines().next().unwrap().split_once(&config).unwrap_or_else(|| panic!("{said}"));
        assert!(before.ends_with(&format!("guildgate starts version=\"{}\" ", env!("CARGO_PKG_VERSION"))), "{said}");
        assert!(hash.len() == 12 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()), "{said}");
        let _ = std::fs::remove_file(&path); // of the first round
    }
}

#[tokio::test]
async fn the_access_log_goes_to_a_standard_output_that_is_a_socket() {
    use std::io::BufRead;
    for name in ["stdout", "-", "/dev/stdout", "/proc/self/fd/1"] {
        let world = World::new(&format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n[log]\naccess = \"{name}\"\n"
        ));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut command = std::process::Command::new("sh");
        let binary = env!("CARGO_BIN_EXE_guildgate");
        command.args(["-c", "exec \"$0\" serve 1>&0", binary]).current_dir(world.path(""));
        let mut process = Process::with_stdin(&mut command, theirs.into());
        let address = process.ready().await;
        Connection::to(address).await.ask(&Request::post("/getPoints", "memberID=7")).await;
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut line = String::new();
        std::io::BufReader::new(ours).read_line(&mut line).unwrap();
        assert!(line.contains("getPoints"), "{name}: {line}");
    }
}
