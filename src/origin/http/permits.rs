//! The permits of an HTTP origin, `origin.max_in_flight` of them (guarantee 6): a request gets one at once, or waits for
//! its turn. The contract calls a permit a place.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::limits::network;
use crate::model::KeyId;

/// Whose requests share the limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A key, with either of its secrets.
    Key(KeyId),
    /// The network of a caller whose key is not proven (`keys.source = "origin"`).
    Address(u64),
}

impl Owner {
    pub fn of_address(address: IpAddr) -> Self {
        Owner::Address(network(address))
    }

    fn is_proven(&self) -> bool {
        matches!(self, Owner::Key(_))
    }
}

/// The permits of an origin. A reload shares them with the next one.
#[derive(Debug)]
pub(super) struct Permits(Mutex<State>);

/// Permission to send one request, given back when it is dropped.
#[derive(Debug)]
pub struct Permit {
    permits: Arc<Permits>,
    owner: Owner,
}

/// Once it was changed and [`State::grant`] has returned, no waiting request is entitled to a permit.
#[derive(Debug)]
struct State {
    max: usize,
    held: usize,
    /// Requests that wait; those that gave up since [`State::forget_gone`] are among them.
    waiting: usize,
    arrivals: u64,
    /// Every owner that holds a permit or waits for one.
    shares: HashMap<Owner, Share>,
}

#[derive(Debug, Default)]
struct Share {
    held: usize,
    /// The requests that wait, each with the number of its arrival. One that gives up closes its channel.
    waiters: VecDeque<(u64, oneshot::Sender<Permit>)>,
}

impl Permits {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let (held, waiting, arrivals, shares) = Default::default();
        Arc::new(Permits(Mutex::new(State { max, held, waiting, arrivals, shares })))
    }

    /// A permit, now or when it is `owner`'s turn; `None` if that takes longer than `timeout`, or too many wait.
    pub(super) async fn acquire(self: &Arc<Self>, owner: Owner, timeout: Duration) -> Option<Permit> {
        let granted = {
            let mut state = self.0.lock();
            if state.try_take(&owner) {
                return Some(Permit { permits: self.clone(), owner });
            }
            if timeout.is_zero() {
                return None;
            }
            state.wait(owner)
        };
        tokio::time::timeout(timeout, granted).await.ok()?.ok()
    }

    /// Changes the number of permits. Those that are held stay valid.
    pub(super) fn resize(self: &Arc<Self>, max: usize) {
        self.change(|state| state.max = max);
    }

    /// How many permits are held, and how many requests wait for one.
    pub(super) fn counts(&self) -> (usize, usize) {
        let mut state = self.0.lock();
        state.forget_gone();
        (state.held, state.waiting)
    }

    /// Changes the state, and wakes those that are granted a permit then.
    fn change(self: &Arc<Self>, change: impl FnOnce(&mut State)) {
        let granted = {
            let mut state = self.0.lock();
            change(&mut state);
            state.grant()
        };
        for (owner, waiter) in granted {
            // One that has just given up does not take it: it is dropped here, and the next waiter gets it.
            let _ = waiter.send(Permit { permits: self.clone(), owner });
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.change(|state| state.give_back(&self.owner));
    }
}

impl State {
    /// Takes a permit for `owner`, if it may have one now.
    fn try_take(&mut self, owner: &Owner) -> bool {
        let held = self.shares.get(owner).map_or(0, |share| share.held);
        let may = self.may_hold_more_than(held) && (owner.is_proven() || self.unproven_may_hold_more());
        if may {
            self.held += 1;
            self.shares.entry(owner.clone()).or_default().held += 1;
        }
        may
    }

    fn give_back(&mut self, owner: &Owner) {
        self.held -= 1;
        if let Some(share) = self.shares.get_mut(owner) {
            share.held -= 1;
            if share.held == 0 && share.waiters.is_empty() {
                self.shares.remove(owner);
            }
        }
    }

