//! Tests of who gets a place at the origin and who waits: examples of the rule, and a property test that compares the
//! queue with a second, slower reading of the same rule over random steps.

use proptest::prelude::*;

use super::*;

fn key(name: &str) -> Owner {
    Owner::Key(name.into())
}

/// Takes as many places as it may; answers how many.
fn take_all(queue: &mut FairQueue<&'static str>, owner: &Owner) -> usize {
    (0..1000).take_while(|_| queue.take(owner)).count()
}

fn give_all<W>(queue: &mut FairQueue<W>) -> Vec<W> {
    std::iter::from_fn(|| queue.give()).map(|(_, waker)| waker).collect()
}

#[test]
fn two_keys_that_take_what_they_can_leave_most_to_others() {
    let mut queue = FairQueue::new(256);
    assert_eq!(take_all(&mut queue, &key("a")), 52);
    assert_eq!(take_all(&mut queue, &key("b")), 41);
    assert_eq!(take_all(&mut queue, &key("c")), 33);
    assert!(!queue.take(&key("a")));
}

#[test]
fn whoever_holds_none_takes_the_last_place() {
    for max in 1..=4 {
        let mut queue = FairQueue::<()>::new(max);
        assert!((0..max).all(|n| queue.take(&key(&n.to_string()))), "{max}");
        assert!(!queue.take(&key("late")), "{max}");
    }
}

#[test]
fn addresses_together_take_a_quarter_and_at_least_one() {
    for (max, share) in [(256, 64), (7, 1), (4, 1), (1, 1)] {
        let mut queue = FairQueue::<()>::new(max);
        let taken = (0..1000).filter(|n| queue.take(&Owner::Address(*n))).count();
        assert_eq!(taken, share, "{max}");
        assert_eq!(queue.take(&key("a")), max > 1, "{max}");
    }
}

#[test]
fn who_holds_fewest_is_next_and_among_equals_who_has_waited_longest() {
    let mut queue = FairQueue::new(12);
    for owner in ["a", "a", "b", "c", "1", "2", "3", "4", "5", "6", "7", "8"] {
        assert!(queue.take(&key(owner)));
    }
    for (owner, waker) in [("a", "a 1"), ("b", "b 1"), ("d", "d 1"), ("d", "d 2"), ("c", "c 1"), ("e", "e 1")] {
        assert_eq!(queue.wait(&key(owner), waker).1, None);
    }
    for owner in ["1", "2", "3", "4", "5", "6", "7"] {
        queue.give_back(&key(owner));
    }
    assert_eq!(give_all(&mut queue), ["d 1", "e 1", "b 1"], "four are free, and c, d and e hold one of their own");
    queue.give_back(&key("8"));
    assert_eq!(give_all(&mut queue), ["c 1"], "d, which holds as many, was given one since");
    queue.give_back(&key("e"));
    assert_eq!(give_all(&mut queue), ["d 2"], "a holds two");
}

#[test]
fn owners_that_hold_as_many_take_turns_however_many_requests_of_one_wait() {
    let mut queue = FairQueue::new(4);
    let others = ["1", "2", "3", "4"].map(key);
    assert!(others.iter().all(|owner| queue.take(owner)));
    for (owner, waker) in [("a", "a 1"), ("a", "a 2"), ("a", "a 3"), ("b", "b 1")] {
        queue.wait(&key(owner), waker);
    }
    queue.give_back(&others[0]);
    let mut given = give_all(&mut queue);
    for waker in ["a 1", "b 1", "a 2"] {
        assert_eq!(given, [waker]);
        queue.give_back(&key(&waker[..1]));
        given = give_all(&mut queue);
    }
    assert_eq!(given, ["a 3"]);
}

