//! Which owner gets a permit, and which waiter is next (guarantee 6). Pure: it has no clock and wakes nobody.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::Owner;

/// The order of events: a later one has a higher number.
pub(super) type Ticket = u64;

/// The permits and the requests that wait for one; `W` wakes a waiter.
///
/// Once `grant_next` has returned `None`, no waiting request is entitled to a permit.
#[derive(Debug)]
pub(super) struct FairQueue<W> {
    max: usize,
    held: usize,
    /// Of these, the permits of owners without a proven key.
    held_unproven: usize,
    waiting: usize,
    /// Of these, the requests of owners without a proven key.
    waiting_unproven: usize,
    next_ticket: Ticket,
    /// Every owner that holds a permit or waits for one.
    owners: HashMap<Owner, OwnerState<W>>,
    /// Owners with a proven key that wait.
    proven: WaitingOwners,
    /// Owners without a proven key that wait.
    unproven: WaitingOwners,
}

/// Owners that wait, in two orders.
#[derive(Debug, Default)]
struct WaitingOwners {
    /// The first is granted the next permit.
    by_grant: BTreeMap<GrantOrder, Owner>,
    /// The newest waiter of the last is evicted next.
    by_waiters: BTreeMap<EvictionOrder, Owner>,
}

/// Permits that an owner holds, then the ticket since when it waits or was last granted a permit.
type GrantOrder = (usize, Ticket);

/// How many requests of an owner wait, then the ticket of the newest.
type EvictionOrder = (usize, Ticket);

#[derive(Debug)]
struct OwnerState<W> {
    held: usize,
    /// When it began to wait, or was granted a permit while it waited.
    waits_since: Ticket,
    waiters: VecDeque<(Ticket, W)>,
}

impl<W> FairQueue<W> {
    pub(super) fn new(max: usize) -> Self {
        FairQueue {
            max,
            held: 0,
            held_unproven: 0,
            waiting: 0,
            waiting_unproven: 0,
            next_ticket: 0,
            owners: HashMap::new(),
            proven: WaitingOwners::default(),
            unproven: WaitingOwners::default(),
        }
    }

    /// Takes a permit for `owner`, if it may have one now.
    pub(super) fn try_acquire(&mut self, owner: &Owner) -> bool {
        let held = self.owners.get(owner).map_or(0, |state| state.held);
        let may = self.may_hold_more_than(held) && (owner.is_proven() || self.unproven_may_hold_more());
        if may {
            self.change(owner, |state| state.held += 1);
            self.count_held(owner);
        }
        may
    }

    /// Lets a request of `owner` wait, after [`FairQueue::try_acquire`] refused. Returns its ticket, and the waiter
    /// that was evicted for it ([`FairQueue::evict`]), which may be itself.
    pub(super) fn enqueue(&mut self, owner: &Owner, waker: W) -> (Ticket, Option<W>) {
        let ticket = self.ticket();
        self.change(owner, |state| {
            if state.waiters.is_empty() {
                state.waits_since = ticket;
            }
            state.waiters.push_back((ticket, waker));
        });
        self.waiting += 1;
        self.waiting_unproven += usize::from(!owner.is_proven());
        (ticket, self.evict())
    }

    /// Removes a waiter. `None`: it was granted a permit or evicted before.
    pub(super) fn remove(&mut self, owner: &Owner, ticket: Ticket) -> Option<W> {
        let waiters = &self.owners.get(owner)?.waiters;
        let at = waiters.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()?;
        self.count_removed(owner);
        self.change(owner, |state| state.waiters.remove(at)).map(|(_, waker)| waker)
    }

    /// Returns a permit of `owner`. [`FairQueue::grant_next`] must follow, until it returns `None`.
    pub(super) fn release(&mut self, owner: &Owner) {
        self.change(owner, |state| state.held -= 1);
        self.held -= 1;
        self.held_unproven -= usize::from(!owner.is_proven());
    }

    /// Grants a permit to the next waiter, if that may have one.
    pub(super) fn grant_next(&mut self) -> Option<(Owner, W)> {
        let unproven = self.unproven.by_grant.first_key_value().filter(|_| self.unproven_may_hold_more());
        let proven = self.proven.by_grant.first_key_value();
        let (&(held, _), owner) = proven.into_iter().chain(unproven).min_by_key(|(order, _)| **order)?;
        // Every other waiter's owner holds as many or more.
        if !self.may_hold_more_than(held) {
            return None;
        }
        let (owner, ticket) = (owner.clone(), self.ticket());
        let (_, waker) = self.change(&owner, |state| {
            state.held += 1;
            state.waits_since = ticket;
            state.waiters.pop_front()
        })?;
        self.count_removed(&owner);
        self.count_held(&owner);
        Some((owner, waker))
    }

    /// Changes the number of permits; those that are held stay so. [`FairQueue::evict`] and [`FairQueue::grant_next`]
    /// must follow, until they return `None`.
    pub(super) fn resize(&mut self, max: usize) {
        self.max = max;
    }

    /// Evicts a waiter where more wait than there are permits: the newest of the owner with the most waiters. Owners
    /// without a proven key count as one here; if they have the most, then the newest waiter of the unproven owner with
    /// the most is evicted.
    pub(super) fn evict(&mut self) -> Option<W> {
        if self.waiting <= self.max {
            return None;
        }
        let proven = self.proven.by_waiters.last_key_value().filter(|((count, _), _)| *count > self.waiting_unproven);
        let owner = proven.or(self.unproven.by_waiters.last_key_value())?.1.clone();
        self.count_removed(&owner);
        self.change(&owner, |state| state.waiters.pop_back()).map(|(_, waker)| waker)
    }

    /// How many permits are held, and how many requests wait for one.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.held, self.waiting)
    }

    /// Whether no permit is held and no request waits.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.owners.is_empty() && self.held == 0 && self.waiting == 0
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
        self.held_unproven < (self.max / 4).max(1)
    }

    fn ticket(&mut self) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        ticket
    }

    fn count_held(&mut self, owner: &Owner) {
        self.held += 1;
        self.held_unproven += usize::from(!owner.is_proven());
    }

    fn count_removed(&mut self, owner: &Owner) {
        self.waiting -= 1;
        self.waiting_unproven -= usize::from(!owner.is_proven());
    }

    /// Changes an owner's state and its position in both orders. Owners that neither hold nor wait are removed.
    fn change<R>(&mut self, owner: &Owner, change: impl FnOnce(&mut OwnerState<W>) -> R) -> R {
        let waiting = if owner.is_proven() { &mut self.proven } else { &mut self.unproven };
        let state = self.owners.entry(owner.clone()).or_insert_with(OwnerState::new);
        if let Some((grant, eviction)) = state.order_keys() {
            waiting.by_grant.remove(&grant);
            waiting.by_waiters.remove(&eviction);
        }
        let changed = change(state);
        if let Some((grant, eviction)) = state.order_keys() {
            waiting.by_grant.insert(grant, owner.clone());
            waiting.by_waiters.insert(eviction, owner.clone());
        } else if state.held == 0 {
            self.owners.remove(owner);
        }
        changed
    }
}

impl<W> OwnerState<W> {
    fn new() -> Self {
        OwnerState { held: 0, waits_since: 0, waiters: VecDeque::new() }
    }

    fn order_keys(&self) -> Option<(GrantOrder, EvictionOrder)> {
        let (newest, _) = self.waiters.back()?;
        Some(((self.held, self.waits_since), (self.waiters.len(), *newest)))
    }
}

#[cfg(test)]
mod tests;
