//! `guildgate conform`: compares an origin's answers with those of a gateway before it.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::*;

const KEY: &str = "the-key-of-this-test";

/// The command before this origin, with its key in the environment.
fn conform(world: &World, origin: &str, key: &str, more: &[&str]) -> std::process::Command {
    let mut args = vec!["conform", "--origin", origin, "--key", "env:CONFORM_KEY", "--member", "7"];
    args.extend(more);
    let mut command = world.command(&args);
    command.env("CONFORM_KEY", key);
    command
}

/// Runs it to its end. The key is in no output.
#[track_caller]
fn run(origin: &str, key: &str, more: &[&str]) -> Ran {
    let ran = Ran::of(&mut conform(&World::plain(), origin, key, more), "");
    assert!(!ran.stdout.contains(key) && !ran.stderr.contains(key), "{ran:?}");
    ran
}

/// What stands in the table about a case: its line, and those of its differences.
#[track_caller]
fn row(ran: &Ran, case: &str) -> String {
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let begins = |line: &str| line.strip_prefix(case).is_some_and(|rest| rest.starts_with("  "));
    let at = lines.iter().position(|line| begins(line)).unwrap_or_else(|| panic!("no row of {case}: {ran:#?}"));
    let rest = lines[at + 1..].iter().take_while(|line| line.starts_with("   "));
    [lines[at]].iter().chain(rest).map(|line| line.trim()).collect::<Vec<_>>().join("\n")
}

fn origin_url(gate: &TestGateway) -> String {
    format!("http://{}", gate.address())
}

