//! A running gateway of a test, with its folder, its origin and its keys: sends requests to it, runs commands while
//! it runs, restarts it, kills it or has another process take its place. It is the real binary, reached only by its
//! sockets and files, or [`Here`], in the test's own process behind the same sockets.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use guildgate::gateway::Gateway;
use nix::sys::signal::Signal;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::frames::Frames;
use super::here::Here;
use super::{
    Answer, Builder, Connection, Http2, Kind, PATIENCE, Process, Ran, Request, ScriptedOrigin, TcpEntry, TlsClient,
    World, eventually,
};

/// A running gateway in a world of its own.
pub struct TestGateway {
    world: World,
    origin: Option<ScriptedOrigin>,
    secrets: HashMap<String, String>,
    server: Served,
    address: SocketAddr,
}

/// Who serves.
enum Served {
    Process(Process),
    Here(Here),
}

impl TestGateway {
    /// Before the built-in backend, with keys in the store.
    pub fn builder() -> Builder {
        Builder::new(Kind::Builtin)
    }

    /// Before a [`ScriptedOrigin`], with keys in a file.
    pub fn before_http() -> Builder {
        Builder::new(Kind::Http)
    }

    pub fn on(kind: Kind) -> Builder {
        Builder::new(kind)
    }

    pub(super) async fn serve(
        world: World,
        origin: Option<ScriptedOrigin>,
        secrets: HashMap<String, String>,
    ) -> TestGateway {
        let mut process = world.serve(&[]);
        let address = process.ready().await;
        TestGateway { world, origin, secrets, server: Served::Process(process), address }
    }

    pub(super) fn here(
        world: World,
        origin: Option<ScriptedOrigin>,
        secrets: HashMap<String, String>,
        here: Here,
    ) -> TestGateway {
        let address = here.address;
        TestGateway { world, origin, secrets, server: Served::Here(here), address }
    }

    /// The gateway itself, if it is in the test's own process.
    pub fn gateway(&self) -> &Arc<Gateway> {
        match &self.server {
            Served::Here(here) => &here.gateway,
            Served::Process(_) => panic!("this gateway is another process's"),
        }
    }

    fn own(&self) -> &Process {
        match &self.server {
            Served::Process(process) => process,
            Served::Here(_) => panic!("this gateway is in the test's own process"),
        }
    }

    /// The process dies without a chance to tidy up, and another one starts on the same world.
    pub async fn restart_after_kill(&mut self) {
        self.process().kill_hard();
        self.start_again().await;
    }

    async fn start_again(&mut self) {
        let mut process = self.world.serve(&[]);
        self.address = process.ready().await;
        self.server = Served::Process(process);
    }

    /// The process is told to stop, and another one starts on the same world. The first's exit code.
    pub async fn restart(&mut self) -> Option<i32> {
        let code = self.stop().await;
        self.start_again().await;
        code
    }

    /// Another process takes over on the same world. The one before, which drains.
    pub async fn replace(&mut self) -> Process {
        self.replace_by(self.world.serve(&[])).await
    }

    /// As [`TestGateway::replace`], by this process.
    pub async fn replace_by(&mut self, mut next: Process) -> Process {
        let address = next.ready().await;
        assert_eq!(address, self.address, "the address is another one");
        next.has_said("took over").await;
        std::mem::replace(self.process(), next)
    }

    /// Another node: a server in a folder of its own, on the store at `url` or before the same origin, with the same keys.
    pub async fn node(&self, url: &str) -> TestGateway {
        let config = self.world.text("gateway.toml");
        let lines = config.lines().map(|line| match line.starts_with("store = ") {
            true => format!("store = {url:?}\n"),
            false => format!("{line}\n"),
        });
        self.node_of(&lines.collect::<String>()).await
    }

    /// As [`TestGateway::node`], before the same origin, with `from` replaced by `to` in its configuration.
    pub async fn node_with(&self, from: &str, to: &str) -> TestGateway {
        self.node_of(&self.world.edited("gateway.toml", from, to)).await
    }

