//! Tests of single-flight: all followers get the leader's answer or its fault, a lost leader releases them, and nobody
//! joins a question that was asked before a write. The interleavings are tested in `tests/model`.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::flights;
use crate::cache::{Entry, EntryKey, Epoch, Fence, Landed, Reach, Realm};
use crate::clock::Tick;
use crate::config::Freshness;
use crate::model::MemberId;
use crate::wire::{Fault, Read};

type Flights = flights::Flights<EntryKey, Epoch, Landed>;
type Lead<'f> = flights::Lead<'f, EntryKey, Epoch, Landed>;
type Follow = flights::Follow<Epoch, Landed>;
type Seat<'f> = flights::Seat<'f, EntryKey, Epoch, Landed>;

fn key() -> EntryKey {
    EntryKey { realm: Realm(1), member: MemberId::new(7).unwrap(), read: Read::Points }
}

fn epoch(fence: &Fence) -> Epoch {
    fence.epoch(&key())
}

fn answer(text: &str, epoch: Epoch) -> Landed {
    let z = Duration::ZERO;
    let freshness = Freshness { ttl: z, stale_while_revalidate: z, stale_if_error: z };
    Ok(Arc::new(Entry::new(text, epoch, Tick(0), freshness, None)))
}

fn lead(seat: Seat<'_>) -> Lead<'_> {
    match seat {
        Seat::Lead(lead) => lead,
        Seat::Follow(_) => panic!("a follower"),
    }
}

fn follow(seat: Seat<'_>) -> Follow {
    match seat {
        Seat::Follow(follow) => follow,
        Seat::Lead(_) => panic!("a second leader"),
    }
}

#[tokio::test]
async fn ten_thousand_followers_get_the_answer_of_one_leader() {
    let (flights, fence) = (Flights::default(), Fence::default());
    let leader = lead(flights.board(key(), || epoch(&fence)));
    let waiting: Vec<_> =
        (0..10_000).map(|_| tokio::spawn(follow(flights.board(key(), || epoch(&fence))).landed())).collect();
    tokio::task::yield_now().await;
    leader.land(answer("3", epoch(&fence)));
    for w in waiting {
        assert_eq!(&*w.await.unwrap().unwrap().unwrap().text, "3");
    }
    assert_eq!(flights.in_the_air(), 0);
}

#[tokio::test]
async fn a_lost_leader_leaves_nothing_behind_and_a_follower_takes_over() {
    let (flights, fence) = (Flights::default(), Fence::default());
    let leader = lead(flights.board(key(), || epoch(&fence)));
    let follower = follow(flights.board(key(), || epoch(&fence)));
    drop(leader);
    assert!(follower.landed().await.is_none());
    assert_eq!(flights.in_the_air(), 0);
    lead(flights.board(key(), || epoch(&fence))).land(answer("3", epoch(&fence)));
}

#[tokio::test]
async fn followers_of_a_leader_that_panics_board_again() {
    let (flights, fence) = (Flights::default(), Fence::default());
    let leader = lead(flights.board(key(), || epoch(&fence)));
    let followers = [0; 2].map(|_| follow(flights.board(key(), || epoch(&fence))));
    let asking = std::panic::AssertUnwindSafe(|| {
        let _leader = leader;
        panic!("a defect that a test put here")
    });
    assert!(std::panic::catch_unwind(asking).is_err());
    for follower in followers {
        assert!(follower.landed().await.is_none());
    }
    lead(flights.board(key(), || epoch(&fence))).land(answer("3", epoch(&fence)));
    assert_eq!(flights.in_the_air(), 0);
}

#[tokio::test]
async fn a_read_after_a_write_does_not_join_a_flight_from_before_it() {
    let (flights, fence) = (Flights::default(), Fence::default());
    let old = lead(flights.board(key(), || epoch(&fence)));
    fence.begin_write(key().member, Reach::Realm(key().realm), Duration::ZERO, Tick(0)).settled();
    let new = lead(flights.board(key(), || epoch(&fence)));
    let follower = follow(flights.board(key(), || epoch(&fence)));
    old.land(answer("old", epoch(&fence)));
    assert_eq!(flights.in_the_air(), 1, "the old flight took the new one's place away");
    new.land(answer("new", epoch(&fence)));
    assert_eq!(&*follower.landed().await.unwrap().unwrap().text, "new");
}

#[tokio::test]
async fn a_fault_reaches_every_follower() {
    let (flights, fence) = (Flights::default(), Fence::default());
    let leader = lead(flights.board(key(), || epoch(&fence)));
    let follower = follow(flights.board(key(), || epoch(&fence)));
    leader.land(Err(Fault::OriginTimeout));
    assert_eq!(follower.landed().await.unwrap().unwrap_err(), Fault::OriginTimeout);
}
