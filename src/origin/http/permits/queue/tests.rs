//! Tests of who gets a permit and who waits: examples of the rule, and a property test that compares the queue with a
//! second, slower implementation of the same rule over random steps.

use proptest::prelude::*;

use super::*;

fn key(name: &str) -> Owner {
    Owner::Key(name.into())
}

/// Acquires as many permits as the owner may have; returns how many.
fn acquire_all(queue: &mut FairQueue<&'static str>, owner: &Owner) -> usize {
    (0..1000).take_while(|_| queue.try_acquire(owner)).count()
}

fn grant_all<W>(queue: &mut FairQueue<W>) -> Vec<W> {
    std::iter::from_fn(|| queue.grant_next()).map(|(_, waker)| waker).collect()
}

#[test]
fn two_keys_that_take_what_they_can_leave_most_to_others() {
    let mut queue = FairQueue::new(256);
    assert_eq!(acquire_all(&mut queue, &key("a")), 52);
    assert_eq!(acquire_all(&mut queue, &key("b")), 41);
    assert_eq!(acquire_all(&mut queue, &key("c")), 33);
    assert!(!queue.try_acquire(&key("a")));
}

#[test]
fn an_owner_without_a_permit_gets_the_last_one() {
    for max in 1..=4 {
        let mut queue = FairQueue::<()>::new(max);
        assert!((0..max).all(|n| queue.try_acquire(&key(&n.to_string()))), "{max}");
        assert!(!queue.try_acquire(&key("late")), "{max}");
    }
}

#[test]
fn addresses_together_take_a_quarter_and_at_least_one() {
    for (max, share) in [(256, 64), (7, 1), (4, 1), (1, 1)] {
        let mut queue = FairQueue::<()>::new(max);
        let taken = (0..1000).filter(|n| queue.try_acquire(&Owner::Address(*n))).count();
        assert_eq!(taken, share, "{max}");
        assert_eq!(queue.try_acquire(&key("a")), max > 1, "{max}");
    }
}

#[test]
fn the_owner_with_the_fewest_is_next_and_among_equals_the_one_that_has_waited_longest() {
    let mut queue = FairQueue::new(12);
    for owner in ["a", "a", "b", "c", "1", "2", "3", "4", "5", "6", "7", "8"] {
        assert!(queue.try_acquire(&key(owner)));
    }
    for (owner, waker) in [("a", "a 1"), ("b", "b 1"), ("d", "d 1"), ("d", "d 2"), ("c", "c 1"), ("e", "e 1")] {
        assert_eq!(queue.enqueue(&key(owner), waker).1, None);
    }
    for owner in ["1", "2", "3", "4", "5", "6", "7"] {
        queue.release(&key(owner));
    }
    assert_eq!(grant_all(&mut queue), ["d 1", "e 1", "b 1"], "four are free, and c, d and e hold one of their own");
    queue.release(&key("8"));
    assert_eq!(grant_all(&mut queue), ["c 1"], "d, which holds as many, was given one since");
    queue.release(&key("e"));
    assert_eq!(grant_all(&mut queue), ["d 2"], "a holds two");
}

#[test]
fn owners_that_hold_as_many_take_turns_however_many_requests_of_one_wait() {
    let mut queue = FairQueue::new(4);
    let others = ["1", "2", "3", "4"].map(key);
    assert!(others.iter().all(|owner| queue.try_acquire(owner)));
    for (owner, waker) in [("a", "a 1"), ("a", "a 2"), ("a", "a 3"), ("b", "b 1")] {
        queue.enqueue(&key(owner), waker);
    }
    queue.release(&others[0]);
    let mut given = grant_all(&mut queue);
    for waker in ["a 1", "b 1", "a 2"] {
        assert_eq!(given, [waker]);
        queue.release(&key(&waker[..1]));
        given = grant_all(&mut queue);
    }
    assert_eq!(given, ["a 3"]);
}

#[test]
fn when_too_many_wait_the_newest_of_the_owner_with_the_most_is_evicted() {
    let mut queue = FairQueue::new(3);
    for owner in ["x", "y", "z"] {
        assert!(queue.try_acquire(&key(owner)));
    }
    let mut wait = |owner: &Owner, waker| queue.enqueue(owner, waker).1;
    assert_eq!(wait(&key("a"), "a 1"), None);
    assert_eq!(wait(&key("a"), "a 2"), None);
    assert_eq!(wait(&Owner::Address(1), "1 1"), None);
    assert_eq!(wait(&key("b"), "b 1"), Some("a 2"), "a has two");
    assert_eq!(wait(&key("b"), "b 2"), Some("b 2"), "b has two with this one");
    assert_eq!(wait(&key("c"), "c 1"), Some("1 1"), "all have one: an address goes before a key");
    assert_eq!(wait(&key("d"), "d 1"), Some("d 1"), "all have one: the newest goes");
    assert_eq!(wait(&Owner::Address(2), "2 1"), Some("2 1"));
}