    async fn node_of(&self, config: &str) -> TestGateway {
        let world = World::new(config);
        if self.world.path("keys.toml").exists() {
            world.write("keys.toml", self.world.read("keys.toml"));
        }
        TestGateway::serve(world, None, self.secrets.clone()).await
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    pub fn process(&mut self) -> &mut Process {
        match &mut self.server {
            Served::Process(process) => process,
            Served::Here(_) => panic!("this gateway is in the test's own process"),
        }
    }

    /// KiB of memory that it holds.
    pub fn resident_kib(&self) -> u64 {
        self.own().resident_kib()
    }

    /// How often each of its threads has been woken so far: its id, its name and the count.
    pub fn wake_ups(&self) -> Vec<(String, String, u64)> {
        self.own().wake_ups()
    }

    /// Sockets that it has open.
    pub fn open_sockets(&self) -> usize {
        self.own().open_sockets()
    }

    pub fn process_id(&self) -> u32 {
        self.own().id()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The entry of the connection to this caller, both of IPv4; `None`: the kernel has forgotten it.
    pub fn tcp_entry(&self, caller: SocketAddr) -> Option<TcpEntry> {
        TcpEntry::all().into_iter().find(|entry| entry.local == self.address && entry.remote == caller)
    }

    pub fn origin(&self) -> &ScriptedOrigin {
        self.origin.as_ref().expect("this gateway has no HTTP origin")
    }

    pub fn origin_mut(&mut self) -> &mut ScriptedOrigin {
        self.origin.as_mut().expect("this gateway has no HTTP origin")
    }

    /// The origin, for a test that goes on using it while others use the gateway.
    pub fn take_origin(&mut self) -> ScriptedOrigin {
        self.origin.take().expect("this gateway has no HTTP origin")
    }

    /// The key itself, by the name the test gave it.
    pub fn secret(&self, key: &str) -> &str {
        self.secrets.get(key).unwrap_or_else(|| panic!("the test made no key {key:?}"))
    }

    /// A request as a well-behaved bot sends it.
    pub fn request(&self, operation: &str, key: &str, body: &str) -> Request {
        Request::post(&format!("/{operation}"), body).key(self.secret(key))
    }

    /// A connection of HTTP/1.1, through TLS where the gateway speaks it.
    pub async fn connect(&self) -> Connection {
        if self.world.path("cert.pem").exists() {
            Connection::over(self.tls(&["http/1.1"]).await)
        } else {
            Connection::to(self.address).await
        }
    }

    /// A connection on which these bytes have been sent.
    #[track_caller]
    pub fn connect_and_send(&self, bytes: impl Into<Vec<u8>>) -> impl Future<Output = Connection> {
        let caller = std::panic::Location::caller();
        async move {
            let mut connection = self.connect().await;
            connection.try_send(bytes.into()).await.unwrap_or_else(|e| panic!("{caller}: could not send: {e}"));
            connection
        }
    }

    /// A connection through TLS that offers these protocols.
    pub async fn tls(&self, alpn: &[&str]) -> TlsStream<TcpStream> {
        self.tls_client(alpn).connect(self.address).await.unwrap()
    }

    /// A client that trusts this gateway and offers these protocols.
    pub fn tls_client(&self, alpn: &[&str]) -> TlsClient {
        let certificate = self.world.text("cert.pem");
        TlsClient::new(&[&certificate], alpn)
    }

    /// A connection of HTTP/2.
    pub async fn http2(&self) -> Http2 {
        Http2::over(self.tls(&["h2"]).await).await
    }

    /// A connection of HTTP/2 by hand, greeted and ready.
    pub async fn frames(&self) -> Frames {
        let mut frames = Frames::over(self.tls(&["h2"]).await);
        frames.greet(&[]).await;
        frames
    }

    /// Sends one request on a connection of its own.
    #[track_caller]
    pub fn send(&self, request: &Request) -> impl Future<Output = Answer> {
        let caller = std::panic::Location::caller();
        async move {
            let mut connection = self.connect().await;
            let sent = connection.try_send(request.bytes()).await;
            let answer = connection.answer_or_close().await;
            answer.unwrap_or_else(|| panic!("{caller}: closed without an answer (sent: {sent:?})"))
        }
    }

    pub async fn get_points(&self, key: &str, member: &str) -> Answer {
        self.send(&self.request("getPoints", key, &format!("memberID={member}"))).await
    }

    pub async fn set_points(&self, key: &str, member: &str, amount: i64) -> Answer {
        self.send(&self.request("setPoints", key, &format!("memberID={member}&amount={amount}"))).await
    }

    pub async fn get_warns(&self, key: &str, member: &str) -> Answer {
        self.send(&self.request("getWarns", key, &format!("memberID={member}"))).await
    }

    pub async fn get_reviews(&self, key: &str, member: &str) -> Answer {
        self.send(&self.request("getReviews", key, &format!("memberID={member}"))).await
    }

    /// A command in this gateway's world, while the server runs.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.world.run(args)
    }

    /// Runs a command where the keys are in the same store, and not in a file as for this gateway.
    pub fn run_with_keys_in_store(&self, args: &[&str]) -> Ran {
        let toml = self.world.edited("gateway.toml", "source = \"file\"", "source = \"store\"");
        let config = self.world.write("keys_in_store.toml", toml);
        Ran::of(self.world.command(args).arg("--config").arg(config), "")
    }

    /// The public id of a key in the store, by its name.
    pub fn key_id(&self, name: &str) -> String {
        let keys = self.run(&["key", "list", "--json"]).done().list();
        let found = keys.iter().find(|key| key["name"] == name).unwrap_or_else(|| panic!("no key {name}: {keys:?}"));
        found["id"].as_str().unwrap().to_owned()
    }

    pub fn stderr(&self) -> String {
        self.own().stderr()
    }

    /// Waits until the process has said this on stderr.
    pub async fn has_said(&self, what: &str) {
        self.own().has_said(what).await;
    }

    /// Waits until the requests that were sent before are read, and each was answered or waits for something else.
    pub async fn has_read_requests(&self) {
        self.own().has_read_requests(self.address).await;
    }

    /// Replaces `from` by `to` in `gateway.toml`, and sends SIGHUP.
    #[track_caller]
    pub fn reload_with(&self, from: &str, to: &str) {
        self.world.edit("gateway.toml", from, to);
        self.own().signal(Signal::SIGHUP);
    }

    /// Replaces `from` by `to` in `gateway.toml`, and waits until that is in force.
    pub async fn reloaded_with(&self, from: &str, to: &str) {
        match &self.server {
            Served::Here(here) => {
                self.world.edit("gateway.toml", from, to);
                here.reload(&self.world).await;
            }
            Served::Process(process) => {
                let reloads = || process.stderr().matches("configuration reloaded").count();
                let before = reloads();
                self.reload_with(from, to);
                eventually(PATIENCE, "the reload", || async { reloads() > before }).await;
            }
        }
    }

    /// Has a gateway in the test's own process read its files again.
    pub async fn reload_here(&self) {
        match &self.server {
            Served::Here(here) => here.reload(&self.world).await,
            Served::Process(_) => panic!("this gateway is another process's"),
        }
    }

    /// Replaces `from` by `to` in the key file, and waits until the new one is in force.
    pub async fn edit_key_file(&self, from: &str, to: &str) {
        let reloads = || self.stderr().matches("key file reloaded").count();
        let before = reloads();
        self.world.edit("keys.toml", from, to);
        eventually(PATIENCE, "the key file is reloaded", || async { reloads() > before }).await;
    }

    /// Waits until a file of this world (a log) holds a line for which `holds` says yes.
    pub async fn has_logged(&self, file: &str, what: &str, holds: impl Fn(&str) -> bool) {
        eventually(PATIENCE, &format!("{what} in {file}"), || async {
            let log = std::fs::read(self.world.path(file)).unwrap_or_default();
            String::from_utf8_lossy(&log).lines().any(&holds)
        })
        .await;
    }

    /// SIGTERM, and the exit code.
    pub async fn stop(&mut self) -> Option<i32> {
        self.own().signal(Signal::SIGTERM);
        self.process().exit().await
    }
}
