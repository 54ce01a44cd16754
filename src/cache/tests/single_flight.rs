//! Tests of single-flight: all followers get the leader's answer or its fault, a lost leader releases them, and nobody
//! joins a flight that began before a write. The interleavings are tested in `tests/model`.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::single_flight;
use crate::cache::{Entry, EntryKey, Epoch, Epochs, FetchError, FetchResult, Realm, Realms};
use crate::clock::Tick;
use crate::config::Freshness;
use crate::model::MemberId;
use crate::wire::{Fault, Operation};

type SingleFlight = single_flight::SingleFlight<EntryKey, Epoch, FetchResult>;
type Leader<'f> = single_flight::Leader<'f, EntryKey, Epoch, FetchResult>;
type Follower = single_flight::Follower<Epoch, FetchResult>;
type Role<'f> = single_flight::Role<'f, EntryKey, Epoch, FetchResult>;

fn key() -> EntryKey {
    EntryKey { realm: Realm(1), member: MemberId::new(7).unwrap(), read: Operation::GetPoints }
}

fn epoch(epochs: &Epochs) -> Epoch {
    epochs.epoch(&key())
}

fn answer(text: &str, epoch: Epoch) -> FetchResult {
    let z = Duration::ZERO;
    let freshness = Freshness { ttl: z, stale_while_revalidate: z, stale_if_error: z };
    Ok(Arc::new(Entry::new((key(), epoch), text.into(), (Tick(0), Tick(0)), freshness, None)))
}

fn leader_of(role: Role<'_>) -> Leader<'_> {
    match role {
        Role::Leader(leader) => leader,
        Role::Follower(_) => panic!("a follower"),
    }
}

fn follower_of(role: Role<'_>) -> Follower {
    match role {
        Role::Follower(follower) => follower,
        Role::Leader(_) => panic!("a second leader"),
    }
}

#[tokio::test]
async fn ten_thousand_followers_get_the_answer_of_one_leader() {
    let (flights, epochs) = (SingleFlight::default(), Epochs::default());
    let leader = leader_of(flights.join(key(), || epoch(&epochs)));
    let waiting: Vec<_> =
        (0..10_000).map(|_| tokio::spawn(follower_of(flights.join(key(), || epoch(&epochs))).wait())).collect();
    tokio::task::yield_now().await;
    leader.complete(answer("3", epoch(&epochs)));
    for w in waiting {
        assert_eq!(&*w.await.unwrap().unwrap().unwrap().text, "3");
    }
    assert_eq!(flights.in_flight(), 0);
}

#[tokio::test]
async fn a_lost_leader_leaves_nothing_behind_and_a_follower_takes_over() {
    let (flights, epochs) = (SingleFlight::default(), Epochs::default());
    let leader = leader_of(flights.join(key(), || epoch(&epochs)));
    let follower = follower_of(flights.join(key(), || epoch(&epochs)));
    drop(leader);
    assert!(follower.wait().await.is_none());
    assert_eq!(flights.in_flight(), 0);
    leader_of(flights.join(key(), || epoch(&epochs))).complete(answer("3", epoch(&epochs)));
}

#[tokio::test]
async fn followers_of_a_leader_that_panics_join_again() {
    let (flights, epochs) = (SingleFlight::default(), Epochs::default());
    let leader = leader_of(flights.join(key(), || epoch(&epochs)));
    let followers = [0; 2].map(|_| follower_of(flights.join(key(), || epoch(&epochs))));
    let asking = std::panic::AssertUnwindSafe(|| {
        let _leader = leader;
        panic!("a defect that a test put here")
    });
    assert!(std::panic::catch_unwind(asking).is_err());
    for follower in followers {
        assert!(follower.wait().await.is_none());
    }
    leader_of(flights.join(key(), || epoch(&epochs))).complete(answer("3", epoch(&epochs)));
    assert_eq!(flights.in_flight(), 0);
}

#[tokio::test]
async fn a_read_after_a_write_does_not_join_a_flight_from_before_it() {
    let (flights, epochs) = (SingleFlight::default(), Epochs::default());
    let old = leader_of(flights.join(key(), || epoch(&epochs)));
    epochs
        .begin_write(key().member, &[Operation::GetPoints], Realms::One(key().realm), Duration::ZERO, Tick(0))
        .end_settled();
    let new = leader_of(flights.join(key(), || epoch(&epochs)));
    let follower = follower_of(flights.join(key(), || epoch(&epochs)));
    old.complete(answer("old", epoch(&epochs)));
    assert_eq!(flights.in_flight(), 1, "the old flight removed the new one");
    new.complete(answer("new", epoch(&epochs)));
    assert_eq!(&*follower.wait().await.unwrap().unwrap().text, "new");
}

#[tokio::test]
async fn a_fault_reaches_every_follower() {
    let (flights, epochs) = (SingleFlight::default(), Epochs::default());
    let leader = leader_of(flights.join(key(), || epoch(&epochs)));
    let follower = follower_of(flights.join(key(), || epoch(&epochs)));
    leader.complete(Err(FetchError::Fault(Fault::OriginTimeout)));
    assert_eq!(follower.wait().await.unwrap().unwrap_err(), FetchError::Fault(Fault::OriginTimeout));
}

#[tokio::test]
async fn a_caller_that_waited_in_vain_takes_a_result_that_was_stored_meanwhile() {
    let (flights, epochs) = (SingleFlight::default(), Epochs::default());
    for is_stored in [true, false] {
        let joined =
            flights.join_when_ready(key(), || epoch(&epochs), async { Err::<(), _>("21") }, || is_stored).await;
        match joined {
            Ok(single_flight::Joined::Stored) => assert!(is_stored),
            joined => assert_eq!((joined.err(), is_stored), (Some("21"), false)),
        }
    }
}
