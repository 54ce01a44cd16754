//! Who takes a place at the origin, and who waits for one in which turn (guarantee 6). Pure: it knows no
//! clock and wakes nobody.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::Owner;

/// Says when something came: what comes later has a higher one.
pub(super) type Ticket = u64;

/// The places and those who wait for one; `W` is what a waiter is woken by.
///
/// After each call nobody waits who may take a place: an owner that may take one has no waiters.
#[derive(Debug)]
pub(super) struct FairQueue<W> {
    max: usize,
    taken: usize,
    /// Of these, the places of owners without a proven key.
    taken_unproven: usize,
    waiting: usize,
    /// Of these, the ones of owners without a proven key.
    waiting_unproven: usize,
    next_ticket: Ticket,
    /// Who holds a place or waits for one.
    owners: HashMap<Owner, Account<W>>,
    /// Owners that wait: those with a proven key, and those without.
    turns: [BTreeMap<Turn, Owner>; 2],
    /// The same owners, each kind's one with the most waiters last.
    crowds: [BTreeMap<Crowd, Owner>; 2],
}

/// An owner's turn among others: by the places it holds, then by how long it has waited since it was last given one.
type Turn = (usize, Ticket);

/// How many of an owner wait, and the ticket of the newest.
type Crowd = (usize, Ticket);

#[derive(Debug)]
struct Account<W> {
    held: usize,
    /// When it began to wait, or was given a place while it waited.
    waits_since: Ticket,
    waiters: VecDeque<(Ticket, W)>,
}

impl<W> FairQueue<W> {
    pub(super) fn new(max: usize) -> Self {
        FairQueue {
            max,
            taken: 0,
            taken_unproven: 0,
            waiting: 0,
            waiting_unproven: 0,
            next_ticket: 0,
            owners: HashMap::new(),
            turns: [BTreeMap::new(), BTreeMap::new()],
            crowds: [BTreeMap::new(), BTreeMap::new()],
        }
    }

    /// Takes a place for `owner`, if it may have one now.
    pub(super) fn take(&mut self, owner: &Owner) -> bool {
        let held = self.owners.get(owner).map_or(0, |account| account.held);
        let may = self.may_take(held) && (owner.is_proven() || self.unproven_may_take());
        if may {
            self.change(owner, |account| account.held += 1);
            self.count_taken(owner);
        }
        may
    }

    /// Lets `owner` wait, after [`FairQueue::take`] was refused. Answers its ticket, and who has to go
    /// ([`FairQueue::dismiss`]), which may be this one.
    pub(super) fn wait(&mut self, owner: &Owner, waker: W) -> (Ticket, Option<W>) {
        let ticket = self.ticket();
        self.change(owner, |account| {
            if account.waiters.is_empty() {
                account.waits_since = ticket;
            }
            account.waiters.push_back((ticket, waker));
        });
        self.waiting += 1;
        self.waiting_unproven += usize::from(!owner.is_proven());
        (ticket, self.dismiss())
    }

    /// A waiter waits no longer. Nothing is answered where it was given a place or was dismissed.
    pub(super) fn leave(&mut self, owner: &Owner, ticket: Ticket) -> Option<W> {
        let waiters = &self.owners.get(owner)?.waiters;
        let at = waiters.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()?;
        self.count_left(owner);
        self.change(owner, |account| account.waiters.remove(at)).map(|(_, waker)| waker)
    }

    /// A place of `owner` is given back. [`FairQueue::give`] is to follow, until it gives no more.
    pub(super) fn give_back(&mut self, owner: &Owner) {
        self.change(owner, |account| account.held -= 1);
        self.taken -= 1;
        self.taken_unproven -= usize::from(!owner.is_proven());
    }

    /// Gives a place to the waiter whose turn it is, if one may have it.
    pub(super) fn give(&mut self) -> Option<(Owner, W)> {
        let unproven = self.turns[1].first_key_value().filter(|_| self.unproven_may_take());
        let (&(held, _), owner) =
            self.turns[0].first_key_value().into_iter().chain(unproven).min_by_key(|(turn, _)| **turn)?;
        // Who holds more may take none either.
        if !self.may_take(held) {
            return None;
        }
        let (owner, now) = (owner.clone(), self.ticket());
        let (_, waker) = self.change(&owner, |account| {
            account.held += 1;
            account.waits_since = now;
            account.waiters.pop_front()
        })?;
        self.count_left(&owner);
        self.count_taken(&owner);
        Some((owner, waker))
    }

    /// There are so many places from now on; those that are taken stay so. [`FairQueue::dismiss`] and
    /// [`FairQueue::give`] are to follow, until they answer nothing.
    pub(super) fn resize(&mut self, max: usize) {
        self.max = max;
    }

    /// Dismisses a waiter where more wait than there are places: the newest of the owner with the most. Owners
    /// without a proven key are taken for one here too: among them it is the newest of the one with the most.
    pub(super) fn dismiss(&mut self) -> Option<W> {
        if self.waiting <= self.max {
            return None;
        }
        let [proven, unproven] = &self.crowds;
        let most = proven.last_key_value().filter(|((count, _), _)| *count > self.waiting_unproven);
        let owner = most.or(unproven.last_key_value())?.1.clone();
        self.count_left(&owner);
        self.change(&owner, |account| account.waiters.pop_back()).map(|(_, waker)| waker)
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether nobody holds a place or waits for one.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.owners.is_empty() && self.taken == 0 && self.waiting == 0
    }

    /// Whether an owner that holds so many may take another one. Those that are held leave a part of what is free
    /// to others, however many owners there are; an owner without one has the first that is free.
    fn may_take(&self, held: usize) -> bool {
        let free = self.max.saturating_sub(self.taken);
        free > 0 && (held == 0 || 4 * held < free)
    }

    /// Owners without a proven key are as many as their sender likes: they have a share together.
    fn unproven_may_take(&self) -> bool {
        self.taken_unproven < (self.max / 4).max(1)
    }

    fn ticket(&mut self) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        ticket
    }

    fn count_taken(&mut self, owner: &Owner) {
        self.taken += 1;
        self.taken_unproven += usize::from(!owner.is_proven());
    }

    fn count_left(&mut self, owner: &Owner) {
        self.waiting -= 1;
        self.waiting_unproven -= usize::from(!owner.is_proven());
    }

    /// Changes an owner's account, and its turn with it. Owners that neither hold nor wait are forgotten.
    fn change<R>(&mut self, owner: &Owner, change: impl FnOnce(&mut Account<W>) -> R) -> R {
        let kind = usize::from(!owner.is_proven());
        let account = self.owners.entry(owner.clone()).or_insert_with(Account::new);
        if let Some((turn, crowd)) = account.places_in_order() {
            self.turns[kind].remove(&turn);
            self.crowds[kind].remove(&crowd);
        }
        let changed = change(account);
        if let Some((turn, crowd)) = account.places_in_order() {
            self.turns[kind].insert(turn, owner.clone());
            self.crowds[kind].insert(crowd, owner.clone());
        } else if account.held == 0 {
            self.owners.remove(owner);
        }
        changed
    }
}

impl<W> Account<W> {
    fn new() -> Self {
        Account { held: 0, waits_since: 0, waiters: VecDeque::new() }
    }

    fn places_in_order(&self) -> Option<(Turn, Crowd)> {
        let (newest, _) = self.waiters.back()?;
        Some(((self.held, self.waits_since), (self.waiters.len(), *newest)))
    }
}

#[cfg(test)]
mod tests;
