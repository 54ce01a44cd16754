//! Contract section 3, `server.proxy_protocol`: real proxies pass their callers' addresses on, and whatever does not begin
//! with a header of a trusted proxy is closed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream, UnixStream};

use crate::support::*;

/// The address that the proxies of these tests connect from.
const PROXY: [u8; 4] = [127, 0, 0, 2];

fn gate() -> Builder {
    let gate = TestGateway::builder().key("bot").points("7", 3).set("log.access", r#""access.log""#);
    gate.set("server.proxy_protocol", "true").set("server.trusted_proxies", r#"["127.0.0.2", "127.0.0.1"]"#)
}

/// A connection from this address.
async fn connect(from: impl Into<Ipv4Addr>, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from.into(), 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// A connection from this address on which these bytes are sent at first.
async fn opened(from: [u8; 4], gate: &TestGateway, first: impl AsRef<[u8]>) -> Connection {
    let mut stream = connect(from, gate.address()).await;
    stream.write_all(first.as_ref()).await.unwrap();
    Connection::over(stream)
}

fn header_of(caller: &str) -> String {
    format!("PROXY TCP4 {caller} 127.0.0.1 4711 443\r\n")
}

async fn has_served(gate: &TestGateway, caller: &str) {
    gate.has_logged("access.log", caller, |line| line.contains(&format!(" {caller} "))).await;
}

/// A real proxy that passes connections at each of these addresses on.
async fn real_proxy(program: &Path, arguments: &[&str], config: &str, entries: &[SocketAddr]) -> (World, Process) {
    let world = World::plain();
    let config = world.write("proxy.conf", config.replace("FOLDER", world.path("").to_str().unwrap()));
    let process = Process::start(Command::new(program).args(arguments).arg(config));
    for entry in entries {
        eventually(PATIENCE, "the proxy accepts", async || TcpStream::connect(entry).await.is_ok()).await;
    }
    (world, process)
}

#[tokio::test]
async fn haproxy_and_nginx_pass_the_callers_addresses_on() {
    let gate = gate().tls().set("limits.strangers.rate", r#""1/h""#).set("limits.strangers.burst", "2").start().await;
    let to = gate.address();
    let entries = [1, 2, 3].map(|_| free_address());
    let [v1, v2, by_nginx] = entries;
    let haproxy = format!(
        "defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 30s\n    timeout server 30s\n\
         listen v1\n    bind {v1}\n    server gate {to} send-proxy\n\
         listen v2\n    bind {v2}\n    server gate {to} send-proxy-v2 check inter 100ms\n"
    );
    let nginx = format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\nmaster_process off;\npid FOLDER/nginx.pid;\nerror_log stderr;\n\
         events {{}}\nstream {{ server {{ listen {by_nginx}; proxy_pass {to}; proxy_protocol on; }} }}\n"
    );
    let _haproxy = real_proxy(Path::new("/usr/sbin/haproxy"), &["-db", "-f"], &haproxy, &[v1, v2]).await;
    let _nginx = real_proxy(Path::new("/usr/sbin/nginx"), &["-e", "stderr", "-c"], &nginx, &[by_nginx]).await;
    for (entry, last) in entries.into_iter().zip([5, 6, 7]) {
        let caller = Ipv4Addr::new(127, 0, 0, last);
        let client = gate.tls_client(&["http/1.1"]);
        let mut connection = Connection::over(client.shake_hands(connect(caller, entry).await).await.unwrap());
        connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
        has_served(&gate, &caller.to_string()).await;
        // Each caller has a budget of its own as a stranger, and no other pays for it.
        let wrong = Request::post("/getPoints", "memberID=7").key("a wrong key");
        for _ in 0..2 {
            connection.ask(&wrong).await.is_refused(401, INCORRECT_KEY);
        }
        connection.ask(&wrong).await.is_too_many();
    }
}

#[tokio::test]
async fn what_does_not_begin_with_a_header_of_a_trusted_proxy_is_closed_and_counted() {
    let gate = gate().admin().set("server.header_timeout", r#""400ms""#).start().await;
    let ask = gate.request("getPoints", "bot", "memberID=7").bytes();
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c";
    let garbage = [
        ask.clone(),
        [b"PROXY TCP4 nowhere 127.0.0.1 1 2\r\n", &ask[..]].concat(),
        [&v2[..], b"\x31\x11"].concat(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(5),
    ];
    let mut closed = 0;
    for bytes in garbage {
        opened(PROXY, &gate, bytes).await.is_closed().await;
        closed += 1;
    }
    // Cut off, and late: nothing, a part, or one byte after another.
    for part in [&b""[..], b"PROXY TCP4 203.0.113.9 ", v2] {
        let mut connection = opened(PROXY, &gate, part).await;
        connection.finish_sending().await;
        connection.is_closed().await;
        let began = Instant::now();
        opened(PROXY, &gate, part).await.is_closed().await;
        assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
        closed += 2;
    }
    let mut connection = opened(PROXY, &gate, "").await;
    connection.drip(header_of("203.0.113.9").bytes(), Duration::from_millis(50)).await;
    connection.is_closed().await;
    // Whoever is no trusted proxy names nobody.
    opened([127, 0, 0, 3], &gate, header_of("203.0.113.9")).await.is_closed().await;
    closed += 2;
    let count = format!("guildgate_proxy_headers_refused_total {closed}\n");
    let admin = gate.admin().await;
    eventually(PATIENCE, &count, async || admin.get("/metrics").await.text.contains(&count)).await;
    // After all that a connection with a header is served.
    opened(PROXY, &gate, [header_of("203.0.113.9").as_bytes(), &ask].concat()).await.answer().await.is("3");
    has_served(&gate, "203.0.113.9").await;
    assert_eq!(gate.world().text("access.log").lines().count(), 1);
}

#[tokio::test]
async fn the_header_is_read_to_its_end_and_names_the_caller_of_the_whole_connection() {
    let gate = gate().set("server.listen", r#"["127.0.0.1:0", "unix:gg.sock"]"#).start().await;
    let ask = gate.request("getPoints", "bot", "memberID=7");
    let ipv6 = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24\x20\x01\x0d\xb8"[..], &[0; 11], b"\x07", &[0; 20]].concat();
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".to_vec();
    for (header, caller) in [
        (header_of("203.0.113.9").into_bytes(), "203.0.113.9"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "0.0.0.0"),
        (ipv6, "2001:db8::7"),
        (local, "127.0.0.2"),
    ] {
        // In parts, and with the first two requests in one.
        let mut connection = opened(PROXY, &gate, "").await;
        let (start, end) = header.split_at(14);
        connection.send(start).await;
        connection.send([end, &ask.bytes(), &ask.bytes()].concat()).await;
        for _ in 0..2 {
            connection.answer().await.is("3");
        }
        connection.ask(&ask).await.is("3");
        has_served(&gate, caller).await;
    }
    // A trusted proxy before the one that sent the header is believed as ever; another caller is not.
    let forwarded = ask.clone().header("X-Forwarded-For", "198.51.100.1");
    for (named, client) in [("127.0.0.1", "198.51.100.1"), ("203.0.113.10", "203.0.113.10")] {
        opened(PROXY, &gate, header_of(named)).await.ask(&forwarded).await.is("3");
        has_served(&gate, client).await;
    }
    let mut stream = UnixStream::connect(gate.world().path("gg.sock")).await.unwrap();
    stream.write_all(header_of("203.0.113.11").as_bytes()).await.unwrap();
    Connection::over(stream).ask(&ask).await.is("3");
    has_served(&gate, "203.0.113.11").await;
    // The image's health check asks as a proxy for itself.
    let listen = format!("[server]\nlisten = [\"{}\"]\ntrusted_proxies = [\"127.0.0.1\"]\n", gate.address());
    for (protocol, code) in [("true", 0), ("false", 1)] {
        gate.world().write("health.toml", format!("{listen}proxy_protocol = {protocol}\n"));
        let ran = Ran::of(&mut gate.world().command(&["health", "--config", "health.toml"]), "");
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
    }
}

#[tokio::test]
async fn connections_are_counted_by_the_callers_address() {
    let gate = gate().set("server.max_connections_per_address", "1").start().await;
    let ask = gate.request("getPoints", "bot", "memberID=7");
    let mut open = Vec::new();
    for caller in ["203.0.113.1", "203.0.113.2", "203.0.113.3"] {
        let mut connection = opened(PROXY, &gate, header_of(caller)).await;
        connection.ask(&ask).await.is("3");
        open.push(connection);
    }
    opened(PROXY, &gate, header_of("203.0.113.2")).await.is_closed().await;
    open.remove(1);
    eventually(PATIENCE, "another connection of that caller is served", async || {
        let mut connection = opened(PROXY, &gate, header_of("203.0.113.2")).await;
        let _ = connection.try_send(ask.bytes()).await; // it may be closed already
        connection.answer_if_any().await.is_some()
    })
    .await;
}
