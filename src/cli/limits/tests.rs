//! Decisions made by the gateway's own policies, recorded, and read by `limits plan` and `limits suggest`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;

use super::input::Input;
use super::*;
use crate::clock::Tick;
use crate::config::{self, Limits};
use crate::limits::{Budget, DecidedBy, LimitQuery, Policy};
use crate::planning::{RecordFiles, Replay, for_each as read};
use crate::telemetry::decisions::{Decision, Head, block};
use crate::wire::Operation;

const GET: Operation = Operation::GetPoints;
const SECOND: u64 = 1_000_000_000;
/// A wall clock at which a UTC day ends in ten seconds.
const BEFORE_MIDNIGHT_MS: i64 = 20_000 * 86_400_000 - 10_000;

fn limits(toml: &str) -> Limits {
    config::load_str(toml, Path::new(""), "test").unwrap_or_else(|faults| panic!("{faults}")).config.limits
}

/// A decision record in a folder of its own.
struct Recorded {
    folder: TempDir,
    bytes: Vec<u8>,
}

impl Recorded {
    fn new() -> Self {
        Recorded { folder: tempfile::tempdir().unwrap(), bytes: Vec::new() }
    }

    /// Adds a run of the server that begins shortly before midnight, with this many decisions in a block.
    fn run(mut self, run: u64, decisions: &[Decision], block_size: usize) -> Self {
        let head = Head { run, unix_ms: BEFORE_MIDNIGHT_MS, ..Head::default() };
        for decisions in decisions.chunks(block_size) {
            self.bytes.extend(block(&head, decisions).unwrap());
        }
        self
    }

    fn path(&self) -> PathBuf {
        let path = self.folder.path().join("d.log");
        fs::write(&path, &self.bytes).unwrap();
        path
    }

    fn record(&self) -> RecordFiles {
        RecordFiles::open(&[self.path()]).unwrap()
    }

    /// Each decision in its order, and whether it would be over these limits.
    fn replayed(&self, limits: &Limits) -> Vec<(Decision, bool)> {
        let (mut replay, mut all) = (Replay::new(limits), Vec::new());
        read(&self.record(), &mut |p| all.push((p.decision.clone(), replay.decide(p).over.is_some()))).unwrap();
        all
    }

    /// What a command prints, and its result.
    fn command(&self, command: impl FnOnce(LogArgs) -> LimitsCommand) -> (String, Result<(), CommandError>) {
        let mut out = Vec::new();
        let names = HashMap::from([("k0".into(), "Ada's bot".to_owned())]);
        let input = Input { files: vec![self.path()], names };
        let result = match command(LogArgs { files: Vec::new() }) {
            LimitsCommand::Plan(args) => args.run(&input, &mut out),
            LimitsCommand::Suggest(args) => args.run(&input, &mut out),
            LimitsCommand::Reset { .. } => unreachable!("it reads no record"),
        };
        (String::from_utf8(out).unwrap(), result)
    }

    fn plan(&self, toml: &str, json: bool) -> (String, Result<(), CommandError>) {
        let new = self.folder.path().join("new.toml");
        fs::write(&new, toml).unwrap();
        self.command(|log| LimitsCommand::Plan(PlanArgs { new, log, json }))
    }

    fn suggested(&self) -> String {
        let (text, result) = self.command(|log| LimitsCommand::Suggest(SuggestArgs { log, json: false }));
        result.unwrap();
        text
    }
}

struct LiveKey {
    tier: Option<Arc<str>>,
    policy: Arc<Policy>,
    budget: Budget,
}

/// Keys whose requests are decided by the same policies as in the gateway.
struct LiveKeys<'l> {
    limits: &'l Limits,
    keys: Vec<LiveKey>,
    decisions: Vec<Decision>,
}

impl<'l> LiveKeys<'l> {
    fn new(limits: &'l Limits) -> Self {
        LiveKeys { limits, keys: Vec::new(), decisions: Vec::new() }
    }

    fn policy(&self, tier: Option<&str>) -> Arc<Policy> {
        Arc::new(Policy::new(self.limits.tier(tier).clone()))
    }

