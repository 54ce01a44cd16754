//! docs/cluster.md, "Behind HAProxy": the page's own configuration, before three real nodes that are restarted in turn.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::support::*;

/// The block of the page in this language.
fn example(language: &str) -> &'static str {
    let (_, section) = include_str!("../../docs/cluster.md").split_once("\n## Behind HAProxy\n").unwrap();
    let (_, block) = section.split_once(&format!("\n```{language}\n")).unwrap();
    block.split_once("```").unwrap().0
}

/// Three nodes with the page's settings, each on a port that it keeps.
async fn three_nodes() -> [TestGateway; 3] {
    let settings: toml::Table = example("toml").parse().unwrap();
    let mut builder = TestGateway::before_http().key("bot").points("7", 3).points("8", 3);
    for (name, value) in settings["server"].as_table().unwrap() {
        builder = builder.set(&format!("server.{name}"), &value.to_string());
    }
    let builder = builder.set("server.drain_delay", r#""900ms""#).set("server.trusted_proxies", r#"["127.0.0.1"]"#);
    // No connection of a caller has a port of this address, so a node that is restarted gets its own again.
    let first = builder.set("server.listen", r#"["127.0.0.2:0"]"#).start().await;
    let nodes = [first.node("").await, first.node("").await, first];
    for node in &nodes {
        node.world().edit("gateway.toml", "127.0.0.2:0", &node.address().to_string());
    }
    nodes
}

/// What HAProxy says of a server of the backend, by the names of its columns.
fn stat(socket: &Path, server: &str) -> HashMap<String, String> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"show stat\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
    let names = lines.next().unwrap();
    let row = lines.map(Vec::from_iter).find(|row| row[..2] == ["guildgate", server]).unwrap();
    names.zip(row).collect()
}

#[tokio::test]
async fn no_request_fails_while_three_nodes_behind_haproxy_are_restarted_in_turn() {
    let mut nodes = three_nodes().await;
    let world = World::plain();
    let identity = Identity::new();
    let pem = world.write("guildgate.pem", format!("{}{}", identity.certificate, identity.private_key));
    let socket = world.path("admin.sock");
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let mut config = example("haproxy").to_owned();
    for (from, to) in [
        ("    user haproxy\n    group haproxy\n", ""),
        ("/run/haproxy/admin.sock", socket.to_str().unwrap()),
        (":443", &address.to_string()),
        ("/etc/haproxy/guildgate.pem", pem.to_str().unwrap()),
        ("inter 1s", "inter 50ms"),
        ("10.0.0.11:8080", &nodes[0].address().to_string()),
        ("10.0.0.12:8080", &nodes[1].address().to_string()),
        ("10.0.0.13:8080", &nodes[2].address().to_string()),
    ] {
        assert!(config.contains(from), "{config}");
        config = config.replace(from, to);
    }
    let config = world.write("haproxy.cfg", config);
    let haproxy = Process::start(Command::new("/usr/sbin/haproxy").arg("-db").arg("-f").arg(config));
    eventually(PATIENCE, "HAProxy accepts", async || TcpStream::connect(address).await.is_ok()).await;

    let crowd = Arc::new(Crowd::default());
    let reader = Caller {
        crowd: crowd.clone(),
        address,
        tls: Some(Arc::new(TlsClient::new(&[&identity.certificate], &["http/1.1"]))),
        ask: nodes[0].request("getPoints", "bot", "memberID=7"),
        answer: "3",
        rest: Duration::from_millis(20),
    };
    let ask = nodes[0].request("setPoints", "bot", "memberID=8&amount=5");
    let writer = Caller { ask, answer: "Successfully set 'Ada' points to '5'", ..reader.clone() };
    let mut tasks = Vec::new();
    for rest in [0, 5, 20, 50].map(Duration::from_millis) {
        tasks.push(tokio::spawn(Caller { rest, ..reader.clone() }.keeps()));
    }
    for caller in [reader, writer] {
        tasks.push(tokio::spawn(caller.clone().keeps()));
        tasks.push(tokio::spawn(caller.clone().reconnects()));
    }
    for (node, server) in nodes.iter_mut().zip(["node1", "node2", "node3"]) {
        crowd.answers(200).await;
        assert_eq!(node.restart().await, Some(0), "{server}");
        eventually(PATIENCE, "HAProxy uses the node again", async || stat(&socket, server)["status"] == "UP").await;
    }
    crowd.answers(200).await;
    crowd.end();
    Crowd::all(tasks).await;
    assert_eq!(crowd.told.load(std::sync::atomic::Ordering::Relaxed), 0, "HAProxy keeps its callers' connections");
    for server in ["node1", "node2", "node3"] {
        let stat = stat(&socket, server);
        let [requests, downs, failures @ ..] = ["stot", "chkdown", "wretr", "wredis", "econ", "eresp", "hrsp_5xx"]
            .map(|name| stat[name].parse::<u32>().unwrap());
        assert!(requests > 50 && downs > 0, "{server} got no part of the load, or was never out: {stat:?}");
        // Not even a retry: HAProxy had stopped using the node before its listener closed.
        assert_eq!(failures, [0; 5], "{server}: {stat:?}\n{}", haproxy.stderr());
    }
}
