//! The progress of an import or export on a terminal: a bar with rate and time left.

use crate::support::*;

/// Records in the store.
const RECORDS: usize = 20_001;

/// A world with this many records in its store, and the file from which they were imported.
fn world() -> World {
    let world = World::plain();
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

#[tokio::test]
async fn on_a_terminal_each_phase_has_its_bar_with_rate_and_time_left() {
    let world = world();
    let total = indicatif::HumanBytes(world.read("import.jsonl").len() as u64).to_string();
    world.run(&["export", "packed.jsonl.gz"]).done();
    let packed = indicatif::HumanBytes(world.read("packed.jsonl.gz").len() as u64).to_string();
    for (file, size) in [("import.jsonl", total), ("packed.jsonl.gz", packed)] {
        let screen = run_on_terminal(&world, &["import", file]).await;
        let shows =
            |frame: &&str| frame.contains(&format!("/{size}, ")) && frame.contains("B/s, ") && frame.contains(" left");
        for phase in ["reading", "applying"] {
            assert!(frames_of(&screen, phase).iter().any(shows), "{file}, {phase}: {screen:?}");
        }
    }
    let screen = run_on_terminal(&world, &["export", "out.jsonl"]).await;
    let frames = frames_of(&screen, "writing");
    assert!(frames.iter().any(|f| f.contains("/20,001 records, ") && f.contains(" left")), "{screen:?}");
    // The bar is cleared at the end.
    assert!(!screen.rsplit('\r').next().unwrap().contains("writing"), "{screen:?}");
}
