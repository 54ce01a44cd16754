//! Contract section 5, guarantee 2: concurrent histories are linearizable per member.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use stateright::semantics::register::{Register, RegisterOp, RegisterRet};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

use crate::support::*;

type History = Arc<Mutex<LinearizabilityTester<usize, Register<i64>>>>;

/// Members at once, callers a member, calls a caller: small histories, many of them, since a bad
/// one is proved bad only by trying every order.
const MEMBERS: usize = 32;
const CALLERS: usize = 4;
const CALLS: i64 = 6;

/// One caller of one member: reads and writes at random, each noted as it begins and as it ends.
async fn call(address: SocketAddr, key: String, member: usize, caller: usize, seed: u64, history: History) -> usize {
    let (mut random, mut connection) = (fastrand::Rng::with_seed(seed), Connection::to(address).await);
    let mut hits = 0;
    for call in 0..CALLS {
        // No amount is written twice, to whatever member, so a read tells which write it saw.
        let amount = i64::try_from(member * 100 + caller).unwrap() * 1000 + call + 1;
        let write = random.u8(0..10) < 3;
        let (operation, body, noted) = if write {
            ("/setPoints", format!("memberID={member}&amount={amount}"), RegisterOp::Write(amount))
        } else {
            ("/getPoints", format!("memberID={member}"), RegisterOp::Read)
        };
        let request = Request::post(operation, &body).key(&key);
        history.lock().unwrap().on_invoke(caller, noted).unwrap();
        let answer = connection.ask(&request).await;
        assert_eq!(answer.status, 200, "{answer:#?}");
        hits += usize::from(answer.was_hit());
        let ended = if write { RegisterRet::WriteOk } else { RegisterRet::ReadOk(answer.body.parse().unwrap()) };
        history.lock().unwrap().on_return(caller, ended).unwrap();
        if answer.closes() {
            connection = Connection::to(address).await; // another server has taken over
        }
    }
    hits
}

async fn histories_are_linearizable(gate: TestGateway, seed: u64) -> usize {
    histories_of_keys_are_linearizable(&gate, &["bot"], seed).await
}

/// As many histories as members; the callers of each use the keys in turn. Answers how many reads were answered from
/// memory.
async fn histories_of_keys_are_linearizable(gate: &TestGateway, keys: &[&str], seed: u64) -> usize {
    let secrets = keys.iter().map(|key| gate.secret(key).to_owned()).collect();
    histories_at(gate.address(), secrets, seed, 0).await
}

/// The same of members from `first` on, whose points are 0, with these secrets.
pub(crate) async fn histories_at(address: SocketAddr, secrets: Vec<String>, seed: u64, first: usize) -> usize {
    let mut callers = Vec::new();
    let mut histories = Vec::new();
    for member in first..first + MEMBERS {
        let history: History = Arc::new(Mutex::new(LinearizabilityTester::new(Register(0))));
        histories.push(Arc::clone(&history));
        for caller in 0..CALLERS {
            let seed = seed * 1_000_000 + (member * CALLERS + caller) as u64;
            let key = secrets[caller % secrets.len()].clone();
            callers.push(tokio::spawn(call(address, key, member, caller, seed, Arc::clone(&history))));
        }
    }
    let mut hits = 0;
    for caller in callers {
        hits += caller.await.unwrap();
    }
    for (member, history) in histories.into_iter().enumerate() {
        let history = history.lock().unwrap().clone();
        assert_eq!(history.len(), CALLERS * usize::try_from(CALLS).unwrap());
        assert!(history.is_consistent(), "seed {seed}, member {member} is not linearizable: {history:#?}");
    }
    hits
}

fn tells_of_the_cache(hits: usize) {
    assert!(hits > 0, "nothing was answered from the cache: this tells nothing about it");
}

#[tokio::test]
async fn guarantee_2_histories_on_the_builtin_backend_are_linearizable() {
    let mut hits = 0;
    for seed in 0..2 {
        hits += histories_are_linearizable(TestGateway::builder().key("bot").start().await, seed).await;
    }
    tells_of_the_cache(hits);
}

#[tokio::test]
async fn guarantee_2_histories_with_answers_that_expire_all_the_time_are_linearizable() {
    let mut hits = 0;
    for seed in 10..11 {
        let gate = TestGateway::before_http()
            .key("bot")
            .set("cache.points.ttl", r#""100ms""#)
            .set("cache.points.stale_if_error", r#""1s""#)
            .seed(seed)
            .start()
            .await;
        gate.origin().always(Act::Jitter(4));
        hits += histories_are_linearizable(gate, seed).await;
    }
    tells_of_the_cache(hits);
}

#[tokio::test]
async fn guarantee_2_histories_of_two_learned_keys_of_one_guild_are_linearizable() {
    let mut hits = 0;
    for seed in 20..22 {
        let gate =
            TestGateway::before_http().key("bot").key("other").keys_at_the_origin().seed(seed).start_here().await;
        gate.origin().always(Act::Jitter(6));
        hits += histories_of_keys_are_linearizable(&gate, &["bot", "other"], seed).await;
    }
    tells_of_the_cache(hits);
}

#[test]
fn the_tester_would_catch_a_stale_read() {
    let mut history = LinearizabilityTester::new(Register(0));
    history.on_invret(0, RegisterOp::Write(5), RegisterRet::WriteOk).unwrap();
    history.on_invret(1, RegisterOp::Read, RegisterRet::ReadOk(0)).unwrap();
    assert!(!history.is_consistent());
}
