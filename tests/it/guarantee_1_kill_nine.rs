//! Contract section 5, guarantee 1: kill -9 during writes, again and again. No acknowledged write is lost,
//! none is torn, and nothing is found that nobody sent.
//!
//! A test is short; `scripts/kill-nine` runs the same for as many rounds as it is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;

use crate::support::*;

/// Rounds where nobody says how many. PostgreSQL takes a second or two to recover.
const ROUNDS_ON_A_FILE: u64 = 20;
const ROUNDS_ON_POSTGRESQL: u64 = 6;

/// Callers at once, each with a member of its own besides those that all write to.
const CALLERS: u64 = 8;

/// Members that every caller writes to.
const SHARED: [u64; 2] = [100, 101];

/// Written once after a crash of everything: a commit that a server still had in hand is over then.
const LAST_IN_LINE: &str = "999";

/// The longest time that callers write for before the kill.
const LONGEST: Duration = Duration::from_millis(40);

/// What is killed in a round.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Guildgate,
    /// Every process of PostgreSQL's at once, which recovers at its start.
    Database,
    /// PostgreSQL's first process by SIGKILL; the others notice.
    Postmaster,
    Both,
}

/// What became of a write, as far as its caller knows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// Success, at this moment.
    Acknowledged(u64),
    /// 21: it is not there, and will not be.
    Refused,
    /// No answer, or 20.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    member: u64,
    amount: i64,
    sent: u64,
    outcome: Outcome,
}

/// What all callers of a round share.
#[derive(Default)]
struct Pens {
    /// No two writes have one amount, and a later one's is the larger.
    amounts: AtomicI64,
    /// Counts what happens, so that of two writes it can be told whether one was over before the other.
    moments: AtomicU64,
}

impl Pens {
    fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }
}

/// Writes until it is cut off or refused, and tells what it sent.
async fn write(
    caller: u64,
    mut random: Rng,
    mut connection: Connection,
    key: String,
    pens: Arc<Pens>,
    some: Gate,
) -> Vec<Write> {
    let mut writes = Vec::new();
    loop {
        let member = if random.u8(..4) > 0 { caller } else { SHARED[random.usize(..SHARED.len())] };
        let amount = pens.amounts.fetch_add(1, Ordering::SeqCst) + 1;
        let request = Request::post("/setPoints", format!("memberID={member}&amount={amount}")).key(&key);
        let sent = pens.moment();
        let answer = match connection.try_send(request.bytes()).await {
            Ok(()) => connection.answer_if_any().await,
            Err(_) => None,
        };
        let outcome = match answer {
            Some(answer) if answer.status == 200 => {
                assert_eq!(answer.body, format!("Successfully set '{member}' points to '{amount}'"));
                Outcome::Acknowledged(pens.moment())
            }
            Some(answer) if answer.code() == Some(21) => Outcome::Refused,
            Some(answer) if answer.code() == Some(20) => Outcome::Unknown,
            Some(answer) => panic!("{answer:#?}"),
            None => Outcome::Unknown,
        };
        writes.push(Write { member, amount, sent, outcome });
        match outcome {
            Outcome::Acknowledged(_) if writes.len() == 3 => some.open(),
            Outcome::Acknowledged(_) => {}
            Outcome::Refused | Outcome::Unknown => return writes,
        }
    }
}

