//! Contract section 1, "Everything else": a page of a real service, nginx with a Node program behind it, in a real browser that
//! is told the gateway's address only: its assets, a WebSocket, an event stream, and an operation beside them.

use std::fs;
use std::process::Command;

use crate::support::*;

const NGINX: &str = "
user root;
daemon off;
master_process off;
pid FOLDER/nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    types { text/html html; text/css css; text/javascript js; image/svg+xml svg; application/json json; }
    gzip on;
    gzip_min_length 1;
    gzip_types text/css text/javascript application/json;
    client_body_temp_path FOLDER/body;
    proxy_temp_path FOLDER/proxy;
    fastcgi_temp_path FOLDER/fastcgi;
    uwsgi_temp_path FOLDER/uwsgi;
    scgi_temp_path FOLDER/scgi;
    map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
    server {
        listen ADDRESS;
        root FOLDER/www;
        location = /getPoints { return 200 '1250'; }
        location /live/ {
            proxy_pass http://127.0.0.1:LIVE;
            proxy_http_version 1.1;
            proxy_buffering off;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
        }
    }
}
";

/// Events without end, and a WebSocket that sends short texts back.
const LIVE: &str = r#"
const http = require('http');
const { createHash } = require('crypto');
const server = http.createServer((request, response) => {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    let count = 0;
    const timer = setInterval(() => response.write(`data: ${++count}\n\n`), 100);
    response.on('close', () => clearInterval(timer));
});
server.on('upgrade', (request, socket) => {
    const proof = request.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
    const accept = createHash('sha1').update(proof).digest('base64');
    socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
    socket.on('error', () => {});
    socket.on('data', frame => {
        if ((frame[0] & 15) !== 1) return socket.end();
        const length = frame[1] & 127, mask = frame.subarray(2, 6);
        const text = frame.subarray(6, 6 + length).map((byte, i) => byte ^ mask[i % 4]);
        socket.write(Buffer.concat([Buffer.from([0x81, length]), text]));
    });
});
server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}.`));
"#;

const PAGE: &str = r##"<!doctype html><title>Guilds</title><link rel="stylesheet" href="/app.css">
<h1>Guilds</h1><img src="img/badge.svg" alt="badge"><script type="module" src="/app.js"></script>
"##;

const SCRIPT: &str = r#"
const shown = document.body.dataset;
const data = await (await fetch('/data.json?all=1')).json();
shown.entries = data.length;
const form = { method: 'POST', headers: { Authorization: location.hash.slice(1) }, body: new URLSearchParams('memberID=7') };
shown.points = await (await fetch('/api/getPoints', form)).text();
shown.unknown = (await fetch('/getPoints', form)).status;
const socket = new WebSocket(`ws://${location.host}/live/socket`);
socket.onopen = () => socket.send('hello');
socket.onmessage = event => { shown.socket = event.data; };
new EventSource('/live/events').onmessage = event => { shown.events = event.data; };
"#;

/// The service, at its address.
struct Service {
    url: String,
    _nginx: Process,
    _live: Process,
    _world: World,
}