    /// Gives a key this tier from its next request on.
    fn set_tier(&mut self, key: usize, tier: Option<&str>) {
        while self.keys.len() <= key {
            let (tier, policy) = (tier.map(Arc::from), self.policy(tier));
            self.keys.push(LiveKey { tier, policy, budget: Budget::default() });
        }
        let next = self.policy(tier);
        let LiveKey { tier: last_tier, policy, .. } = &mut self.keys[key];
        if last_tier.as_deref() != tier {
            (*last_tier, *policy) = (tier.map(Arc::from), next);
        }
    }

    /// A request of a key, which may have this tier only since now.
    fn request(&mut self, key: usize, tier: Option<&str>, operation: Operation, in_flight: u32, at: u64) {
        self.set_tier(key, tier);
        let LiveKey { tier, policy, budget } = &self.keys[key];
        let unix = (BEFORE_MIDNIGHT_MS + (at / 1_000_000) as i64).div_euclid(1000);
        let query = LimitQuery { operation, in_flight, now: Tick(at) };
        let outcome = budget.decide(policy, query, DecidedBy::ALONE, || unix);
        self.decisions.push(Decision {
            unix_ms: BEFORE_MIDNIGHT_MS + (at / 1_000_000) as i64,
            at: Tick(at),
            key: format!("k{key}").into(),
            tier: tier.clone(),
            operation,
            over: outcome.over.map(|(limit, _)| limit),
            refused: outcome.over.is_some() && !self.limits.shadow,
            over_candidate: outcome.over_candidate,
            in_flight,
            used_today: outcome.used_today,
        });
    }

    /// Requests of one key without a tier at these times.
    fn reads(limits: &'l Limits, times: impl IntoIterator<Item = u64>) -> Self {
        let mut live = LiveKeys::new(limits);
        times.into_iter().for_each(|at| live.request(0, None, GET, 0, at));
        live
    }
}

const TIERS: &str = "[limits.tiers.standard]\nrate = \"10/s\"\nburst = 5\nwrite_rate = \"3/s\"\nwrite_burst = 2\n\
    daily = 60\nin_flight = 4\n[limits.tiers.gold]\nrate = \"50/s\"\nburst = 7\n[limits.tiers.slow]\nrate = \"30/m\"\n\
    burst = 3\nwrite_rate = \"20/m\"\nwrite_burst = 1\ndaily = 40\n";

/// Requests: time since the last one, key, operation, how many others were in flight.
fn any_traffic() -> impl Strategy<Value = Vec<(u64, usize, Operation, u32)>> {
    let gap = prop_oneof![4 => 0u64..3_000_000, 4 => 0u64..150_000_000, 1 => 0u64..2 * SECOND];
    let one = (gap, 0usize..4, proptest::sample::select(Operation::ALL.to_vec()), 0u32..6);
    proptest::collection::vec(one, 1..250)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_run_replayed_under_its_own_limits_gets_the_same_decisions(
        traffic in any_traffic(), block_size in 1usize..60, change_at in 0usize..250, shadow in any::<bool>(),
        idle in 0u64..5 * SECOND,
    ) {
        let limits = limits(&format!("limits.shadow = {shadow}\n{TIERS}"));
        let mut live = LiveKeys::new(&limits);
        let mut at = 0;
        let tiers = [None, Some("gold"), Some("slow"), Some("gone")];
        for (n, (gap, key, operation, others)) in traffic.into_iter().enumerate() {
            if n == change_at {
                at += idle; // then each key has another tier
            }
            at += gap;
            live.request(key, tiers[(key + usize::from(n >= change_at)) % 4], operation, others, at);
        }
        let recorded = Recorded::new().run(1, &live.decisions, block_size);
        let replayed = recorded.replayed(&limits);
        prop_assert_eq!(replayed.len(), live.decisions.len());
        for (decision, over) in replayed {
            prop_assert_eq!(decision.over.is_some(), over, "{:?}", decision);
        }
        let (_, result) = recorded.plan(&format!("limits.shadow = {shadow}\n{TIERS}"), false);
        prop_assert!(result.is_ok(), "nothing is newly refused: {:?}", result);
    }

    #[test]
    fn the_suggested_limits_refuse_nothing_of_any_traffic(
        traffic in any_traffic(), tiers in proptest::collection::vec(0usize..6, 4), second_run in any::<bool>(),
    ) {
        let limits = limits(TIERS);
        let mut live = LiveKeys::new(&limits);
        let mut at = 0;
        for (gap, key, operation, others) in traffic {
            at += gap;
            let names = [None, Some("gold"), Some("slow"), Some("a.b"), Some("no tier's name"), Some("standart")];
            live.request(key, names[tiers[key]], operation, others, at);
        }
        let half = if second_run { live.decisions.len() / 2 } else { 0 };
        let recorded = Recorded::new().run(1, &live.decisions[..half], 50).run(2, &live.decisions[half..], 50);
        let toml = recorded.suggested();
        let suggested = config::load_str(&toml, Path::new(""), "suggested");
        prop_assert!(suggested.is_ok(), "{}\n{:?}", toml, suggested);
        let over = recorded.replayed(&suggested.unwrap().config.limits).into_iter().filter(|(_, over)| *over).count();
        prop_assert_eq!(over, 0, "{}", toml);
        let (text, result) = recorded.plan(&toml, false);
        prop_assert!(result.is_ok() && text.contains("Nothing would be refused."), "{}", text);
    }
}