    /// Lets a request of `owner` wait. What is returned is closed once it is evicted, which may be at once.
    fn wait(&mut self, owner: Owner) -> oneshot::Receiver<Permit> {
        let (waiter, granted) = oneshot::channel();
        self.arrivals += 1;
        self.waiting += 1;
        self.shares.entry(owner).or_default().waiters.push_back((self.arrivals, waiter));
        self.evict();
        granted
    }

    /// Whether an owner that holds `held` permits may have another one: it holds fewer than a quarter of the free
    /// permits, so that others get some, however many owners there are. An owner without one gets the first that is
    /// free.
    fn may_hold_more_than(&self, held: usize) -> bool {
        let free = self.max.saturating_sub(self.held);
        free > 0 && (held == 0 || 4 * held < free)
    }

    /// Owners without a proven key share one part, since a sender can be as many of them as it likes.
    fn unproven_may_hold_more(&self) -> bool {
        let held: usize = self.unproven().map(|share| share.held).sum();
        held < (self.max / 4).max(1)
    }

    fn unproven(&self) -> impl Iterator<Item = &Share> {
        self.shares.iter().filter(|(owner, _)| !owner.is_proven()).map(|(_, share)| share)
    }

    /// Takes a permit for each waiter that may have one: next is that of the owner that holds the fewest, among equals
    /// the one that came first.
    fn grant(&mut self) -> Vec<(Owner, oneshot::Sender<Permit>)> {
        let mut granted = Vec::new();
        if self.waiting > 0 {
            self.forget_gone();
        }
        while self.waiting > 0 {
            let unproven_may = self.unproven_may_hold_more();
            let waiting = self.shares.iter().filter_map(|(owner, share)| {
                let (arrival, _) = share.waiters.front().filter(|_| unproven_may || owner.is_proven())?;
                Some((share.held, *arrival, owner))
            });
            // Every other one holds as many or more.
            let next = waiting.min_by_key(|(held, arrival, _)| (*held, *arrival));
            let Some((_, _, owner)) = next.filter(|(held, ..)| self.may_hold_more_than(*held)) else { break };
            let owner = owner.clone();
            let Some((_, waiter)) = self.shares.get_mut(&owner).and_then(|share| share.waiters.pop_front()) else {
                break;
            };
            self.waiting -= 1;
            self.try_take(&owner);
            granted.push((owner, waiter));
        }
        granted
    }

    /// Removes the requests that wait no longer.
    fn forget_gone(&mut self) {
        self.shares.retain(|_, share| {
            share.waiters.retain(|(_, waiter)| !waiter.is_closed());
            share.held > 0 || !share.waiters.is_empty()
        });
        self.waiting = self.shares.values().map(|share| share.waiters.len()).sum();
    }

