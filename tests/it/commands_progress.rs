//! The progress of an import or export, with rate and time left: a bar on a terminal, otherwise plain lines.

use std::fs::File;
use std::io::Read;
use std::process::Command;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::*;

/// Without a terminal, a line is printed after each second of a phase.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Records in the store.
const RECORDS: usize = 20_001;

/// A world with this many records in its store, and the file from which they were imported.
async fn world(kind: Kind) -> World {
    let (world, ..) = TestGateway::on(kind).prepare().await;
    let member =
        |id: usize| format!("{{\"guild\":\"{GUILD}\",\"member\":\"{id}\",\"name\":\"Ada\",\"points\":{id}}}\n");
    let lines = format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n");
    world.import(&(lines + &(1..RECORDS).map(member).collect::<String>())).done();
    world
}

/// The frames in which the bar of a phase was drawn.
fn frames_of<'s>(screen: &'s str, phase: &str) -> Vec<&'s str> {
    screen.split('\r').filter(|frame| frame.contains(&format!("{phase} "))).collect()
}

/// Runs a command on a terminal; returns what it printed there.
async fn run_on_terminal(world: &World, args: &[&str]) -> String {
    let mut process = Process::on_terminal(&mut world.command(args));
    assert_eq!(process.exit().await, Some(0), "{:?}", process.stderr());
    process.stderr()
}

async fn on_a_terminal_each_phase_has_its_bar_with_rate_and_time_left(kind: Kind) {
    let world = world(kind).await;
    let total = indicatif::HumanBytes(world.read("import.jsonl").len() as u64).to_string();
    world.run(&["export", "packed.jsonl.gz"]).done();
    let packed = indicatif::HumanBytes(world.read("packed.jsonl.gz").len() as u64).to_string();
    for (file, size) in [("import.jsonl", total), ("packed.jsonl.gz", packed)] {
        let screen = run_on_terminal(&world, &["import", file]).await;
        let reading = frames_of(&screen, "reading");
        let shows = |frame: &&&str| {
            frame.contains(&format!("/{size}, ")) && frame.contains("B/s, ") && frame.contains(" left (")
        };
        assert!(reading.iter().any(|frame| shows(&frame)), "{file}: {screen:?}");
        let frames = frames_of(&screen, "applying");
        let shows = |frame: &&str| frame.contains("/20,001 records, ") && frame.trim_end().contains("/s, ");
        assert!(frames.iter().any(shows) && frames.iter().any(|f| f.contains(" left")), "{screen:?}");
    }
    let screen = run_on_terminal(&world, &["export", "out.jsonl"]).await;
    let frames = frames_of(&screen, "writing");
    assert!(frames.iter().any(|f| f.contains("/20,001 records, ") && f.contains(" left")), "{screen:?}");
    // The bar is cleared at the end.
    assert!(!screen.rsplit('\r').next().unwrap().contains("writing"), "{screen:?}");
}

/// Starts an export to a pipe, which is read to its end a second after it has begun.
async fn slow_export(world: &World, start: fn(&mut Command) -> Process) -> Process {
    let pipe = world.path("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let process = start(&mut world.command(&["export", "pipe"]));
    let reading = tokio::task::spawn_blocking(move || {
        let (mut pipe, mut exported) = (File::open(pipe).unwrap(), vec![0; 1000]);
        pipe.read_exact(&mut exported).unwrap(); // less than the half is written, wherever it waits
        std::thread::sleep(LINE_INTERVAL);
        pipe.read_to_end(&mut exported).unwrap();
        exported
    });
    assert!(reading.await.unwrap() == world.read("import.jsonl"));
    std::fs::remove_file(world.path("pipe")).unwrap();
    process
}

async fn without_a_terminal_a_line_is_printed_each_second(kind: Kind) {
    let world = world(kind).await;
    let mut process = slow_export(&world, Process::start).await;
    assert_eq!(process.exit().await, Some(0), "{}", process.stderr());
    let said = process.stderr();
    let plain = |line: &str| {
        let counted = line.strip_suffix(" left").unwrap_or(line).contains("/s");
        line.contains(" records ") && counted && !line.contains(char::is_control)
    };
    assert!(said.lines().count() >= 1 && said.lines().all(plain) && !said.contains('\r'), "{said:?}");
    // Where nobody reads the lines, it goes on.
    let mut process = slow_export(&world, Process::unheard).await;
    assert_eq!(process.exit().await, Some(0));
    assert_eq!(process.stdout(), format!("{RECORDS} records exported\n"));
}

on_both_stores!(
    on_a_terminal_each_phase_has_its_bar_with_rate_and_time_left,
    without_a_terminal_a_line_is_printed_each_second,
);
