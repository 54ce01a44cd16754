//! Half an hour of an origin that is in turn good, slow, cut off, failing, malformed, endless or dead
//! (contract section 5, guarantees 2, 4, 5 and 8).
//!
//! It passes 120 times as fast: every time in the configuration is the contract's default
//! divided by that, and so is each phase, which stands for two minutes and a half. The origin's
//! deadline alone is longer than that would make it, since the machine is no faster for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::support::*;

const PHASE: Duration = Duration::from_millis(1250);

/// Longer than the slow origin takes to perform a request after the gateway abandoned it.
const OUTCOME_UNKNOWN: Duration = Duration::from_millis(1500);

/// Between two requests of one caller, who shares this machine with other tests.
const PACE: Duration = Duration::from_millis(4);

/// Never written: whatever the origin does, their answers may be given stale.
const QUIET: std::ops::Range<u64> = 100..104;
/// Written by one caller each, one amount after the other.
const WRITTEN: std::ops::Range<u64> = 200..206;

const WARNS: &str = "{warns_100_id_1_4000000000=Mod: spam (Expires 4000000000)}";
const REVIEWS: &str = "{reviews_100_id_9_5=Bo (5★): Quick and kind}";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Good,
    Slow,
    Cut,
    Failing,
    Nonsense,
    Pouring,
    Dead,
}

impl Phase {
    /// What the origin does in this phase, in turn. None of it is a usable answer to setPoints
    /// that the origin did not perform: no gateway could detect that.
    fn acts(self) -> Vec<Act> {
        let raw = |bytes: &[u8]| Act::Raw(bytes.to_vec());
        match self {
            Phase::Good | Phase::Dead => vec![Act::Normal],
            Phase::Slow => vec![Act::Jitter(200), Act::Stall],
            Phase::Cut => [Cut::BeforeHeader, Cut::MidHeader, Cut::AfterHeader, Cut::MidBody].map(Act::Cut).into(),
            Phase::Failing => vec![Act::say(500, "<html>"), Act::say(503, "later"), Act::say(502, "")],
            Phase::Nonsense => vec![
                Act::Say(200, "", vec![0xff, 0xfe, b'7']),
                Act::say(200, ""),
                Act::say(200, "1\n2\n3"),
                Act::say(204, ""),
                raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
                raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\n1250"),
                raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n1250\r\n0\r\n\r\n"),
            ],
            Phase::Pouring => vec![Act::Pour { bytes: 3 << 30 }],
        }
    }
}

/// What is known of one written member's points. Each amount is larger than the one before it.
#[derive(Clone, Copy, Debug, Default)]
struct Ledger {
    /// The largest amount in any answer: no later read may be below it.
    told: i64,
    /// The largest amount that setPoints was asked for.
    asked: i64,
}

