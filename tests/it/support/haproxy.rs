//! Debian's HAProxy with the configuration that docs/cluster.md shows, before three nodes.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use tokio::net::TcpStream;

use super::{Builder, Identity, PATIENCE, Process, TestGateway, TlsClient, World, eventually, free_address};

/// A running HAProxy.
pub struct HaProxy {
    pub address: SocketAddr,
    process: Process,
    socket: PathBuf,
    certificate: String,
    _world: World,
}

impl HaProxy {
    /// Starts it before these nodes, with another interval of the health check than the page's.
    pub async fn before(nodes: &[TestGateway; 3], interval: &str) -> HaProxy {
        let world = World::plain();
        let identity = Identity::new();
        let pem = world.write("guildgate.pem", format!("{}{}", identity.certificate, identity.private_key));
        let socket = world.path("admin.sock");
        let address = free_address();
        let mut config = example("haproxy").to_owned();
        for (from, to) in [
            ("    user haproxy\n    group haproxy\n", ""),
            ("/run/haproxy/admin.sock", socket.to_str().unwrap()),
            (":443", &address.to_string()),
            ("/etc/haproxy/guildgate.pem", pem.to_str().unwrap()),
            ("inter 1s", &format!("inter {interval}")),
            ("10.0.0.11:8080", &nodes[0].address().to_string()),
            ("10.0.0.12:8080", &nodes[1].address().to_string()),
            ("10.0.0.13:8080", &nodes[2].address().to_string()),
        ] {
            assert!(config.contains(from), "{config}");
            config = config.replace(from, to);
        }
        let config = world.write("haproxy.cfg", config);
        let process = Process::start(Command::new("/usr/sbin/haproxy").arg("-db").arg("-f").arg(config));
        eventually(PATIENCE, "HAProxy accepts", async || TcpStream::connect(address).await.is_ok()).await;
        HaProxy { address, process, socket, certificate: identity.certificate, _world: world }
    }

    /// Three nodes with the page's settings, each on a port that it keeps when it is restarted.
    pub async fn nodes(mut builder: Builder) -> [TestGateway; 3] {
        let settings: toml::Table = example("toml").parse().unwrap();
        for (name, value) in settings["server"].as_table().unwrap() {
            builder = builder.set(&format!("server.{name}"), &value.to_string());
        }
        let builder = builder.set("server.drain_delay", r#""900ms""#).set("server.trusted_proxies", r#"["127.0.0.1"]"#);
        // No connection of a caller has a port of this address.
        let first = builder.set("server.listen", r#"["127.0.0.2:0"]"#).start().await;
        let nodes = [first.node("").await, first.node("").await, first];
        for node in &nodes {
            node.world().edit("gateway.toml", "127.0.0.2:0", &node.address().to_string());
        }
        nodes
    }

    /// A client of HTTP/1.1 that trusts its certificate.
    pub fn client(&self) -> TlsClient {
        TlsClient::new(&[&self.certificate], &["http/1.1"])
    }

    /// What it says of a server of the backend, by the names of its columns.
    pub fn stat(&self, server: &str) -> HashMap<String, String> {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.write_all(b"show stat\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
        let names = lines.next().unwrap();
        let row = lines.map(Vec::from_iter).find(|row| row[..2] == ["guildgate", server]).unwrap();
        names.zip(row).collect()
    }

    pub fn stderr(&self) -> String {
        self.process.stderr()
    }
}

/// The block of the page in this language.
fn example(language: &str) -> &'static str {
    let (_, section) = include_str!("../../../docs/cluster.md").split_once("\n## Behind HAProxy\n").unwrap();
    let (_, block) = section.split_once(&format!("\n```{language}\n")).unwrap();
    block.split_once("```").unwrap().0
}
