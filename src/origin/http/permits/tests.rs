//! Tests of waiting for a permit: a permit that is released wakes the right waiter, and a waiter that times out, gives
//! up or is evicted leaves no permit and no entry behind.

use futures_util::FutureExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn key(name: &str) -> Owner {
    Owner::Key(name.into())
}

/// How many wait now.
fn waiting(semaphore: &FairSemaphore) -> usize {
    semaphore.counts().1
}

fn is_idle(semaphore: &FairSemaphore) -> bool {
    semaphore.queue.lock().is_idle()
}

fn held(semaphore: &Arc<FairSemaphore>, owner: &str) -> Permit {
    semaphore.acquire(key(owner), LONG).now_or_never().unwrap().unwrap()
}

async fn until_waiting(semaphore: &FairSemaphore, count: usize) {
    while waiting(semaphore) != count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_permit_that_is_released_wakes_a_waiter() {
    let semaphore = FairSemaphore::new(1);
    let held = held(&semaphore, "a");
    let waits = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire(key("b"), LONG).await.is_some() }
    });
    until_waiting(&semaphore, 1).await;
    drop(held);
    assert!(waits.await.unwrap());
    assert!(is_idle(&semaphore));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_times_out_leaves() {
    let semaphore = FairSemaphore::new(1);
    let held = held(&semaphore, "a");
    assert!(semaphore.acquire(key("b"), Duration::ZERO).await.is_none());
    assert!(semaphore.acquire(key("b"), Duration::from_secs(1)).await.is_none());
    assert_eq!(waiting(&semaphore), 0);
    drop(held);
    assert!(is_idle(&semaphore));
}

#[tokio::test]
async fn an_evicted_waiter_waits_no_longer() {
    let semaphore = FairSemaphore::new(1);
    let _held = held(&semaphore, "a");
    let waits = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire(Owner::Address(1), LONG).await.is_some() }
    });
    until_waiting(&semaphore, 1).await;
    let mut other = std::pin::pin!(semaphore.acquire(key("b"), LONG));
    assert!(futures_util::poll!(other.as_mut()).is_pending());
    assert!(!waits.await.unwrap());
    semaphore.resize(9);
    assert!(other.await.is_some());
}

#[tokio::test]
async fn a_permit_granted_to_a_waiter_that_gives_up_at_that_moment_goes_to_the_next() {
    let semaphore = FairSemaphore::new(2);
    let (held, _other) = (held(&semaphore, "a"), held(&semaphore, "b"));
    let (mut gives_up, mut next) =
        (Box::pin(semaphore.acquire(key("c"), LONG)), Box::pin(semaphore.acquire(key("d"), LONG)));
    assert!(futures_util::poll!(gives_up.as_mut()).is_pending());
    assert!(futures_util::poll!(next.as_mut()).is_pending());
    drop(held); // it is c's from here on
    assert!(futures_util::poll!(next.as_mut()).is_pending());
    drop(gives_up);
    assert!(next.await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn however_requests_come_and_give_up_no_permit_and_no_waiter_is_lost() {
    const MAX: usize = 24;
    let semaphore = FairSemaphore::new(MAX);
    let (now, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut callers = Vec::new();
    for seed in 0..64u64 {
        let (semaphore, now, served) = (semaphore.clone(), now.clone(), served.clone());
        callers.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..200 {
                let owner = if seed < 48 { key(&(seed % 12).to_string()) } else { Owner::Address(seed) };
                let take = semaphore.acquire(owner, LONG);
                let patience = random.usize(0..8);
                let permit = if patience == 0 { give_up_after(take, random.usize(0..20)).await } else { take.await };
                let Some(_place) = permit else { continue };
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
    assert!(is_idle(&semaphore), "a permit was lost");
    assert!(served.load(Ordering::SeqCst) > 1000, "{served:?}");
}

/// The permit, if it is granted within `polls` polls.
async fn give_up_after(take: impl Future<Output = Option<Permit>>, polls: usize) -> Option<Permit> {
    let mut take = std::pin::pin!(take);
    for _ in 0..polls {
        if let std::task::Poll::Ready(permit) = futures_util::poll!(take.as_mut()) {
            return permit;
        }
        tokio::task::yield_now().await;
    }
    None
}