#[test]
fn a_refusal_is_replayed_after_the_request_that_took_the_last_token_though_its_clock_was_read_before() {
    let limits = limits("[limits.tiers.standard]\nrate = \"1/h\"\nburst = 1\n");
    let mut live = LiveKeys::reads(&limits, [5_000_000, 5_000_001]);
    live.decisions[1].at = Tick(1); // its thread was suspended before it asked the bucket
    let replayed = Recorded::new().run(1, &live.decisions, 2).replayed(&limits);
    let replayed: Vec<_> = replayed.iter().map(|(decision, over)| (decision.at.0, *over)).collect();
    assert_eq!(replayed, [(5_000_000, false), (1, true)]);
}

#[test]
fn buckets_are_full_at_the_start_of_each_run_and_days_go_on() {
    let limits = limits("[limits.tiers.standard]\nrate = \"1/h\"\nburst = 3\n");
    let live = LiveKeys::reads(&limits, [0, 1, 2]);
    let recorded = Recorded::new().run(1, &live.decisions, 2).run(2, &live.decisions, 2);
    assert!(recorded.replayed(&limits).iter().all(|(_, over)| !over));
    let one_run = Recorded::new().run(1, &live.decisions, 2).run(1, &live.decisions, 2);
    assert_eq!(one_run.replayed(&limits).iter().filter(|(_, over)| *over).count(), 3, "it is one run in two blocks");
    let daily = self::limits("[limits.tiers.standard]\ndaily = 4\n");
    assert_eq!(recorded.replayed(&daily).iter().filter(|(_, over)| *over).count(), 2, "the fifth and the sixth");
}

#[test]
fn usage_of_the_day_before_the_record_or_in_a_gap_counts() {
    let limits = limits("[limits.tiers.standard]\ndaily = 12\n");
    let mut live = LiveKeys::reads(&limits, (0..12).map(|n| n * SECOND / 10));
    assert!(live.decisions.iter().all(|decision| !decision.refused));
    // The first five were made before the record began, the eighth and ninth were lost.
    live.decisions.drain(7..9);
    live.decisions.drain(..5);
    live.request(0, None, GET, 0, 2 * SECOND);
    assert!(live.decisions[5].refused);
    let mut recorded = Recorded::new();
    for (lost, decisions) in [(0, &live.decisions[..2]), (2, &live.decisions[2..])] {
        let head = Head { run: 1, unix_ms: BEFORE_MIDNIGHT_MS, lost, strangers: 0 };
        recorded.bytes.extend(block(&head, decisions).unwrap());
    }
    let over: Vec<bool> = recorded.replayed(&limits).into_iter().map(|(_, over)| over).collect();
    assert_eq!(over, [false, false, false, false, false, true]);
}

