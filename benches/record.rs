//! A record of a million decisions of a thousand keys: bytes a decision, and how long `limits plan`
//! and `limits suggest` take over it.
//!
//! `cargo bench --bench record`. Without `--bench` (as `cargo test` runs it) the record is small.

#![expect(clippy::expect_used, reason = "a bench that cannot set itself up has nothing to measure")]
#![expect(clippy::print_stdout, reason = "what it measured is what it is run for")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use guildgate::clock::Tick;
use guildgate::config;
use guildgate::limits::{Budget, DecidedBy, LimitQuery, Policy};
use guildgate::telemetry::decisions::{Decision, Head, block};
use guildgate::wire::Operation;

const KEYS: usize = 1000;

/// Between two requests, on average: 5,000 a second.
const GAP_NS: u64 = 200_000;

/// Decisions in a block: the writer's.
const BLOCK: usize = 4096;

/// What keys are held to when the record is made, what they are tried with, and what refuses nobody.
const LIVE: &str = "[limits.tiers.standard]\nrate = \"20/s\"\nburst = 40\nwrite_rate = \"5/s\"\nwrite_burst = 10\n";
const NEW: &str = "[limits.tiers.standard]\nrate = \"5/s\"\nburst = 10\nwrite_rate = \"1/s\"\nwrite_burst = 5\n\
    daily = 5000\nin_flight = 8\ncandidate = { rate = \"3/s\", burst = 5 }\n";

/// Few keys ask much and many ask little; the same traffic for the same seed.
fn decisions(count: usize) -> Vec<Decision> {
    let limits = config::load_str(LIVE, Path::new(""), "live").expect("good limits").config.limits;
    let policy = Policy::new(limits.default_tier.clone());
    let budgets: Vec<Budget> = (0..KEYS).map(|_| Budget::default()).collect();
    let ids: Vec<Arc<str>> = (0..KEYS).map(|n| format!("k_{n:08x}").into()).collect();
    let mut chance = fastrand::Rng::with_seed(20261121);
    let mut at = 0;
    let decide = |_| {
        at += chance.u64(0..2 * GAP_NS);
        let key = (chance.f64() * chance.f64() * KEYS as f64) as usize;
        let operation = if chance.u8(..) < 32 { Operation::SetPoints } else { Operation::ALL[0] };
        let others = chance.u32(0..12).saturating_sub(9);
        let query = LimitQuery { operation, in_flight: others, now: Tick(at) };
        let decided = budgets[key].decide(&policy, query, DecidedBy::ALONE, || 0);
        Decision {
            unix_ms: 1_790_000_000_000 + (at / 1_000_000) as i64,
            at: Tick(at),
            key: ids[key].clone(),
            tier: Some("standard".into()),
            operation,
            over: decided.over.map(|(limit, _)| limit),
            refused: decided.over.is_some(),
            over_candidate: decided.over_candidate,
            in_flight: others,
            used_today: decided.used_today,
        }
    };
    (0..count).map(decide).collect()
}

fn main() {
    let count = if std::env::args().any(|arg| arg == "--bench") { 1_000_000 } else { 10_000 };
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let decisions = decisions(count);
    let mut bytes = Vec::new();
    let start = Instant::now();
    let head = Head { run: 1, unix_ms: 1_790_000_000_000, ..Head::default() };
    for decisions in decisions.chunks(BLOCK) {
        bytes.extend(block(&head, decisions).expect("a block"));
    }
    let each = start.elapsed() / count as u32;
    fs::write(path("d.log"), &bytes).expect("a record");
    fs::write(path("new.toml"), NEW).expect("a config");
    fs::write(path("live.toml"), LIVE).expect("a config");
    let refused = decisions.iter().filter(|decision| decision.refused).count();
    println!("{count} decisions of {KEYS} keys, {refused} of them refused");
    println!("{:.2} bytes and {each:?} a decision to write", bytes.len() as f64 / count as f64);

    for (args, code) in [
        (&["limits", "plan", "new.toml", "--log", "d.log"][..], 3),
        (&["limits", "plan", "live.toml", "--log", "d.log"], 0),
        (&["limits", "suggest", "--log", "d.log"], 0),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_guildgate"));
        command.args(args).current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let start = Instant::now();
        let status = command.status().expect("the binary runs");
        println!("{:.3} s: guildgate {}", start.elapsed().as_secs_f64(), args.join(" "));
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}