/// Answers in each phase, stale ones among them, and refusals by their code.
type Met = BTreeMap<(Phase, &'static str), usize>;

struct Hour {
    gate: TestGateway,
    phase: Mutex<Option<Phase>>,
    ledgers: Mutex<BTreeMap<u64, Ledger>>,
    met: Mutex<Met>,
}

impl Hour {
    fn phase(&self) -> Option<Phase> {
        *self.phase.lock()
    }

    fn note(&self, phase: Phase, what: &'static str) {
        *self.met.lock().entry((phase, what)).or_default() += 1;
    }

    fn met(&self, phase: Phase, what: &'static str) -> usize {
        self.met.lock().get(&(phase, what)).copied().unwrap_or(0)
    }

    /// Reads members that are never written: no answer may be wrong or missing.
    async fn reads_quiet_members(self: Arc<Self>, seed: u64) {
        let (mut random, mut connection) = (fastrand::Rng::with_seed(seed), self.gate.connect().await);
        while let Some(phase) = self.phase() {
            let member = random.u64(QUIET);
            let (operation, right) = match random.u8(0..4) {
                0 => ("getWarns", WARNS.replace("100", &member.to_string())),
                1 => ("getReviews", REVIEWS.replace("100", &member.to_string())),
                _ => ("getPoints", member.to_string()),
            };
            let request = self.gate.request(operation, "bot", &format!("memberID={member}"));
            let answer = connection.ask(&request).await;
            assert_eq!((answer.status, &answer.body), (200, &right), "{phase:?}, {operation} {member}: {answer:#?}");
            let stale = answer.cache_status().ends_with("stale-if-error");
            self.note(phase, if stale { "stale" } else { "read" });
            tokio::time::sleep(PACE).await;
        }
    }

    /// Reads members that are being written: no answer may be older than an earlier one.
    async fn reads_written_members(self: Arc<Self>, seed: u64) {
        let (mut random, mut connection) = (fastrand::Rng::with_seed(seed), self.gate.connect().await);
        while let Some(phase) = self.phase() {
            let member = random.u64(WRITTEN);
            let before = self.ledger(member);
            let request = self.gate.request("getPoints", "bot", &format!("memberID={member}"));
            let answer = connection.ask(&request).await;
            tokio::time::sleep(PACE).await;
            if answer.status != 200 {
                self.note_failure(phase, &answer);
                continue;
            }
            let points: i64 = answer.body.parse().unwrap();
            let mut ledgers = self.ledgers.lock();
            let ledger = ledgers.entry(member).or_default();
            let right = before.told..=ledger.asked;
            assert!(right.contains(&points), "{phase:?}, member {member}: {points} is not in {right:?}: {answer:#?}");
            ledger.told = ledger.told.max(points);
        }
    }

    /// Writes one member, each amount once.
    async fn writes(self: Arc<Self>, member: u64) {
        let mut connection = self.gate.connect().await;
        for amount in 1.. {
            let Some(phase) = self.phase() else { return };
            self.ledgers.lock().entry(member).or_default().asked = amount;
            let request = self.gate.request("setPoints", "bot", &format!("memberID={member}&amount={amount}"));
            let answer = connection.ask(&request).await;
            if answer.status == 200 {
                answer.is(&format!("Successfully set 'Ada' points to '{amount}'"));
                let mut ledgers = self.ledgers.lock();
                let told = &mut ledgers.entry(member).or_default().told;
                *told = (*told).max(amount);
                self.note(phase, "written");
            } else if self.note_failure(phase, &answer) != 21 {
                // It may still happen; the next amount is not to be overtaken by this one.
                tokio::time::sleep(OUTCOME_UNKNOWN).await;
            }
            tokio::time::sleep(5 * PACE).await;
        }
    }

    fn ledger(&self, member: u64) -> Ledger {
        self.ledgers.lock().get(&member).copied().unwrap_or_default()
    }

    fn note_failure(&self, phase: Phase, answer: &Answer) -> u8 {
        answer.is_a_refusal();
        let code = answer.code().unwrap();
        let name = match code {
            20 => "20",
            21 => "21",
            22 => "22",
            _ => panic!("{phase:?}: {answer:#?}"),
        };
        self.note(phase, name);
        code
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_an_hour_of_an_origin_at_its_worst_gives_no_wrong_answer_and_no_needless_failure() {
    let mut gate = TestGateway::before_http()
        .key("bot")
        .set("cache.points.ttl", r#""250ms""#)
        .set("cache.points.stale_if_error", r#""5s""#)
        .set("cache.warns.ttl", r#""500ms""#)
        .set("cache.warns.stale_if_error", r#""5s""#)
        .set("cache.reviews.ttl", r#""2500ms""#)
        .set("cache.reviews.stale_if_error", r#""5s""#)
        .set("origin.timeout", r#""250ms""#)
        .set("origin.retries", "1")
        .set("log.access", r#""""#)
        .start()
        .await;
    for member in QUIET {
        let member = member.to_string();
        gate.origin().put_points(&member, member.parse().unwrap());
        gate.origin().put_map("getWarns", &member, &WARNS.replace("100", &member));
        gate.origin().put_map("getReviews", &member, &REVIEWS.replace("100", &member));
        gate.get_points("bot", &member).await.is(&member);
        gate.get_warns("bot", &member).await;
        gate.get_reviews("bot", &member).await;
    }
    let mut origin = gate.take_origin();
    let hour =
        Arc::new(Hour { gate, phase: Mutex::new(Some(Phase::Good)), ledgers: Mutex::default(), met: Mutex::default() });
    let mut callers = tokio::task::JoinSet::new();
    (0..2).for_each(|seed| drop(callers.spawn(hour.clone().reads_quiet_members(seed))));
    (2..4).for_each(|seed| drop(callers.spawn(hour.clone().reads_written_members(seed))));
    WRITTEN.for_each(|member| drop(callers.spawn(hour.clone().writes(member))));

    let bad = [Phase::Slow, Phase::Cut, Phase::Failing, Phase::Nonsense, Phase::Pouring, Phase::Dead];
    let (before, mut most) = (hour.gate.resident_kib(), 0);
    for phase in bad.into_iter().flat_map(|bad| [Phase::Good, bad]) {
        *hour.phase.lock() = Some(phase);
        if phase == Phase::Dead {
            origin.refuse().await;
        }
        let end = Instant::now() + PHASE;
        for act in phase.acts().into_iter().cycle() {
            origin.always(act);
            tokio::time::sleep(PHASE / 12).await; // a part of the phase, not a wait for something
            assert!(callers.try_join_next().is_none(), "a caller ended before its time");
            most = most.max(hour.gate.resident_kib());
            if Instant::now() >= end {
                break;
            }
        }
        if phase == Phase::Dead {
            origin.come_back();
        }
    }
    origin.always(Act::Normal);
    *hour.phase.lock() = None;
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }

    // Every caller met the faults of the phases; otherwise the hour would prove nothing.
    for phase in bad {
        assert!(hour.met(phase, "stale") > 0, "{phase:?}: {:?}", hour.met.lock());
    }
    assert!(hour.met(Phase::Good, "written") >= 100, "{:?}", hour.met.lock());
    let expected = [
        (Phase::Slow, "22"),
        (Phase::Cut, "20"),
        (Phase::Failing, "20"),
        (Phase::Failing, "21"),
        (Phase::Nonsense, "20"),
        (Phase::Pouring, "20"),
        (Phase::Dead, "21"),
    ];
    for (phase, code) in expected {
        assert!(hour.met(phase, code) > 0, "{phase:?}, {code}: {:?}", hour.met.lock());
    }

    let mut sent = BTreeMap::new();
    for seen in origin.seen().iter().filter(|seen| seen.operation() == "setPoints") {
        *sent.entry(seen.body.clone()).or_insert(0) += 1;
    }
    assert!(sent.len() >= 100, "{}", sent.len());
    assert!(sent.values().all(|times| *times == 1), "sent twice: {sent:?}");

    assert!(most <= before + 64 * 1024, "{before} KiB resident, and at most {most}");

    // At its end the gateway and the origin agree.
    for member in QUIET.chain(WRITTEN) {
        let member = member.to_string();
        let agree = || async { hour.gate.get_points("bot", &member).await.body == origin.points(&member).to_string() };
        eventually(PATIENCE, "the origin's points", agree).await;
    }
    let mut gate = Arc::into_inner(hour).unwrap().gate;
    assert_eq!(gate.stop().await, Some(0));
}
