//! The permits of an HTTP origin, `origin.max_in_flight` of them (guarantee 6): a request gets one at once, or waits for
//! its turn. The contract calls a permit a place.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
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

    /// The key, if it is proven.
    fn key(&self) -> Option<&KeyId> {
        if let Owner::Key(key) = self { Some(key) } else { None }
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
    /// How many permits each owner holds, and all of them.
    held: HashMap<Owner, usize, RandomState>,
    all_held: usize,
    /// The requests that wait, in the order of their arrival. One that gives up closes its channel.
    waiters: Vec<(Owner, oneshot::Sender<Permit>)>,
}

impl Permits {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let (held, all_held, waiters) = Default::default();
        Arc::new(Permits(Mutex::new(State { max, held, all_held, waiters })))
    }

    /// A permit, now or when it is `owner`'s turn; `None` if that takes longer than `timeout`, or too many wait.
    pub(super) async fn acquire(self: &Arc<Self>, owner: Owner, timeout: Duration) -> Option<Permit> {
        let granted = {
            let mut state = self.0.lock();
            if state.may_have_one(&owner) {
                state.take(owner.clone());
                return Some(Permit { permits: self.clone(), owner });
            }
            if timeout.is_zero() {
                return None;
            }
            let (waiter, granted) = oneshot::channel();
            state.waiters.push((owner, waiter));
            state.evict();
            granted
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
        (state.all_held, state.waiters.len())
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
    fn take(&mut self, owner: Owner) {
        self.all_held += 1;
        *self.held.entry(owner).or_default() += 1;
    }

    fn give_back(&mut self, owner: &Owner) {
        self.all_held -= 1;
        if let Some(held) = self.held.get_mut(owner) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(owner);
            }
        }
    }

    /// Whether an owner may have another permit: it holds fewer than a quarter of the free ones, so that others get some,
    /// however many owners there are. One that has none gets the first that is free. Owners without a proven key share a
    /// quarter of all, since a sender can be as many of them as it likes.
    fn may_have_one(&self, owner: &Owner) -> bool {
        let (held, free) = (self.held_by(owner), self.max.saturating_sub(self.all_held));
        free > 0 && (held == 0 || 4 * held < free) && (owner.key().is_some() || self.unproven_may_hold_more())
    }

    fn held_by(&self, owner: &Owner) -> usize {
        self.held.get(owner).copied().unwrap_or(0)
    }

    fn unproven_may_hold_more(&self) -> bool {
        let unproven = self.held.iter().filter(|(owner, _)| owner.key().is_none());
        unproven.map(|(_, held)| held).sum::<usize>() < (self.max / 4).max(1)
    }

    /// Takes a permit for each waiter that may have one: next is that of the owner that holds the fewest, among equals
    /// the one that came first.
    fn grant(&mut self) -> Vec<(Owner, oneshot::Sender<Permit>)> {
        let mut granted = Vec::new();
        self.forget_gone();
        while self.all_held < self.max && !self.waiters.is_empty() {
            let unproven_may = self.unproven_may_hold_more();
            let waiting = self.waiters.iter().map(|(owner, _)| owner).enumerate();
            let waiting = waiting.filter(|(_, owner)| unproven_may || owner.key().is_some());
            // Every other one holds as many or more.
            let next = waiting.min_by_key(|(_, owner)| self.held_by(owner));
            let Some((at, _)) = next.filter(|(_, owner)| self.may_have_one(owner)) else { break };
            let (owner, waiter) = self.waiters.remove(at);
            self.take(owner.clone());
            granted.push((owner, waiter));
        }
        granted
    }

    /// Removes the requests that wait no longer.
    fn forget_gone(&mut self) {
        self.waiters.retain(|(_, waiter)| !waiter.is_closed());
    }

    /// Where more wait than there are permits, the newest of the owner with the most waiters waits no longer. Owners
    /// without a proven key count as one here.
    fn evict(&mut self) {
        if self.waiters.len() > self.max {
            self.forget_gone();
        }
        while self.waiters.len() > self.max {
            let owners = || self.waiters.iter().map(|(owner, _)| owner.key());
            let mut waiting = HashMap::<_, usize>::new();
            owners().for_each(|key| *waiting.entry(key).or_default() += 1);
            let most = owners().enumerate().max_by_key(|(_, key)| (waiting[key], key.is_none()));
            let Some((at, _)) = most else { break };
            self.waiters.remove(at);
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
        counts == (0, 0) && permits.0.lock().held.is_empty()
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
                        let before = permits.0.lock().held_by(&owner);
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
                let unproven = state.held.iter().filter(|(owner, _)| owner.key().is_none()).map(|(_, held)| held);
                prop_assert!(unproven.sum::<usize>() <= (max / 4).max(1));
                for (owner, _) in &state.waiters {
                    prop_assert!(!state.may_have_one(owner), "{owner:?} could have one");
                }
            }
            drop((held, waiting));
            prop_assert!(is_idle(&permits));
        }
    }
}