#[test]
fn addresses_that_wait_count_as_one_owner() {
    let mut queue = FairQueue::new(4);
    assert!((0..4).all(|n| queue.try_acquire(&key(&n.to_string()))));
    for waker in ["a 1", "a 2"] {
        queue.enqueue(&key("a"), waker);
    }
    for (n, gone) in [(1, None), (2, None), (3, Some("another's")), (4, Some("another's"))] {
        assert_eq!(queue.enqueue(&Owner::Address(n), "another's").1, gone, "two of a key and two of addresses wait");
    }
    assert_eq!(queue.enqueue(&key("b"), "b 1").1, Some("another's"));
    assert_eq!(queue.enqueue(&key("b"), "b 2").1, Some("b 2"));
}

#[test]
fn a_waiter_that_left_is_not_granted_a_permit() {
    let mut queue = FairQueue::new(1);
    assert!(queue.try_acquire(&key("a")));
    let (first, _) = queue.enqueue(&key("b"), "b 1");
    assert_eq!(queue.remove(&key("b"), first), Some("b 1"));
    assert_eq!(queue.remove(&key("b"), first), None);
    queue.release(&key("a"));
    assert_eq!(queue.grant_next(), None);
    assert!(queue.owners.is_empty(), "an owner that neither holds nor waits is removed");
}

#[test]
fn after_a_resize_waiters_are_granted_permits_or_evicted_and_no_holder_loses_one() {
    let mut queue = FairQueue::new(4);
    let owners = ["a", "b", "c", "d"].map(key);
    assert!(owners.iter().all(|owner| queue.try_acquire(owner)));
    for waker in ["a 1", "a 2", "a 3"] {
        queue.enqueue(&owners[0], waker);
    }
    queue.enqueue(&owners[1], "b 1");
    queue.resize(2);
    let evicted: Vec<_> = std::iter::from_fn(|| queue.evict()).collect();
    assert_eq!((evicted, queue.held), (vec!["a 3", "a 2"], 4));
    queue.release(&owners[3]);
    assert_eq!(grant_all(&mut queue), [""; 0], "three are taken of two");
    queue.resize(30);
    assert_eq!(grant_all(&mut queue), ["a 1", "b 1"]);
}

/// What happens at the origin.
#[derive(Clone, Debug)]
enum Step {
    /// A request of an owner comes: it gets a permit or waits.
    Comes(u8),
    /// One of the requests with a permit is over.
    Over(usize),
    /// One of those that wait gives up.
    Leaves(usize),
    /// Changes the number of permits.
    Resized(usize),
}

fn any_steps() -> impl Strategy<Value = (usize, Vec<Step>)> {
    let step = prop_oneof![
        8 => (0u8..10).prop_map(Step::Comes),
        6 => any::<usize>().prop_map(Step::Over),
        2 => any::<usize>().prop_map(Step::Leaves),
        1 => (1usize..20).prop_map(Step::Resized),
    ];
    (1usize..20, proptest::collection::vec(step, 1..200))
}

/// The first owners have a proven key each.
fn owner(n: u8) -> Owner {
    if n < 6 { key(&n.to_string()) } else { Owner::Address(n.into()) }
}

/// The rules a second time, slowly: all requests in lists, in the order in which they came.
#[derive(Debug)]
struct Lists {
    max: usize,
    held: Vec<Owner>,
    waiting: Vec<(Ticket, Owner)>,
    /// Owners in the order in which they began to wait, or were granted a permit while they waited.
    turns: Vec<Owner>,
}

impl Lists {
    fn held_by(&self, owner: &Owner) -> usize {
        self.held.iter().filter(|holder| *holder == owner).count()
    }

    fn may_take(&self, owner: &Owner) -> bool {
        let free = self.max.saturating_sub(self.held.len());
        let share = self.held_by(owner) == 0 || (self.held_by(owner) as f64) < free as f64 / 4.0;
        let unproven = self.held.iter().filter(|holder| !holder.is_proven()).count();
        free > 0 && share && (owner.is_proven() || unproven < std::cmp::max(1, self.max / 4))
    }