#[tokio::test]
async fn an_origin_that_answers_as_the_contract_says_is_not_noticed_and_its_key_is_never_shown() {
    // Another Guildgate with a store.
    let gate = TestGateway::builder().key("bot").points("7", 3).review("7", 1, "Bo", 5, "Quick");
    let gate = gate.set("log.access", r#""access.log""#).start().await;
    let (url, key) = (origin_url(&gate), gate.secret("bot"));
    let ran = run(&url, key, &[]).done();
    assert!(ran.stdout.ends_with("Callers will not notice the switch.\n"), "{ran:#?}");
    assert!(ran.stdout.contains(" 0 answered differently, 0 not compared"), "{ran:#?}");
    let last = gate.get_points("bot", "99").await.header("x-request-id").unwrap().to_owned();
    gate.has_logged("access.log", "the last request", |line| line.contains(&last)).await;
    let log = gate.world().text("access.log");
    assert!(log.lines().count() > 40 && !log.contains("setPoints"), "{log}");
    // Writes are compared only where they are asked for, and set back.
    let ran = run(&url, key, &["--writes"]).done();
    assert!(row(&ran, "setPoints, another amount").ends_with("same"), "{ran:#?}");
    assert!(ran.stderr.contains("member 7 has 3 points again"), "{ran:#?}");
    gate.get_points("bot", "7").await.is("3");
    let rows = run(&url, key, &["--writes", "--json"]).done().list();
    assert!(rows.len() > 40 && rows.iter().all(|row| row["verdict"] == "same"), "{rows:#?}");
    // The key is read from a file or stdin, and is never an argument.
    let world = World::plain();
    world.write("key.txt", format!("{key}\n"));
    let with = |source: &str| ["conform", "--origin", &url, "--member", "7", "--key", source].join("\u{0}");
    for source in ["file:key.txt", "-"] {
        let args = with(source);
        let ran = Ran::of(&mut world.command(&args.split('\u{0}').collect::<Vec<_>>()), &format!("{key}\n")).done();
        assert!(!ran.stdout.contains(key) && !ran.stderr.contains(key), "{ran:?}");
    }
    for source in [KEY, key, "env:NO_SUCH_NAME", "file:nothing.txt", ""] {
        let args = with(source);
        let ran = Ran::of(&mut world.command(&args.split('\u{0}').collect::<Vec<_>>()), "").failed(2);
        assert!(!ran.stderr.contains(KEY) && !ran.stderr.contains(key), "{ran:?}");
    }
    run(&url, "a wrong key", &[]).failed(1).names(&["the origin refuses the key (status 401, "]);
    run("ftp://x", KEY, &[]).failed(2).names(&["--origin or --path cannot be used"]);

    // Refusals with status 200 are alike once the configuration says so.
    let gate = TestGateway::builder().key("bot").points("7", 3).set("answers.error_status", r#""ok""#).start().await;
    let key = gate.secret("bot");
    run(&origin_url(&gate), key, &[]).failed(1);
    let world = World::new("[answers]\nerror_status = \"ok\"\n");
    let ran = Ran::of(&mut conform(&world, &origin_url(&gate), key, &[]), "").done();
    assert!(ran.stdout.contains("Callers will not notice the switch."), "{ran:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)] // the origin answers while the command is waited for
async fn what_an_origin_does_otherwise_is_shown_and_what_cannot_be_compared_is_told() {
    let mut origin = ScriptedOrigin::start(0).await;
    each_byte_that_differs_is_shown(&origin).await;
    what_is_limited_is_neither_alike_nor_different(&origin).await;
    what_was_read_is_set_back_where_writes_fail(&origin).await;
    points_are_set_back_at_sigint(&origin).await;
    an_origin_that_stalls_or_is_away_ends_it_in_words(&mut origin).await;
}

async fn each_byte_that_differs_is_shown(origin: &ScriptedOrigin) {
    origin.put_points("7", 1250);
    origin.always(Act::Say(202, "Content-Type: text/html\r\n", b"1250\n".to_vec()));
    let ran = run(&origin.url(), KEY, &[]).failed(1).names(&["callers will notice the switch"]);
    let row_of_points = row(&ran, "getPoints");
    for difference in [
        "DIFFERS",
        "status: origin 202, gateway 200",
        "content-type: origin \"text/html\", gateway \"text/plain; charset=utf-8\"",
        "body, from byte 5: origin \"\\n\", gateway \"\"",
    ] {
        assert!(row_of_points.contains(difference), "{difference}: {ran:#?}");
    }
    // What the gateway refuses by itself, and this origin does not, is expected.
    origin.always(Act::Normal);
    let ran = run(&origin.url(), KEY, &[]);
    assert!(row(&ran, "memberID twice").contains("differs, as the contract says\n"), "{ran:#?}");
    assert!(row(&ran, "memberID of letters").contains("DIFFERS"), "{ran:#?}");
    assert!(row(&ran, "getWarns").contains("same") || row(&ran, "getWarns").contains("content-type"), "{ran:#?}");
    assert_eq!(origin.asked("setPoints"), 0);
}

/// A refusal for the moment only, with the seconds to wait.
fn limited(retry_after: &'static str, line: &str) -> Act {
    Act::Say(429, retry_after, line.as_bytes().to_vec())
}

async fn what_is_limited_is_neither_alike_nor_different(origin: &ScriptedOrigin) {
    origin.put_points("7", 5);
    let line = "12 | Too many requests! Try again in 120 s.";
    origin.next("getWarns", limited("Retry-After: 120\r\n", line));
    let ran = run(&origin.url(), KEY, &[]).failed(1);
    let said = row(&ran, "getWarns");
    let origins = format!("NOT COMPARED\nthe origin refused it for the moment: status 429, \"{line}\"");
    assert!(said.ends_with(&origins) && ran.stderr.contains(" 1 not compared"), "{ran:#?}");
    let rows = run(&origin.url(), KEY, &["--json"]).list();
    assert!(rows.iter().all(|row| row["verdict"] != "NOT COMPARED"), "{rows:#?}");
    origin.always(limited("Retry-After: 120\r\n", line));
    run(&origin.url(), KEY, &[]).failed(1).names(&["refuses the key (status 429", line]);
    origin.always(Act::Normal);
}

async fn what_was_read_is_set_back_where_writes_fail(origin: &ScriptedOrigin) {
    origin.put_points("7", 5);
    // An answer that is cut off after the write has happened, and then an origin that refuses the first set-back.
    let writes = [Act::Normal, Act::Normal, Act::Cut(Cut::BeforeHeader), Act::Cut(Cut::MidBody)];
    writes.into_iter().for_each(|act| origin.next("setPoints", act));
    let ran = run(&origin.url(), KEY, &["--writes", "--json", "--timeout", "1s"]).failed(1);
    assert_eq!(origin.points("7"), 5);
    let another = ran.list().into_iter().find(|row| row["case"] == "setPoints, another amount").unwrap();
    assert_eq!(another["verdict"], Value::from("NOT COMPARED"), "{ran:#?}");
    assert!(ran.stderr.contains("has 5 points again") && ran.stderr.contains("may still arrive"), "{ran:#?}");
    // Points that are no number are not touched.
    origin.always(Act::say(200, "many"));
    let before = origin.asked("setPoints");
    run(&origin.url(), KEY, &["--writes"]).failed(1).names(&["status 200, \"many\"; nothing was written"]);
    assert_eq!(origin.asked("setPoints"), before);
    origin.always(Act::Normal);
}

async fn an_origin_that_stalls_or_is_away_ends_it_in_words(origin: &mut ScriptedOrigin) {
    origin.put_points("7", 3);
    origin.next("getWarns", Act::Stall);
    let ran = run(&origin.url(), KEY, &["--timeout", "1s"]).failed(1);
    let said = row(&ran, "getWarns");
    assert!(said.contains("NOT COMPARED\nthe origin gave no answer: no whole answer came within 1000 ms"), "{said}");
    origin.always(Act::Stall);
    run(&origin.url(), KEY, &["--timeout", "1500ms"]).failed(1).names(&["the origin gave no answer", "within 1500 ms"]);
    for (wrong, said) in [("1", "write a whole number and ms, s, m, h or d"), ("0s", "must not be 0")] {
        run(&origin.url(), KEY, &["--timeout", wrong]).failed(2).names(&[said]);
    }
    origin.refuse().await;
    run(&origin.url(), KEY, &[]).failed(1).names(&["the origin gave no answer"]);
}

/// A comparison whose other amount has been written, and whose answer is held.
async fn held_in_a_write(world: &World, origin: &ScriptedOrigin) -> (Process, Gate) {
    origin.put_points("7", 5);
    let (held, asked) = (Gate::shut(), origin.asked("setPoints"));
    // The same amount at the origin and through the gateway; then another one, whose answer is held.
    for act in [Act::Normal, Act::Normal, Act::HoldAnswer(held.clone())] {
        origin.next("setPoints", act);
    }
    let process = Process::start(&mut conform(world, &origin.url(), KEY, &["--writes"]));
    origin.has_been_asked("setPoints", asked + 3).await;
    eventually(PATIENCE, "the other amount", || async { origin.points("7") == 6 }).await;
    (process, held)
}

/// And named with the service's own line if they cannot be.
async fn points_are_set_back_at_sigint(origin: &ScriptedOrigin) {
    let world = World::plain();
    let (mut process, held) = held_in_a_write(&world, origin).await;
    process.signal(Signal::SIGINT);
    eventually(PATIENCE, "the signal is handled before the answer", || async { process.has_handled_signals() }).await;
    held.open();
    assert_eq!(process.exit().await, Some(1));
    assert_eq!(origin.points("7"), 5);
    let stderr = process.stderr();
    assert!(stderr.contains("member 7 has 5 points; they are set back at the end"), "{stderr}");
    assert!(stderr.contains("member 7 has 5 points again, as before"), "{stderr}");

    let (mut process, held) = held_in_a_write(&world, origin).await;
    let line = "12 | Too many requests! Try again in 120 s.";
    origin.always(limited("Retry-After: 120\r\n", line));
    held.open();
    assert_eq!(process.exit().await, Some(1));
    let (stderr, quoted) = (process.stderr(), format!("(the origin answered status 429, \"{line}\"); "));
    let left = "member 7 had 5 points, which could not be set back";
    assert!(stderr.contains(left) && stderr.contains(&quoted) && !stderr.contains("nothing was written"), "{stderr}");
    origin.always(Act::Normal);
}
