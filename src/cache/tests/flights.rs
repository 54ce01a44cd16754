//! Tests of flights: who shares a question, for how long it can be joined, and what becomes of it when callers leave.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;

use crate::cache::flights::Flights;
use crate::cache::{EntryKey, FlightKey, Gate, GateState, Joinable, Realm};
use crate::clock::Tick;
use crate::model::Digest;
use crate::wire::Operation;

fn entry() -> EntryKey {
    EntryKey { realm: Realm(1), member: "7".parse().unwrap(), read: Operation::GetPoints }
}

fn keep() -> GateState {
    Gate::default().state(&entry(), Tick(0))
}

fn flight(secret: &str, gate: GateState) -> FlightKey {
    FlightKey { secret: Digest::of(secret.as_bytes()), entry: entry(), gate, is_proof: false }
}

fn flights() -> Arc<Flights<u32>> {
    Arc::default()
}

/// A question that is answered once this is notified.
async fn answered(answer: u32, when: Arc<Notify>, joinable: Joinable<u32>) -> u32 {
    when.notified().await;
    drop(joinable);
    answer
}

#[tokio::test]
async fn callers_of_one_secret_and_epoch_share_a_question_and_others_ask_their_own() {
    let (flights, when) = (flights(), Arc::<Notify>::default());
    let ask = |answer| {
        let when = when.clone();
        move |open| answered(answer, when, open)
    };
    let (leader, is_own) = flights.join(flight("a", keep()), ask(1));
    let (follower, is_second_own) = flights.join(flight("a", keep()), ask(2));
    let (other, is_other_own) = flights.join(flight("b", keep()), ask(3));
    let gate = Gate::default();
    gate.invalidate_all();
    let (later, is_later_own) = flights.join(flight("a", gate.state(&entry(), Tick(0))), ask(4));
    assert_eq!((is_own, is_second_own, is_other_own, is_later_own), (true, false, true, true));
    let (a, b, c, d, ()) = tokio::join!(leader, follower, other, later, async {
        for _ in 0..3 {
            when.notify_one();
            tokio::task::yield_now().await;
        }
    });
    assert_eq!((a, b, c, d, flights.count()), (1, 1, 3, 4, 0));
}

#[tokio::test]
async fn under_ask_a_question_is_joined_until_it_is_sent() {
    let (flights, place, answer) = (flights(), Arc::<Notify>::default(), Arc::<Notify>::default());
    let (has_place, has_answer) = (place.clone(), answer.clone());
    let ask = async move |open: Joinable<u32>| {
        has_place.notified().await;
        open.sent();
        has_answer.notified().await;
        1
    };
    let (mut question, _) = flights.join(flight("a", GateState::Ask), ask);
    assert!((&mut question).now_or_never().is_none());
    let (waits, is_own) = flights.join(flight("a", GateState::Ask), async |_| 2);
    assert!(!is_own);
    place.notify_one();
    assert!((&mut question).now_or_never().is_none());
    let ask_later = async |mut open: Joinable<u32>| {
        open.wait_for_previous(Duration::from_secs(3600)).await;
        3
    };
    let (mut later, is_own) = flights.join(flight("a", GateState::Ask), ask_later);
    assert!(is_own && (&mut later).now_or_never().is_none(), "it waits for the one that was sent");
    let (joins, is_own) = flights.join(flight("a", GateState::Ask), async |_| 4);
    assert!(!is_own);
    answer.notify_one();
    assert_eq!((later.await, joins.await, question.await, waits.await, flights.count()), (3, 3, 1, 1, 0));
}

#[tokio::test]
async fn a_leader_that_leaves_harms_no_follower_and_a_question_that_nobody_waits_for_is_dropped() {
    let (flights, when) = (flights(), Arc::<Notify>::default());
    let ask = |answer| {
        let when = when.clone();
        move |open| answered(answer, when, open)
    };
    let (mut leader, _) = flights.join(flight("a", keep()), ask(1));
    assert!((&mut leader).now_or_never().is_none());
    let (follower, _) = flights.join(flight("a", keep()), ask(2));
    drop(leader);
    when.notify_one();
    assert_eq!(follower.await, 1);
    let (abandoned, _) = flights.join(flight("a", keep()), ask(3));
    drop(abandoned);
    assert_eq!(flights.count(), 0);
    let (_next, is_own) = flights.join(flight("a", keep()), ask(4));
    assert!(is_own);
}