#[test]
fn when_too_many_wait_the_newest_of_those_with_the_most_goes() {
    let mut queue = FairQueue::new(3);
    for owner in ["x", "y", "z"] {
        assert!(queue.take(&key(owner)));
    }
    let mut wait = |owner: &Owner, waker| queue.wait(owner, waker).1;
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
fn addresses_that_wait_count_as_one_crowd() {
    let mut queue = FairQueue::new(4);
    assert!((0..4).all(|n| queue.take(&key(&n.to_string()))));
    for waker in ["a 1", "a 2"] {
        queue.wait(&key("a"), waker);
    }
    for (n, gone) in [(1, None), (2, None), (3, Some("another's")), (4, Some("another's"))] {
        assert_eq!(queue.wait(&Owner::Address(n), "another's").1, gone, "two of a key and two of addresses wait");
    }
    assert_eq!(queue.wait(&key("b"), "b 1").1, Some("another's"));
    assert_eq!(queue.wait(&key("b"), "b 2").1, Some("b 2"));
}

#[test]
fn who_leaves_is_not_given_a_place() {
    let mut queue = FairQueue::new(1);
    assert!(queue.take(&key("a")));
    let (first, _) = queue.wait(&key("b"), "b 1");
    assert_eq!(queue.leave(&key("b"), first), Some("b 1"));
    assert_eq!(queue.leave(&key("b"), first), None);
    queue.give_back(&key("a"));
    assert_eq!(queue.give(), None);
    assert!(queue.owners.is_empty(), "who neither holds nor waits is forgotten");
}

#[test]
fn with_other_many_places_waiters_get_in_or_have_to_go_and_nobody_who_holds_one_loses_it() {
    let mut queue = FairQueue::new(4);
    let owners = ["a", "b", "c", "d"].map(key);
    assert!(owners.iter().all(|owner| queue.take(owner)));
    for waker in ["a 1", "a 2", "a 3"] {
        queue.wait(&owners[0], waker);
    }
    queue.wait(&owners[1], "b 1");
    queue.resize(2);
    let dismissed: Vec<_> = std::iter::from_fn(|| queue.dismiss()).collect();
    assert_eq!((dismissed, queue.taken), (vec!["a 3", "a 2"], 4));
    queue.give_back(&owners[3]);
    assert_eq!(give_all(&mut queue), [""; 0], "three are taken of two");
    queue.resize(30);
    assert_eq!(give_all(&mut queue), ["a 1", "b 1"]);
}

/// What happens at the origin.
#[derive(Clone, Debug)]
enum Step {
    /// A request of an owner comes: it takes a place or waits.
    Comes(u8),
    /// One of the requests that have a place is over.
    Over(usize),
    /// One of those that wait hangs up.
    Leaves(usize),
    /// There are so many places from now on.
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

/// The rules read a second time, slowly: everyone in lists, in the order in which they came.
#[derive(Debug)]
struct Lists {
    max: usize,
    taken: Vec<Owner>,
    waiting: Vec<(Ticket, Owner)>,
    /// Owners in the order in which they began to wait, or were given a place while they waited.
    turns: Vec<Owner>,
}

impl Lists {
    fn held(&self, owner: &Owner) -> usize {
        self.taken.iter().filter(|taken| *taken == owner).count()
    }

    fn may_take(&self, owner: &Owner) -> bool {
        let free = self.max.saturating_sub(self.taken.len());
        let share = self.held(owner) == 0 || (self.held(owner) as f64) < free as f64 / 4.0;
        let unproven = self.taken.iter().filter(|taken| !taken.is_proven()).count();
        free > 0 && share && (owner.is_proven() || unproven < std::cmp::max(1, self.max / 4))
    }

    /// Everyone who is given a place now, in turn.
    fn give(&mut self) -> Vec<Ticket> {
        let mut given = Vec::new();
        loop {
            self.turns.retain(|owner| self.waiting.iter().any(|(_, waits)| waits == owner));
            let may = self.turns.iter().filter(|owner| self.may_take(owner));
            let Some(owner) = may.min_by_key(|owner| self.held(owner)).cloned() else { return given };
            let at = self.waiting.iter().position(|(_, waits)| *waits == owner).unwrap();
            given.push(self.waiting.remove(at).0);
            self.turns.retain(|other| *other != owner);
            self.turns.push(owner.clone());
            self.taken.push(owner);
        }
    }

    fn wait(&mut self, ticket: Ticket, owner: Owner) {
        if !self.waiting.iter().any(|(_, waits)| *waits == owner) {
            self.turns.retain(|other| *other != owner);
            self.turns.push(owner.clone());
        }
        self.waiting.push((ticket, owner));
    }

    /// Everyone who has to go now.
    fn dismiss(&mut self) -> Vec<Ticket> {
        let mut dismissed = Vec::new();
        while self.waiting.len() > self.max {
            let crowd = |owner: &Owner| self.waiting.iter().filter(|(_, waits)| waits == owner).count();
            let unproven = self.waiting.iter().filter(|(_, waits)| !waits.is_proven()).count();
            let together = |owner: &Owner| if owner.is_proven() { crowd(owner) } else { unproven };
            let last = self
                .waiting
                .iter()
                .max_by_key(|(ticket, owner)| (together(owner), !owner.is_proven(), crowd(owner), *ticket));
            let (ticket, _) = last.cloned().unwrap();
            self.waiting.retain(|(waits, _)| *waits != ticket);
            dismissed.push(ticket);
        }
        dismissed
    }
}

proptest! {
    #[test]
    fn it_keeps_to_the_rules_whatever_happens((max, steps) in any_steps()) {
        let mut queue = FairQueue::new(max);
        let mut lists = Lists { max, taken: Vec::new(), waiting: Vec::new(), turns: Vec::new() };
        for step in steps {
            let (taken_before, unproven_before) = (queue.taken, queue.taken_unproven);
            match step {
                Step::Comes(n) => {
                    let owner = owner(n);
                    let may = lists.may_take(&owner);
                    prop_assert_eq!(queue.take(&owner), may);
                    if may {
                        lists.taken.push(owner);
                    } else {
                        let ticket = queue.next_ticket;
                        lists.wait(ticket, owner.clone());
                        let dismissed: Vec<_> = queue.wait(&owner, ticket).1.into_iter().collect();
                        prop_assert_eq!(dismissed, lists.dismiss());
                    }
                }
                Step::Over(n) if !lists.taken.is_empty() => {
                    let owner = lists.taken.remove(n % lists.taken.len());
                    queue.give_back(&owner);
                    prop_assert_eq!(give_all(&mut queue), lists.give());
                }
                Step::Leaves(n) if !lists.waiting.is_empty() => {
                    let (ticket, owner) = lists.waiting.remove(n % lists.waiting.len());
                    prop_assert_eq!(queue.leave(&owner, ticket), Some(ticket));
                }
                Step::Over(_) | Step::Leaves(_) => {}
                Step::Resized(max) => {
                    queue.resize(max);
                    lists.max = max;
                    let dismissed: Vec<_> = std::iter::from_fn(|| queue.dismiss()).collect();
                    prop_assert_eq!(dismissed, lists.dismiss());
                    prop_assert_eq!(give_all(&mut queue), lists.give());
                }
            }
            let unproven = lists.taken.iter().filter(|owner| !owner.is_proven()).count();
            prop_assert_eq!((queue.taken, queue.taken_unproven), (lists.taken.len(), unproven));
            prop_assert_eq!(queue.waiting, lists.waiting.len());
            // More than there are are taken only where there were more places before.
            prop_assert!(queue.taken <= queue.max.max(taken_before));
            prop_assert!(unproven <= (queue.max / 4).max(1).max(unproven_before));
            prop_assert!(queue.waiting <= queue.max);
            prop_assert!(!lists.waiting.iter().any(|(_, owner)| lists.may_take(owner)), "somebody waits for nothing");
            let known: usize = queue.owners.values().map(|account| account.held + account.waiters.len()).sum();
            prop_assert_eq!(known, queue.taken + queue.waiting);
            prop_assert!(queue.owners.values().all(|account| account.held + account.waiters.len() > 0));
            prop_assert_eq!(queue.turns.each_ref().map(BTreeMap::len), queue.crowds.each_ref().map(BTreeMap::len));
        }
    }
}
