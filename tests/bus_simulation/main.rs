//! The bus between nodes on virtual time: the bus's own rules and the gateway's own cache, with a scripted stream and one
//! origin. At every read it is checked that no node answers what is older than a write that was acknowledged a second
//! ago, nor what is older than a write of its own or, where it is a member's only writer, than its callers have read
//! (guarantee 2). The bugs at the end are planted: each must be caught, or the simulation would catch nothing.
//! `redis_stream` runs the same bus over real Redis processes, and `gateways` whole gateways.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod gateways;
mod node;
mod redis_server;
mod redis_stream;
mod stream;
mod world;

use world::{Bug, Script, Totals, World};

/// Scripts of each kind that are tried.
const SEEDS: u64 = 1500;

/// Runs these scripts, and returns what happened in all of them, or the first violation.
fn run(script: Script, bug: Bug, seeds: u64) -> Result<Totals, String> {
    let mut totals = Totals::default();
    for seed in 0..seeds {
        let world = World::run(seed, script, bug);
        if let Some(violation) = world.violation() {
            return Err(format!("seed {seed}: {violation}"));
        }
        world.count(&mut totals);
    }
    Ok(totals)
}

#[test]
fn no_script_of_crashes_pauses_cuts_and_restarts_makes_a_node_answer_what_is_too_old() {
    let totals = run(Script::Everything, Bug::None, SEEDS).unwrap();
    assert!(totals.hits > 100 * SEEDS && totals.acknowledged > 5 * SEEDS, "{totals:?}");
    assert!(totals.refused > SEEDS / 10 && totals.unconfirmed > SEEDS / 100, "{totals:?}");
    for reason in ["other server", "removed", "everything"] {
        assert!(totals.drops.get(reason).is_some_and(|n| *n > SEEDS / 10), "{reason}: {totals:?}");
    }
}

#[test]
fn entries_that_are_lost_without_a_sign_are_noticed_by_the_gap() {
    let totals = run(Script::LostWithoutASign, Bug::None, SEEDS).unwrap();
    assert!(totals.hits > 100 * SEEDS, "{totals:?}");
    assert!(totals.drops.get("gap").is_some_and(|n| *n > SEEDS / 10), "{totals:?}");
}

#[test]
fn a_node_that_ignores_gaps_is_caught() {
    let violation = run(Script::LostWithoutASign, Bug::IgnoreGaps, SEEDS).unwrap_err();
    assert!(violation.contains("acknowledged"), "{violation}");
}

#[test]
fn a_node_that_ignores_another_server_and_a_removed_stream_is_caught() {
    let violation = run(Script::Everything, Bug::IgnoreLosses, SEEDS).unwrap_err();
    assert!(violation.contains("acknowledged"), "{violation}");
}

#[test]
fn a_write_that_is_acknowledged_before_its_end_is_confirmed_is_caught() {
    let violation = run(Script::Everything, Bug::AcknowledgeUnconfirmed, SEEDS).unwrap_err();
    assert!(violation.contains("acknowledged"), "{violation}");
}

#[test]
fn a_node_that_answers_from_memory_while_it_does_not_hear_is_caught() {
    let violation = run(Script::Everything, Bug::AnswerWhileUnheard, SEEDS).unwrap_err();
    assert!(violation.contains("acknowledged"), "{violation}");
}