/// Why a member cannot have these points after these writes; `before` is what it had when they began.
fn wrong(found: i64, before: i64, writes: &[Write]) -> Option<String> {
    let ended = match writes.iter().find(|write| write.amount == found) {
        Some(Write { outcome: Outcome::Refused, .. }) => return Some("it was refused".to_owned()),
        // It may have taken effect as late as at the end.
        Some(Write { outcome: Outcome::Unknown, .. }) => return None,
        Some(Write { outcome: Outcome::Acknowledged(at), .. }) => *at,
        None if found == before => 0,
        None => return Some("nobody sent it".to_owned()),
    };
    let acknowledged = |write: &&Write| matches!(write.outcome, Outcome::Acknowledged(_));
    let later = writes.iter().filter(acknowledged).find(|write| write.sent >= ended);
    later.map(|later| format!("{} was sent after it and acknowledged", later.amount))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

#[expect(clippy::print_stdout, reason = "the seed of a failure, and what a long run did")]
async fn survives(mut gate: TestGateway, server: Option<&Postgres>) {
    let usual = if server.is_some() { ROUNDS_ON_POSTGRESQL } else { ROUNDS_ON_A_FILE };
    let rounds = number("GUILDGATE_KILL_ROUNDS").unwrap_or(usual);
    let seed = number("GUILDGATE_KILL_SEED").unwrap_or(1);
    println!("{rounds} rounds of GUILDGATE_KILL_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let pens = Arc::new(Pens::default());
    let mut before: BTreeMap<u64, i64> = (1..=CALLERS).chain(SHARED).map(|member| (member, 0)).collect();
    let mut acknowledged = 0;
    for round in 1..=rounds {
        let victim = match (server, random.u8(..6)) {
            (None, _) | (_, 0..=2) => Victim::Guildgate,
            (_, 3) => Victim::Database,
            (_, 4) => Victim::Postmaster,
            _ => Victim::Both,
        };
        let some = Gate::shut();
        let mut callers = Vec::new();
        for caller in 1..=CALLERS {
            let (connection, key) = (gate.connect().await, gate.secret("bot").to_owned());
            callers.push(tokio::spawn(write(caller, random.fork(), connection, key, pens.clone(), some.clone())));
        }
        tokio::time::timeout(PATIENCE, some.passed()).await.expect("no write is acknowledged");
        // A moment like any other; nothing depends on which.
        tokio::time::sleep(LONGEST.mul_f64(random.f64())).await;
        match (victim, server) {
            (Victim::Guildgate, _) | (_, None) => gate.restart_after_kill().await,
            (Victim::Database, Some(server)) => server.stop("immediate"),
            (Victim::Postmaster, Some(server)) => server.kill(),
            (Victim::Both, Some(server)) => {
                gate.process().kill_hard();
                server.kill();
            }
        }
        let mut writes = Vec::new();
        for caller in callers {
            writes.extend(caller.await.unwrap());
        }
        if let (Victim::Database | Victim::Postmaster | Victim::Both, Some(server)) = (victim, server) {
            server.recover();
        }
        if matches!(victim, Victim::Both) {
            gate.restart_after_kill().await;
        }
        let last = async || gate.set_points("bot", LAST_IN_LINE, 1).await.status == 200;
        eventually(PATIENCE, "it can be written to again", last).await;
        for (member, before) in &mut before {
            let member_text = member.to_string();
            let mut found = None;
            let read = async || {
                found = gate.get_points("bot", &member_text).await.body.parse::<i64>().ok();
                found.is_some()
            };
            eventually(PATIENCE, "it can be read again", read).await;
            let found = found.unwrap();
            let of_it: Vec<Write> = writes.iter().filter(|write| write.member == *member).copied().collect();
            if let Some(why) = wrong(found, *before, &of_it) {
                panic!(
                    "round {round} ({victim:?}), member {member}: {found} is found, but {why}; {before} before {of_it:#?}"
                );
            }
            *before = found;
        }
        acknowledged += writes.iter().filter(|write| matches!(write.outcome, Outcome::Acknowledged(_))).count();
        if server.is_none() {
            gate.run(&["store", "verify"]).done();
        }
    }
    println!("{acknowledged} writes acknowledged");
}

#[tokio::test]
async fn guarantee_1_every_acknowledged_write_outlives_kill_9_of_a_server_on_a_file() {
    survives(TestGateway::builder().key("bot").set("log.access", r#""""#).start().await, None).await;
}

#[tokio::test]
async fn guarantee_1_every_acknowledged_write_outlives_kill_9_of_a_server_or_of_postgresql_under_it() {
    let server = Postgres::start(&[]);
    let gate = TestGateway::on(Kind::Postgres).store(&server.database().await);
    survives(gate.key("bot").set("log.access", r#""""#).start().await, Some(&server)).await;
}
