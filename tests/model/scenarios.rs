//! What the callers do. Small, so that the checker tries most of what can come between.

use std::sync::Arc;

use shuttle::thread;

use crate::world::{Way, World};

/// Tries of each scenario: enough that each planted bug is found with a wide margin.
pub const TRIES: usize = 4000;

fn all_of(callers: Vec<Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = callers.into_iter().map(thread::spawn).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// One writes, two read and read again, a fourth reads once.
pub fn one_writer(way: Way) {
    let world = World::new(way, false);
    let reader = |caller: usize, times: usize| {
        let world = Arc::clone(&world);
        Box::new(move || (0..times).for_each(|_| world.get(caller, 0))) as Box<dyn FnOnce() + Send>
    };
    let w = Arc::clone(&world);
    let writer = Box::new(move || w.set(0, 5));
    all_of(vec![writer, reader(1, 2), reader(2, 2), reader(3, 1)]);
    world.get(4, 0);
    world.judge();
}

/// Two write, one after its own read; two read.
pub fn two_writers(way: Way) {
    let world = World::new(way, false);
    let (a, b, c, d) = (world.clone(), world.clone(), world.clone(), world.clone());
    all_of(vec![
        Box::new(move || a.set(0, 5)),
        Box::new(move || {
            b.get(1, 0);
            b.set(1, 6);
        }),
        Box::new(move || (0..2).for_each(|_| c.get(2, 0))),
        Box::new(move || (0..2).for_each(|_| d.get(3, 0))),
    ]);
    world.get(4, 0);
    world.judge();
}

/// One writes; the readers are of two realms that are one guild's.
pub fn two_realms(way: Way) {
    let world = World::new(way, true);
    let (a, b, c) = (world.clone(), world.clone(), world.clone());
    all_of(vec![
        Box::new(move || a.set(0, 5)),
        Box::new(move || (0..3).for_each(|_| b.get(1, 1))),
        Box::new(move || (0..3).for_each(|_| c.get(2, 2))),
    ]);
    world.get(3, 1);
    world.get(4, 2);
    world.judge();
}

/// Nobody writes: however many read, the origin is asked once.
pub fn readers_alone() {
    let world = World::new(Way::Right, false);
    let reader = |caller: usize| {
        let world = Arc::clone(&world);
        Box::new(move || world.get(caller, 0)) as Box<dyn FnOnce() + Send>
    };
    all_of((0..4).map(reader).collect());
    world.judge();
    assert_eq!(world.requests(), 1, "one request to the origin");
}

#[test]
fn one_writer_and_its_readers_are_linearizable() {
    shuttle::check_random(|| one_writer(Way::Right), TRIES);
    shuttle::check_pct(|| one_writer(Way::Right), TRIES, 4);
}

#[test]
fn two_writers_and_their_readers_are_linearizable() {
    shuttle::check_random(|| two_writers(Way::Right), TRIES);
    shuttle::check_pct(|| two_writers(Way::Right), TRIES, 4);
}

#[test]
fn readers_of_two_realms_of_one_guild_are_linearizable() {
    shuttle::check_random(|| two_realms(Way::Right), TRIES);
    shuttle::check_pct(|| two_realms(Way::Right), TRIES, 4);
}

#[test]
fn readers_alone_ask_one_question() {
    shuttle::check_random(readers_alone, TRIES);
    shuttle::check_pct(readers_alone, TRIES, 3);
}
