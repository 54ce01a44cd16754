//! How long until a change that one process made is seen at another: two real servers on one store, and a
//! third process that changes keys and guilds, as the commands do.
//!
//! `cargo bench --bench follow`; `-- 50` makes it 50 rounds. Asked a thousand times a second, so a
//! millisecond is the least that is seen.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench that cannot set itself up has nothing to measure"
)]

#[expect(dead_code, reason = "other benches use more of it")]
mod shared;
#[expect(dead_code, unused_imports, reason = "the tests use more of it")]
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use guildgate::keys::ApiKey;
use guildgate::model::GuildId;
use guildgate::store::Store;
use support::{Answer, Connection, GUILD, Kind, PATIENCE, Postgres, Request, TestGateway};

/// Between two questions.
const STEP: Duration = Duration::from_millis(1);

/// The longest that a follower rests between two looks: rounds begin at any moment of that.
const LOOK: u64 = 250;

/// Two servers on one store, and the store.
struct Nodes {
    here: TestGateway,
    there: TestGateway,
    store: Arc<Store>,
    guild: GuildId,
    kind: Kind,
    _server: Option<Postgres>,
    _folder: tempfile::TempDir,
}

fn main() {
    let rounds = std::env::args().filter_map(|arg| arg.parse().ok()).next();
    let rounds: u32 = rounds.unwrap_or(if shared::is_measured() { 200 } else { 2 });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        eprintln!("until another process shows a change, in milliseconds, {rounds} rounds");
        eprintln!("| | p50 | p99 | longest |\n|---|---|---|---|");
        let kinds = [("sqlite", Kind::Builtin), ("postgres", Kind::Postgres)];
        for (_, kind) in kinds.into_iter().filter(|(name, _)| shared::is_asked(name)) {
            let nodes = Nodes::start(kind).await;
            nodes.set_points(rounds).await;
            nodes.make_and_revoke_keys(rounds).await;
            nodes.leave_and_return(rounds).await;
        }
    });
}

impl Nodes {
    async fn start(kind: Kind) -> Nodes {
        let folder = tempfile::tempdir().unwrap();
        let server = (kind == Kind::Postgres).then(|| Postgres::start(&[]));
        let at = match &server {
            Some(server) => server.database().await,
            None => folder.path().join("store.db").to_str().unwrap().to_owned(),
        };
        let builder = TestGateway::on(kind).store(&at).set("log.access", r#""""#).set("cache.points.ttl", r#""1h""#);
        let here = builder.key("bot").points("7", 3).start().await;
        let there = here.node(&at).await;
        let (store, guild) = (shared::open(&at).await, GUILD.parse().unwrap());
        Nodes { here, there, store, guild, kind, _server: server, _folder: folder }
    }

    /// Written through one server, read through the other, which had it in memory.
    async fn set_points(&self, rounds: u32) {
        let (mut writes, mut reads) = (self.here.connect().await, self.there.connect().await);
        let read = self.there.request("getPoints", "bot", "memberID=7");
        let mut took = Vec::new();
        for round in 0..rounds {
            reads.ask(&read).await;
            pause().await;
            let amount = (1000 + round).to_string();
            let write = self.here.request("setPoints", "bot", &format!("memberID=7&amount={amount}"));
            writes.ask(&write).await.is(&format!("Successfully set 'Ada' points to '{amount}'"));
            took.push(until(&mut reads, &read, |answer| answer.body == amount).await);
        }
        self.tell("setPoints, the new points", took);
    }

    async fn make_and_revoke_keys(&self, rounds: u32) {
        let mut reads = self.there.connect().await;
        let (mut made, mut revoked) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let key = ApiKey::generate().unwrap();
            let read = Request::post("/getPoints", "memberID=7").key(key.reveal());
            let id: String = format!("k_{round}");
            pause().await;
            self.store.create_key(shared::record(&id, &key, &self.guild)).await.unwrap();
            made.push(until(&mut reads, &read, |answer| answer.status == 200).await);
            pause().await;
            self.store.revoke_key(&id).await.unwrap();
            revoked.push(until(&mut reads, &read, |answer| answer.code() == Some(2)).await);
        }
        self.tell("a key is made, it works", made);
        self.tell("a key is revoked, 02", revoked);
    }

    async fn leave_and_return(&self, rounds: u32) {
        let mut reads = self.there.connect().await;
        let read = self.there.request("getPoints", "bot", "memberID=7");
        let (mut left, mut back) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            pause().await;
            self.store.set_guild(&self.guild, None, Some(true)).await.unwrap();
            left.push(until(&mut reads, &read, |answer| answer.code() == Some(3)).await);
            pause().await;
            self.store.set_guild(&self.guild, None, Some(false)).await.unwrap();
            back.push(until(&mut reads, &read, |answer| answer.status == 200).await);
        }
        self.tell("the bot leaves a guild, 03", left);
        self.tell("the bot returns, the points", back);
    }

    fn tell(&self, what: &str, took: Vec<Duration>) {
        let kind = if self.kind == Kind::Postgres { "PostgreSQL" } else { "SQLite" };
        let longest = took.iter().max().copied().unwrap_or_default().as_secs_f64() * 1000.0;
        let [p50, p99] = shared::p50_and_p99(took);
        eprintln!("| {kind}: {what} | {p50:.0} | {p99:.0} | {longest:.0} |");
    }
}

/// Any part of what a follower rests.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..LOOK))).await;
}

/// How long until an answer holds, from now on: the change has just been acknowledged.
async fn until(connection: &mut Connection, ask: &Request, holds: impl Fn(&Answer) -> bool) -> Duration {
    let start = Instant::now();
    while !holds(&connection.ask(ask).await) {
        assert!(start.elapsed() < PATIENCE, "the other process never shows it");
        tokio::time::sleep(STEP).await;
    }
    start.elapsed()
}