#[test]
fn a_plan_names_who_would_be_refused_how_often_and_when() {
    let live_limits = limits("[limits.tiers.standard]\nrate = \"1000/s\"\nburst = 1000\n");
    let mut live = LiveKeys::new(&live_limits);
    (0..10).for_each(|n| live.request(0, None, GET, 0, n)); // ten at once
    (0..10).for_each(|n| live.request(1, Some("gold"), GET, 0, SECOND + n * SECOND)); // one a second
    (0..4).for_each(|n| live.request(2, None, GET, 0, 70 * SECOND + n));
    let recorded = Recorded::new().run(1, &live.decisions, 100);
    let new = "[limits.tiers.standard]\nrate = \"1/s\"\nburst = 3\n[limits.tiers.gold]\nrate = \"1/s\"\nburst = 1\n\
        candidate = { rate = \"1/m\", burst = 1 }\n";
    let (text, result) = recorded.plan(new, false);
    let failure = result.unwrap_err();
    assert_eq!(failure.code(), 3, "{failure:?}");
    assert!(failure.to_string().contains("would refuse 8 requests that were accepted"), "{failure}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("24 decisions of 3 keys from 2024-10-03T23:59:50Z to 2024-10-04T00:01:00Z"), "{text}");
    assert!(lines[0].ends_with("d.log; none was dropped."), "{text}");
    let cells: Vec<Vec<&str>> =
        lines[2..6].iter().map(|line| line.split("  ").filter(|c| !c.is_empty()).map(str::trim).collect()).collect();
    assert_eq!(cells[0][..6], ["KEY", "NAME", "TIER", "REQUESTS", "REFUSED THEN", "WOULD BE REFUSED"]);
    let (first, worst) = ("2024-10-03T23:59:50Z", "2024-10-03T23:59:00Z");
    assert_eq!(cells[1], ["k0", "Ada's bot", "standard", "10", "0", "7", "7", first, worst, "7", "0"]);
    assert_eq!(cells[2][..8], ["k2", "-", "standard", "4", "0", "1", "1", "2024-10-04T00:01:00Z"]);
    assert_eq!(cells[3], ["k1", "-", "gold", "10", "0", "0", "0", "-", "-", "0", "9"]);
    assert!(text.contains("\n8 requests would be refused; 8 of them were accepted then, of 2 keys.\n"), "{text}");
    assert!(text.ends_with("9 requests of 1 key would be over a candidate limit, which refuses nothing.\n"), "{text}");

    let (json, _) = recorded.plan(new, true);
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 3);
    assert_eq!((&rows[0]["key"], &rows[0]["newly_refused"]), (&"k0".into(), &7.into()));
    assert!(rows[0]["name"] == "Ada's bot" && rows[1]["name"].is_null(), "{rows}");
    assert_eq!((&rows[0]["worst_minute"], &rows[0]["worst_minute_refused"]), (&worst.into(), &7.into()));

    let (text, result) = recorded.plan(&format!("limits.shadow = true\n{new}"), false);
    assert!(result.is_ok());
    assert!(text.contains("shadow is true: nothing would be refused. 8 requests would be over"), "{text}");
}

#[test]
fn what_was_refused_then_is_not_newly_refused() {
    let limits = limits("[limits.tiers.standard]\nrate = \"1/h\"\nburst = 2\n");
    let recorded = Recorded::new().run(1, &LiveKeys::reads(&limits, 0..5).decisions, 100);
    let (text, _) = recorded.plan("[limits.tiers.standard]\nrate = \"1/h\"\nburst = 1\n", false);
    assert!(text.contains("4 requests would be refused; 1 of them was accepted then, of 1 key."), "{text}");
}

#[test]
fn a_suggestion_tells_how_often_each_key_asked_and_ends_in_a_section() {
    let live_limits = limits(TIERS);
    let mut live = LiveKeys::new(&live_limits);
    for n in 0..90 {
        live.request(0, Some("gold"), if n % 3 == 0 { Operation::SetPoints } else { GET }, 2, n * SECOND / 3);
    }
    (0..8).for_each(|n| live.request(1, None, GET, 0, 40 * SECOND + n));
    let recorded = Recorded::new().run(1, &live.decisions, 100);
    let (text, result) = recorded.command(|log| LimitsCommand::Suggest(SuggestArgs { log, json: false }));
    result.unwrap();
    let cells = |line: &str| line.replace("Ada's bot", "Ada").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(cells(lines[3])[..9], ["#", "KEY", "NAME", "TIER", "REQUESTS", "P50", "P90", "P99", "PEAK"]);
    assert_eq!(cells(lines[4]), ["#", "k1", "-", "-", "8", "8", "8", "8", "8", "2024-10-04T00:00:00Z", "8"]);
    assert_eq!(cells(lines[5]), ["#", "k0", "Ada", "gold", "90", "3", "3", "3", "3", "2024-10-04T00:00:00Z", "60"]);
    let toml = text;
    // It asked 3 times a second for half a minute, 60 times after midnight: a third of that came back meanwhile.
    assert!(toml.contains("[limits.tiers.\"gold\"]\nrate = \"60/m\"\nburst = 65\n"), "{toml}");
    assert!(toml.contains("write_rate = \"20/m\"") && toml.contains("# in_flight = 3 "), "{toml}");
    let (json, _) = recorded.command(|log| LimitsCommand::Suggest(SuggestArgs { log, json: true }));
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&rows[1]["key"], &rows[1]["p99"], &rows[1]["tier"]), (&"k0".into(), &3.into(), &"gold".into()));
    assert!(rows[0]["tier"].is_null());
}

