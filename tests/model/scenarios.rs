//! What the callers do. Small, so that the checker tries most of what can come between.

use std::sync::Arc;

use shuttle::thread;

use crate::world::{Way, World};

/// Tries of each scenario: enough that each planted bug is found with a wide margin.
const TRIES: usize = 2000;

type Call = Box<dyn FnOnce(&Arc<World>) + Send>;

/// One reads with one secret, and another with both, while something else happens. Something is kept before, and everybody
/// reads afterwards.
fn beside_readers(way: Way, others: Vec<Call>) {
    let world = World::new(way);
    world.get(3, "a");
    let mut calls: Vec<Call> = vec![
        Box::new(|world| world.get(1, "a")),
        Box::new(|world| ["b", "a", "b"].into_iter().for_each(|secret| world.get(2, secret))),
    ];
    calls.extend(others);
    all_of(&world, calls);
    world.get(3, "a");
    world.get(4, "b");
    world.judge();
}

fn all_of(world: &Arc<World>, calls: Vec<Call>) {
    let start = |call: Call| {
        let world = world.clone();
        thread::spawn(move || call(&world))
    };
    let threads: Vec<_> = calls.into_iter().map(start).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

pub fn a_write(way: Way) {
    beside_readers(way, vec![Box::new(|world| world.set(0, 5))]);
}

pub fn two_writes_and_a_purge(way: Way) {
    let purge: Call = Box::new(|world| world.purge());
    beside_readers(way, vec![Box::new(|world| world.set(0, 5)), Box::new(|world| world.set(5, 6)), purge]);
}

pub fn a_write_of_unknown_outcome(way: Way) {
    beside_readers(way, vec![Box::new(|world| world.set_late(0, 5))]);
}

pub fn a_hand_over(way: Way) {
    beside_readers(way, vec![Box::new(|world| world.hand_over(0, 5))]);
}

pub fn a_reload(way: Way) {
    beside_readers(way, vec![Box::new(|world| world.reload(0, 5))]);
}

/// Nobody writes: however many read with one secret, and whoever leaves, the origin is asked once for it.
fn readers_alone() {
    let world = World::new(Way::Right);
    let read = |caller: usize| -> Call { Box::new(move |world| world.get(caller, "a")) };
    all_of(&world, (0..4).map(read).collect());
    world.judge();
    assert_eq!(world.questions(), 1);
}

fn a_caller_that_leaves() {
    let world = World::new(Way::Right);
    all_of(&world, vec![Box::new(|world| world.leaves("a")), Box::new(|world| world.get(0, "a"))]);
    world.judge();
}

fn check(scenario: impl Fn() + Copy + Send + Sync + 'static) {
    shuttle::check_random(scenario, TRIES);
    shuttle::check_pct(scenario, TRIES, 4);
}

#[test]
fn a_write_and_its_readers_are_linearizable() {
    check(|| a_write(Way::Right));
}

#[test]
fn two_writes_a_purge_and_their_readers_are_linearizable() {
    check(|| two_writes_and_a_purge(Way::Right));
}

#[test]
fn a_write_of_unknown_outcome_and_its_readers_are_linearizable() {
    check(|| a_write_of_unknown_outcome(Way::Right));
}

#[test]
fn a_hand_over_and_its_readers_are_linearizable() {
    check(|| a_hand_over(Way::Right));
}

#[test]
fn a_reload_and_its_readers_are_linearizable() {
    check(|| a_reload(Way::Right));
}

#[test]
fn readers_alone_ask_one_question() {
    check(readers_alone);
}

#[test]
fn a_caller_that_leaves_harms_no_other() {
    check(a_caller_that_leaves);
}
