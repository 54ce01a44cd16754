//! Tests of waiting for a place at the origin: a place that is returned wakes the right waiter, and a waiter who times
//! out, hangs up or is dismissed leaves no place and no entry behind.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn key(name: &str) -> Owner {
    Owner::Key(name.into())
}

/// How many wait now.
fn waiting(places: &Places) -> usize {
    places.queue.lock().waiting()
}

/// Whether nobody holds a place or waits for one.
fn is_idle(places: &Places) -> bool {
    places.queue.lock().is_idle()
}

async fn have_come(places: &Places, count: usize) {
    while waiting(places) != count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_place_that_is_given_back_wakes_who_waits() {
    let places = Places::new(1);
    let held = places.try_take(key("a")).unwrap();
    let waits = tokio::spawn({
        let places = places.clone();
        async move { places.take(key("b"), LONG).await.is_some() }
    });
    have_come(&places, 1).await;
    drop(held);
    assert!(waits.await.unwrap());
    assert!(is_idle(&places));
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_leaves() {
    let places = Places::new(1);
    let held = places.try_take(key("a")).unwrap();
    assert!(places.take(key("b"), Duration::ZERO).await.is_none());
    assert!(places.take(key("b"), Duration::from_secs(1)).await.is_none());
    assert_eq!(waiting(&places), 0);
    drop(held);
    assert!(is_idle(&places));
}

#[tokio::test]
async fn who_is_dismissed_waits_no_longer() {
    let places = Places::new(1);
    let _held = places.try_take(key("a")).unwrap();
    let waits = tokio::spawn({
        let places = places.clone();
        async move { places.take(Owner::Address(1), LONG).await.is_some() }
    });
    have_come(&places, 1).await;
    let mut other = std::pin::pin!(places.take(key("b"), LONG));
    assert!(futures_util::poll!(other.as_mut()).is_pending());
    assert!(!waits.await.unwrap());
    places.resize(9);
    assert!(other.await.is_some());
}

#[tokio::test]
async fn a_place_given_to_one_who_hangs_up_at_that_moment_goes_to_the_next() {
    let places = Places::new(2);
    let (held, _other) = (places.try_take(key("a")).unwrap(), places.try_take(key("b")).unwrap());
    let (mut hangs_up, mut next) = (Box::pin(places.take(key("c"), LONG)), Box::pin(places.take(key("d"), LONG)));
    assert!(futures_util::poll!(hangs_up.as_mut()).is_pending());
    assert!(futures_util::poll!(next.as_mut()).is_pending());
    drop(held); // it is c's from here on
    assert!(futures_util::poll!(next.as_mut()).is_pending());
    drop(hangs_up);
    assert!(next.await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn however_requests_come_and_hang_up_no_place_and_no_waiter_is_lost() {
    const MAX: usize = 24;
    let places = Places::new(MAX);
    let (now, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut callers = Vec::new();
    for seed in 0..64u64 {
        let (places, now, served) = (places.clone(), now.clone(), served.clone());
        callers.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..200 {
                let owner = if seed < 48 { key(&(seed % 12).to_string()) } else { Owner::Address(seed) };
                let take = places.take(owner, LONG);
                let patience = random.usize(0..8);
                let place = if patience == 0 { hang_up(take, random.usize(0..20)).await } else { take.await };
                let Some(_place) = place else { continue };
                assert!(now.fetch_add(1, Ordering::SeqCst) < MAX, "too many at once");
                for _ in 0..random.usize(0..4) {
                    tokio::task::yield_now().await;
                }
                now.fetch_sub(1, Ordering::SeqCst);
                served.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    for caller in callers {
        tokio::time::timeout(LONG, caller).await.expect("a waiter was lost").unwrap();
    }
    assert!(is_idle(&places), "a place was lost");
    assert!(served.load(Ordering::SeqCst) > 1000, "{served:?}");
}

/// The place, if it comes within so many looks.
async fn hang_up(take: impl Future<Output = Option<Place>>, looks: usize) -> Option<Place> {
    let mut take = std::pin::pin!(take);
    for _ in 0..looks {
        if let std::task::Poll::Ready(place) = futures_util::poll!(take.as_mut()) {
            return place;
        }
        tokio::task::yield_now().await;
    }
    None
}