    /// All waiters that are granted a permit now, in turn.
    fn grant(&mut self) -> Vec<Ticket> {
        let mut given = Vec::new();
        loop {
            self.turns.retain(|owner| self.waiting.iter().any(|(_, waits)| waits == owner));
            let may = self.turns.iter().filter(|owner| self.may_take(owner));
            let Some(owner) = may.min_by_key(|owner| self.held_by(owner)).cloned() else { return given };
            let at = self.waiting.iter().position(|(_, waits)| *waits == owner).unwrap();
            given.push(self.waiting.remove(at).0);
            self.turns.retain(|other| *other != owner);
            self.turns.push(owner.clone());
            self.held.push(owner);
        }
    }

    fn wait(&mut self, ticket: Ticket, owner: Owner) {
        if !self.waiting.iter().any(|(_, waits)| *waits == owner) {
            self.turns.retain(|other| *other != owner);
            self.turns.push(owner.clone());
        }
        self.waiting.push((ticket, owner));
    }

    /// All waiters that are evicted now.
    fn evict(&mut self) -> Vec<Ticket> {
        let mut evicted = Vec::new();
        while self.waiting.len() > self.max {
            let count = |owner: &Owner| self.waiting.iter().filter(|(_, waits)| waits == owner).count();
            let unproven = self.waiting.iter().filter(|(_, waits)| !waits.is_proven()).count();
            let together = |owner: &Owner| if owner.is_proven() { count(owner) } else { unproven };
            let last = self
                .waiting
                .iter()
                .max_by_key(|(ticket, owner)| (together(owner), !owner.is_proven(), count(owner), *ticket));
            let (ticket, _) = last.cloned().unwrap();
            self.waiting.retain(|(waits, _)| *waits != ticket);
            evicted.push(ticket);
        }
        evicted
    }
}

proptest! {
    #[test]
    fn it_keeps_to_the_rules_whatever_happens((max, steps) in any_steps()) {
        let mut queue = FairQueue::new(max);
        let mut lists = Lists { max, held: Vec::new(), waiting: Vec::new(), turns: Vec::new() };
        for step in steps {
            let (held_before, unproven_before) = (queue.held, queue.held_unproven);
            match step {
                Step::Comes(n) => {
                    let owner = owner(n);
                    let may = lists.may_take(&owner);
                    prop_assert_eq!(queue.try_acquire(&owner), may);
                    if may {
                        lists.held.push(owner);
                    } else {
                        let ticket = queue.next_ticket;
                        lists.wait(ticket, owner.clone());
                        let evicted: Vec<_> = queue.enqueue(&owner, ticket).1.into_iter().collect();
                        prop_assert_eq!(evicted, lists.evict());
                    }
                }
                Step::Over(n) if !lists.held.is_empty() => {
                    let owner = lists.held.remove(n % lists.held.len());
                    queue.release(&owner);
                    prop_assert_eq!(grant_all(&mut queue), lists.grant());
                }
                Step::Leaves(n) if !lists.waiting.is_empty() => {
                    let (ticket, owner) = lists.waiting.remove(n % lists.waiting.len());
                    prop_assert_eq!(queue.remove(&owner, ticket), Some(ticket));
                }
                Step::Over(_) | Step::Leaves(_) => {}
                Step::Resized(max) => {
                    queue.resize(max);
                    lists.max = max;
                    let evicted: Vec<_> = std::iter::from_fn(|| queue.evict()).collect();
                    prop_assert_eq!(evicted, lists.evict());
                    prop_assert_eq!(grant_all(&mut queue), lists.grant());
                }
            }
            let unproven = lists.held.iter().filter(|owner| !owner.is_proven()).count();
            prop_assert_eq!((queue.held, queue.held_unproven), (lists.held.len(), unproven));
            prop_assert_eq!(queue.waiting, lists.waiting.len());
            // More than the maximum are held only where the maximum was higher before.
            prop_assert!(queue.held <= queue.max.max(held_before));
            prop_assert!(unproven <= (queue.max / 4).max(1).max(unproven_before));
            prop_assert!(queue.waiting <= queue.max);
            prop_assert!(!lists.waiting.iter().any(|(_, owner)| lists.may_take(owner)), "somebody waits for nothing");
            let known: usize = queue.owners.values().map(|state| state.held + state.waiters.len()).sum();
            prop_assert_eq!(known, queue.held + queue.waiting);
            prop_assert!(queue.owners.values().all(|state| state.held + state.waiters.len() > 0));
            for waiting in [&queue.proven, &queue.unproven] {
                prop_assert_eq!(waiting.by_grant.len(), waiting.by_waiters.len());
            }
        }
    }
}