#[test]
fn the_older_half_is_read_before_the_file_and_files_named_are_read_exactly() {
    let limits = limits("");
    let live = LiveKeys::reads(&limits, [0, SECOND, 2 * SECOND]);
    let recorded = Recorded::new().run(1, &live.decisions[2..], 9);
    let path = recorded.path();
    let older = crate::telemetry::decisions::older(&path);
    fs::write(&older, Recorded::new().run(1, &live.decisions[..2], 9).bytes).unwrap();
    let ticks = |files: &[PathBuf]| {
        let mut ticks = Vec::new();
        let record = RecordFiles::open(files).unwrap();
        let read = read(&record, &mut |recorded| ticks.push(recorded.decision.at.0 / SECOND)).unwrap();
        assert_eq!(read.files.len(), if files.len() == 1 { 2 } else { files.len() });
        ticks
    };
    assert_eq!(ticks(std::slice::from_ref(&path)), [0, 1, 2]);
    assert_eq!(ticks(&[path.clone(), path.clone()]), [2, 2]);
}

#[derive(Debug, clap::Parser)]
struct CommandLine {
    #[command(subcommand)]
    command: LimitsCommand,
}

#[tokio::test]
async fn a_bad_config_exits_with_2_and_what_is_no_record_or_an_empty_one_with_1() {
    use clap::Parser;
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    put("d.log", "");
    put("gateway.toml", "log.access = \"\"\n");
    put("bad.toml", "[limits.tiers.standard]\nrate = \"fast\"\n");
    let run = async |line: &str| {
        let line = line.replace('@', &format!("{}/", folder.path().display()));
        let words = std::iter::once("guildgate").chain(line.split(' '));
        let mut out = Vec::new();
        let command = CommandLine::try_parse_from(words).unwrap().command;
        let result = command.run(Some(&folder.path().join("gateway.toml")), &mut out).await;
        (String::from_utf8(out).unwrap(), result.map_err(|e| (e.code(), e.to_string())))
    };
    for (line, code, words) in [
        ("plan @bad.toml --log @d.log", 2, &["bad.toml:2:8", "rate"][..]),
        ("plan @none.toml --log @d.log", 2, &["none.toml"]),
        ("plan @gateway.toml", 2, &["--log", "log.decisions"]),
        ("suggest", 2, &["--log", "log.decisions"]),
        ("plan @gateway.toml --log @none.log", 1, &["none.log: No such file"]),
        ("suggest --log @gateway.toml", 1, &["gateway.toml is no record of decisions", "log.decisions"]),
        ("suggest --log @", 1, &["is no file"]),
        ("plan @gateway.toml --log @d.log", 1, &["nothing to plan with"]),
        ("suggest --log @d.log", 1, &["nothing to suggest from"]),
    ] {
        let (out, result) = run(line).await;
        let (found, message) = result.expect_err(line);
        assert!(found == code && words.iter().all(|word| message.contains(word)), "{line}: {found} {message}");
        let printed = if message.contains("to plan with") { "There are no decisions, so nothing is known" } else { "" };
        assert!(out.contains(printed) && out.is_empty() == printed.is_empty(), "no half section: {line}: {out}");
    }
    assert!(matches!(run("suggest --log @d.log --json").await, (out, Ok(())) if out == "[]\n"));
}
