//! Contract section 3, `[log]`: the access line of each request.

use nix::sys::signal::Signal;
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
async fn the_access_log_has_a_line_a_request_with_the_keys_id_and_never_the_key_where_the_setting_says() {
    for (format, access) in [("text", "access.log"), ("json", "access.log"), ("text", "stderr"), ("json", "")] {
        let mut gate = gate(format).set("log.access", &format!("{access:?}")).start().await;
        let id = gate.key_id("bot");
        some_requests(&gate).await;
        // Several faults, of which each has lines of its own.
        gate.world().write("gateway.toml", "[server]\nlisten = 7\nbase_path = 8\n[log]\nformat = \"json\"\n");
        gate.process().signal(Signal::SIGHUP);
        let has_refused = async || gate.stderr().contains("base_path") && gate.stderr().ends_with('\n');
        eventually(PATIENCE, "the faults", has_refused).await;
        assert_eq!(gate.stop().await, Some(0));
        let said = gate.stderr();
        let what = format!("{format} {access:?}: {said}");
        if format == "json" {
            let lines = json_lines(&said);
            assert!(lines.iter().any(|line| line["ready"] == format!("http://{}", gate.address())), "{what}");
            let faults: Vec<&Value> = lines.iter().filter(|line| line.to_string().contains("base_path")).collect();
            assert!(faults.len() == 1 && faults[0].to_string().contains("listen"), "{what}");
        }
        let log = match access {
            "access.log" => gate.world().text("access.log"),
            "stderr" => said.lines().filter(|line| line.contains(" id=")).map(|line| format!("{line}\n")).collect(),
            _ => String::new(),
        };
        assert_eq!(said.contains("getPoints"), access == "stderr", "{what}");
        assert!(!log.contains(gate.secret("bot")) && !log.contains("nobody"), "{log}");
        if access.is_empty() {
            continue;
        }
        assert_eq!(log.lines().count(), 6, "{log}");
        assert_eq!(log.lines().filter(|l| l.contains(&id)).count(), 4, "four requests had a known key: {log}");
        assert_eq!(log.lines().filter(|l| l.contains("getPoints")).count(), 4, "{log}");
        if format == "json" {
            let lines = json_lines(&log);
            let statuses = [200, 400, 401, 404].map(|status| lines.iter().filter(|l| l["status"] == status).count());
            assert_eq!(statuses, [3, 1, 1, 1], "{log}");
            assert_eq!(lines.iter().filter(|line| line["key"] == *id).count(), 4, "{log}");
        }
    }
}

#[tokio::test]
async fn before_an_http_origin_lines_name_operations_and_reasons_logs_are_reopened_and_a_full_one_stops_no_answer() {
    let gate = TestGateway::before_http().key("bot").key("writer").keys_at_the_origin().points("7", 3);
    let gate = gate.set("log.format", r#""json""#).set("log.access", r#""access.log""#).admin();
    let gate = gate.set("log.audit", r#""audit.log""#).set("log.decisions", r#""d.log""#);
    let mut gate = gate.launched_by(&["prlimit", "--fsize=65536"]).start().await;
    // The request that proves a key is logged with its operation.
    assert_eq!(gate.get_warns("bot", "7").await.status, 200);
    assert_eq!(gate.set_points("writer", "7", 3).await.status, 200);
    assert_eq!(gate.send(&Request::post("/getPoints", "memberID=7").key("nobody")).await.code(), Some(2));
    gate.has_logged("access.log", "the last one", |line| line.contains("getPoints")).await;
    let lines = json_lines(&gate.world().text("access.log"));
    let operations: Vec<&Value> = lines.iter().map(|line| &line["operation"]).collect();
    assert_eq!(operations, ["getWarns", "setPoints", "getPoints"], "{lines:?}");
    // Why an answer of the origin is not usable, with none of it.
    gate.origin().next("getPoints", Act::say(200, r#"{"points": 1250, "name": "Ada Lovelace"}"#));
    gate.get_points("bot", "8").await.is_refused(502, NO_ANSWER);
    gate.has_said("expected digits").await;
    gate.origin().next("getWarns", Act::say(500, "Ada Lovelace is broken"));
    gate.get_warns("bot", "8").await.is_refused(502, NO_ANSWER);
    gate.has_said("expected a status of 2xx").await;
    assert!(!gate.stderr().contains("1250") && !gate.stderr().contains("Lovelace"), "{}", gate.stderr());
    sigusr1_reopens_the_logs_and_reloads_nothing(&mut gate).await;
    // A log that may grow no longer.
    let mut connection = gate.connect().await;
    for _ in 0..1000 {
        connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    }
    gate.has_said("the access log cannot be written; its lines are lost").await;
    connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    assert_eq!(gate.world().read("access.log").len(), 65536);
}

async fn sigusr1_reopens_the_logs_and_reloads_nothing(gate: &mut TestGateway) {
    let logs = ["access.log", "audit.log", "d.log"];
    for turn in 0..3 {
        for log in logs {
            std::fs::rename(gate.world().path(log), gate.world().path(&format!("{log}.{turn}"))).unwrap();
        }
        gate.process().signal(Signal::SIGUSR1);
        eventually(PATIENCE, "the logs are opened again", || async {
            logs.iter().all(|log| gate.world().path(log).exists())
        })
        .await;
        let id = gate.get_points("bot", "7").await.header("x-request-id").unwrap().to_owned();
        gate.has_logged("access.log", "the next request", |line| line.contains(&id)).await;
    }
    assert!(!gate.stderr().contains("reload"), "{}", gate.stderr());
}

#[tokio::test]
async fn standard_streams_may_be_a_socket_or_be_read_by_nobody() {
    use std::io::BufRead;
    let (world, _, secrets) = TestGateway::builder().key("bot").points("7", 3).prepare().await;
    let request = Request::post("/getPoints", "memberID=7").key(&secrets["bot"]);
    // A standard error that nobody reads stops neither the answers nor the end. A pipe holds 64 KiB, and the access lines of
    // these requests are several times that.
    let (mut process, address, _stderr) = Process::unread(&mut world.command(&["serve"]));
    let mut connection = Connection::to(address).await;
    for _ in 0..3000 {
        connection.ask(&request).await.is("3");
    }
    process.signal(Signal::SIGTERM);
    assert_eq!(process.exit().await, Some(0));

    // The access log goes to a standard output that is a socket.
    let config = world.text("gateway.toml") + "[log]\naccess = \"stdout\"\n";
    world.write("gateway.toml", config);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = std::process::Command::new("sh");
    let binary = env!("CARGO_BIN_EXE_guildgate");
    command.args(["-c", "exec \"$0\" serve 1>&0", binary]).current_dir(world.path(""));
    let mut process = Process::with_stdin(&mut command, theirs.into());
    Connection::to(process.ready().await).await.ask(&request).await.is("3");
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut line = String::new();
    std::io::BufReader::new(ours).read_line(&mut line).unwrap();
    assert!(line.contains("getPoints"), "{line}");
}

/// Every line as JSON.
fn json_lines(stderr: &str) -> Vec<Value> {
    stderr.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}\n{stderr}"))).collect()
}