    /// Where more wait than there are permits, the newest of the owner with the most waiters waits no longer. Owners
    /// without a proven key count as one here.
    fn evict(&mut self) {
        if self.waiting > self.max {
            self.forget_gone();
        }
        while self.waiting > self.max {
            let unproven: usize = self.unproven().map(|share| share.waiters.len()).sum();
            let most = self.shares.iter_mut().max_by_key(|(owner, share)| {
                let (own, newest) = (share.waiters.len(), share.waiters.back().map(|(arrival, _)| *arrival));
                (if owner.is_proven() { own } else { unproven }, !owner.is_proven(), own, newest)
            });
            let Some((_, share)) = most else { break };
            share.waiters.pop_back();
            self.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn key(n: usize) -> Owner {
        Owner::Key(n.to_string().into())
    }

    fn is_idle(permits: &Permits) -> bool {
        let counts = permits.counts();
        counts == (0, 0) && permits.0.lock().shares.is_empty()
    }

    #[test]
    fn a_key_takes_places_while_it_holds_fewer_than_a_quarter_of_the_free_ones() {
        let permits = Permits::new(256);
        let mut held = Vec::new();
        let mut all_of = |owner: Owner| {
            let take = || permits.acquire(owner.clone(), Duration::ZERO).now_or_never().unwrap();
            let taken: Vec<_> = std::iter::from_fn(take).collect();
            held.push(taken);
            held.last().unwrap().len()
        };
        assert_eq!([1, 2, 3].map(|n| all_of(key(n))), [52, 41, 33]);
        let unproven: usize = (0..300).map(|n| all_of(Owner::Address(n))).sum();
        assert_eq!(unproven, 64, "a quarter of all, together");
        drop(held);
        assert!(is_idle(&permits));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_times_out_leaves_and_one_too_many_displaces_the_newest_of_who_has_most() {
        let permits = Permits::new(2);
        let held = [1, 2].map(|n| permits.acquire(key(n), LONG).now_or_never().unwrap().unwrap());
        assert!(permits.acquire(key(3), Duration::ZERO).await.is_none());
        assert!(permits.acquire(key(3), Duration::from_secs(1)).await.is_none());
        assert_eq!(permits.counts(), (2, 0));
        let wait = |owner| {
            let mut waits = Box::pin(permits.acquire(owner, LONG));
            assert!(waits.as_mut().now_or_never().is_none());
            waits
        };
        let (first, stranger) = (wait(Owner::Address(1)), wait(Owner::Address(2)));
        let other = wait(key(3));
        assert!(stranger.await.is_none());
        assert_eq!(permits.counts(), (2, 2));
        permits.resize(1);
        assert!(permits.acquire(key(3), LONG).await.is_none(), "one place, so one waits");
        assert!(first.await.is_none());
        drop(held);
        drop(other.await.unwrap());
        assert!(is_idle(&permits));
    }

    #[tokio::test]
    async fn a_permit_granted_to_a_waiter_that_gives_up_at_that_moment_goes_to_the_next() {
        let permits = Permits::new(2);
        let [held, _other] = [1, 2].map(|n| permits.acquire(key(n), LONG).now_or_never().unwrap().unwrap());
        let (mut gives_up, mut next) =
            (Box::pin(permits.acquire(key(3), LONG)), Box::pin(permits.acquire(key(4), LONG)));
        assert!(futures_util::poll!(gives_up.as_mut()).is_pending());
        assert!(futures_util::poll!(next.as_mut()).is_pending());
        drop(held); // it is 3's from here on
        assert!(futures_util::poll!(next.as_mut()).is_pending());
        drop(gives_up);
        assert!(next.await.is_some());
    }

    proptest! {
        /// Whatever comes, ends and gives up: no more are held than there are, no place is free while a waiter may have
        /// it, and none is lost.
        #[test]
        fn the_quarter_rule_holds(max in 1_usize..40, steps in prop::collection::vec((0_usize..4, 0_usize..12), 0..300)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let (_runtime, permits) = (runtime.enter(), Permits::new(max));
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for (step, n) in steps {
                let owner = if n < 8 { key(n) } else { Owner::Address(n as u64) };
                match step {
                    0 | 1 => {
                        let before = permits.0.lock().shares.get(&owner).map_or(0, |share| share.held);
                        let free = max - held.len();
                        let mut acquires = Box::pin(permits.acquire(owner.clone(), LONG));
                        match acquires.as_mut().now_or_never() {
                            None => waiting.push(acquires),
                            Some(permit) => held.extend(permit.inspect(|_| {
                                assert!(free > 0 && (before == 0 || 4 * before < free));
                            })),
                        }
                    }
                    2 if !held.is_empty() => drop(held.swap_remove(n % held.len())),
                    3 if !waiting.is_empty() => drop(waiting.swap_remove(n % waiting.len())),
                    _ => {}
                }
                waiting.retain_mut(|waits| match waits.as_mut().now_or_never() {
                    None => true,
                    Some(permit) => { held.extend(permit); false }
                });
                prop_assert!(held.len() <= max && waiting.len() <= max);
                prop_assert_eq!(permits.counts(), (held.len(), waiting.len()));
                let state = permits.0.lock();
                let unproven: usize = state.unproven().map(|share| share.held).sum();
                prop_assert!(unproven <= (max / 4).max(1));
                for (owner, share) in state.shares.iter().filter(|(_, share)| !share.waiters.is_empty()) {
                    let may = owner.is_proven() || state.unproven_may_hold_more();
                    prop_assert!(!(may && state.may_hold_more_than(share.held)), "{owner:?} could have one");
                }
            }
            drop((held, waiting));
            prop_assert!(is_idle(&permits));
        }
    }
}