impl Service {
    async fn start() -> Service {
        let world = World::plain();
        fs::create_dir_all(world.path("www/img")).unwrap();
        let entries: Vec<_> = (0..50_000).map(|id| serde_json::json!({ "id": id })).collect();
        for (name, content) in [
            ("www/index.html", PAGE.to_owned()),
            ("www/app.css", "h1 { color: rgb(1, 2, 3); }\n".repeat(1000)),
            ("www/app.js", SCRIPT.to_owned()),
            ("www/data.json", serde_json::to_string(&entries).unwrap()),
            ("www/img/badge.svg", r#"<svg xmlns="http://www.w3.org/2000/svg" width="20" height="10"/>"#.to_owned()),
            ("live.js", LIVE.to_owned()),
        ] {
            world.write(name, content);
        }
        let live = Process::start(Command::new("node").arg(world.path("live.js")));
        eventually(PATIENCE, "Node listens", async || live.stdout().contains('.')).await;
        let port = live.stdout().trim().trim_start_matches("port ").trim_end_matches('.').to_owned();
        let address = free_address();
        let config = NGINX.replace("FOLDER", world.path("").to_str().unwrap().trim_end_matches('/'));
        let config = config.replace("ADDRESS", &address.to_string()).replace("LIVE", &port);
        let config = world.write("nginx.conf", config);
        let nginx = Process::start(Command::new("/usr/sbin/nginx").args(["-e", "stderr", "-c"]).arg(config));
        eventually(PATIENCE, "nginx accepts", async || tokio::net::TcpStream::connect(address).await.is_ok()).await;
        Service { url: format!("http://{address}"), _nginx: nginx, _live: live, _world: world }
    }

    /// A gateway through which everything passes.
    fn gateway(&self) -> Builder {
        let gate =
            TestGateway::before_http().key("bot").upstreams([self.url.clone()]).set("server.base_path", r#""/api""#);
        gate.set("pass.paths", r#"["/"]"#).set("pass.key", "false")
    }
}

#[tokio::test]
async fn a_browser_loads_a_page_with_assets_a_websocket_and_events_through_the_gateway() {
    let service = Service::start().await;
    let gate = service.gateway().start().await;
    let browser = Browser::start().await;
    browser.open(&format!("http://{}/#{}", gate.address(), gate.secret("bot"))).await;
    for (what, expression) in [
        ("the style sheet", "getComputedStyle(document.querySelector('h1')).color === 'rgb(1, 2, 3)'"),
        ("the image", "document.querySelector('img').naturalWidth === 20"),
        ("a large answer", "document.body.dataset.entries === '50000'"),
        ("an operation", "document.body.dataset.points === '1250'"),
        ("no way round an operation", "document.body.dataset.unknown === '404'"),
        ("the WebSocket", "document.body.dataset.socket === 'hello'"),
        ("events one by one", "Number(document.body.dataset.events) > 2"),
    ] {
        browser.shows(what, expression).await;
    }
}

#[tokio::test]
async fn what_nginx_says_of_a_file_passes_and_conform_finds_it_alike() {
    let service = Service::start().await;
    let gate = service.gateway().start().await;
    let mut caller = Talk::to(gate.address()).await;
    let part = Request::bare("GET", "/app.css").header("Range", "bytes=3-9").bytes();
    caller.say(part).await;
    let part = caller.until("\r\n\r\n{ color").await;
    assert!(part.starts_with("HTTP/1.1 206 ") && part.contains("Content-Range: bytes 3-9/28000\r\n"), "{part}");
    assert!(part.contains("Cache-Status: guildgate; fwd=bypass\r\n"), "{part}");
    let tag = part.lines().find_map(|line| line.strip_prefix("ETag: ")).unwrap();
    caller.say(Request::bare("GET", "/app.css").header("If-None-Match", tag).bytes()).await;
    assert!(caller.header().await.starts_with("HTTP/1.1 304 "));
    caller.say(Request::bare("HEAD", "/app.css").bytes()).await;
    let head = caller.header().await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("Content-Length: 28000\r\n"), "{head}");
    caller.say(Request::bare("GET", "/missing.html").bytes()).await;
    assert!(caller.until("</html>").await.contains("nginx"), "the service's own page");
    // The last one the service does not have.
    let paths = ["/app.css", "/data.json?all=1", "/img/badge.svg", "/missing.html"];
    let key = ["--key", "file:key.txt", "--member", "7", "--json"];
    let mut args = ["conform", "--origin", &service.url].to_vec();
    args.extend(key.into_iter().chain(paths.into_iter().flat_map(|path| ["--path", path])));
    gate.world().write("key.txt", "the-key-of-this-test");
    let ran = gate.run(&args);
    let rows = ran.list();
    for path in paths {
        let verdicts = rows.iter().filter(|row| row["case"] == format!("GET {path}")).map(|row| row["verdict"].clone());
        assert_eq!(verdicts.collect::<Vec<_>>(), ["same"], "{path}: {ran:?}");
    }
    args.extend(["--path", "docs"]);
    gate.run(&args).failed(2).names(&["must begin with `/`"]);
}
