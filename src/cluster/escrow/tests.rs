//! What a lowered limit makes of tokens that were granted under the one before, a key that is made again, requests that
//! begin during a turn, tokens held for a request that waits for those of another bucket, a day that is given back, and a
//! node that is about to end.

use std::num::NonZeroU32;

use super::begin_turn::RESET;
use super::leaving::LEAVING_AFTER;
use super::*;

/// So many requests in flight, which a test may change; no day.
#[derive(Clone, Debug)]
pub(in crate::cluster) struct InFlight(Arc<AtomicU32>);

impl InFlight {
    pub(in crate::cluster) fn of(requests: u32) -> Self {
        InFlight(Arc::new(AtomicU32::new(requests)))
    }
}

impl LocalCounts for InFlight {
    fn in_flight(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    fn day(&self, _: Tick) -> (i64, u64) {
        (0, 0)
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn is_proven(&self) -> bool {
        true
    }
}

pub(in crate::cluster) fn tier(burst: u32) -> Arc<Tier> {
    let main = Rate { period_ns: 1_000_000_000, burst: NonZeroU32::new(burst).unwrap() };
    Arc::new(Tier { name: "standard".to_owned(), main, write: None, daily: None, in_flight: None, candidate: None })
}

/// An answer that grants so many tokens of the main bucket for ten seconds.
pub(in crate::cluster) fn grant(held: u32) -> Answer {
    let mut buckets = [Grant::default(); BUCKETS];
    buckets[Bucket::Main as usize] = Grant { held, left_us: 10_000_000, level: 0, held_by_all: u64::from(held) };
    Answer { is_repeated: false, is_lost: false, had_garbage: false, now_us: 1, buckets }
}

/// What holds tokens that were granted under this tier.
fn escrow_with_tokens(tier: &Arc<Tier>) -> Escrow {
    let escrow = Escrow::new(tier.clone(), Box::new(InFlight::of(0)), NOW);
    let turn = begin(&escrow);
    escrow.finish_turn(&turn, &grant(30), NOW);
    escrow
}

/// Whether a request under this tier gets a token.
fn is_admitted(escrow: &Escrow, tier: &Arc<Tier>) -> bool {
    escrow.use_tier(tier, NOW);
    escrow.spend(Bucket::Main, NOW).is_some()
}

/// A turn of a request that waits for a token.
fn begin(escrow: &Escrow) -> Arc<Turn> {
    assert_eq!(escrow.need([Bucket::Main].into_iter()), NextTurn::Now);
    escrow.begin_turn(None, NOW).unwrap()
}

const NOW: Tick = Tick(1 << 40);

#[test]
fn tokens_that_were_granted_under_a_higher_limit_are_not_spent_under_a_lower_one() {
    let (high, low) = (tier(40), tier(1));
    let escrow = escrow_with_tokens(&high);
    assert!(is_admitted(&escrow, &high));
    assert!(!is_admitted(&escrow, &low));
    // What was spent is reported, and what the next turn grants is spent.
    let turn = begin(&escrow);
    assert_eq!((turn.asks[0].spent, turn.asks[0].keep, turn.asks[0].capacity), (1, 0, 1));
    escrow.finish_turn(&turn, &grant(1), NOW);
    assert!(is_admitted(&escrow, &low));
    assert!(!is_admitted(&escrow, &low));
}

#[test]
fn a_turn_that_began_under_a_higher_limit_grants_nothing_under_a_lower_one() {
    let (high, low) = (tier(40), tier(1));
    let escrow = Escrow::new(high.clone(), Box::new(InFlight::of(0)), NOW);
    let turn = begin(&escrow);
    assert!(!is_admitted(&escrow, &low));
    assert_eq!(escrow.finish_turn(&turn, &grant(30), NOW), NextTurn::Now);
    assert!(!is_admitted(&escrow, &low));
}

#[test]
fn tokens_stay_where_a_reload_lowers_no_limit() {
    let (before, after) = (tier(40), tier(40));
    assert!(is_admitted(&escrow_with_tokens(&before), &after));
}

#[test]
fn requests_of_a_key_that_is_made_again_count_beside_those_of_before() {
    let tier = Arc::new(Tier { in_flight: Some(5), ..(*tier(40)).clone() });
    let escrow = Escrow::new(tier, Box::new(InFlight::of(2)), NOW);
    escrow.add_counts(Box::new(InFlight::of(1)));
    assert_eq!(begin(&escrow).asks[Bucket::InFlight as usize].need, 3);
}

/// Whether what began during a turn is refused, where the nodes hold so many of a hundred slots after it.
fn is_refused_after_a_turn(held_by_all: u64) -> bool {
    let tier = Arc::new(Tier { in_flight: Some(100), ..(*tier(40)).clone() });
    let escrow = Escrow::new(tier, Box::new(InFlight::of(1)), NOW);
    let turn = begin(&escrow);
    escrow.add_counts(Box::new(InFlight::of(5)));
    let mut answer = grant(1);
    answer.buckets[Bucket::InFlight as usize] = Grant { held: 2, left_us: 10_000_000, level: 0, held_by_all };
    escrow.finish_turn(&turn, &answer, NOW);
    escrow.lease(Bucket::InFlight).is_denied(NOW)
}

#[test]
fn requests_that_began_during_a_turn_are_refused_only_if_no_slot_is_free() {
    assert!(!is_refused_after_a_turn(2) && !is_refused_after_a_turn(99));
    assert!(is_refused_after_a_turn(100));
}

/// A key with a daily limit of three, whose request waited for a token of the day and one of the main bucket, and found
/// one of the main bucket free. `is_over`: none of the day is free.
fn holds_one_of_two(is_over: bool) -> Escrow {
    let escrow = Escrow::new(Arc::new(Tier { daily: Some(3), ..(*tier(40)).clone() }), Box::new(InFlight::of(0)), NOW);
    escrow.need([Bucket::Daily, Bucket::Main].into_iter());
    let turn = escrow.begin_turn(None, NOW).unwrap();
    let mut answer = grant(1);
    answer.buckets[Bucket::Daily as usize].level = if is_over { 3 } else { 0 };
    escrow.finish_turn(&turn, &answer, NOW);
    escrow
}

/// The main tokens kept by the turn of a request that waits for a token of the day.
fn kept_for_the_day(escrow: &Escrow) -> u32 {
    let later = NOW.plus(2 * IDLE_AFTER);
    escrow.need([Bucket::Daily].into_iter());
    escrow.begin_turn(None, later).unwrap().asks[Bucket::Main as usize].keep
}

#[test]
fn a_turn_that_fetches_a_token_of_one_bucket_keeps_that_of_another_for_the_same_request() {
    assert_eq!(kept_for_the_day(&holds_one_of_two(false)), 1);
}

#[test]
fn a_node_that_found_nothing_free_of_one_bucket_keeps_nothing_of_another_that_another_node_may_need() {
    assert_eq!(kept_for_the_day(&holds_one_of_two(true)), 0);
}

#[test]
fn a_bucket_of_which_something_is_free_again_is_not_refused_any_longer() {
    let escrow = holds_one_of_two(true);
    assert!(escrow.lease(Bucket::Daily).is_denied(NOW));
    escrow.reset_day(NOW);
    let turn = escrow.begin_turn(None, NOW).unwrap();
    assert_eq!(turn.asks[Bucket::Daily as usize].known.0, RESET);
    escrow.finish_turn(&turn, &grant(1), NOW);
    assert!(!escrow.lease(Bucket::Daily).is_denied(NOW));
}

#[test]
fn a_day_that_is_given_back_during_a_turn_is_given_back_by_the_next_one_at_once() {
    let escrow = Escrow::new(tier(40), Box::new(InFlight::of(0)), NOW);
    let turn = begin(&escrow);
    assert_eq!(escrow.reset_day(NOW), NextTurn::AsBefore);
    assert_eq!(escrow.finish_turn(&turn, &grant(1), NOW), NextTurn::Now);
    assert_eq!(escrow.begin_turn(None, NOW).unwrap().asks[Bucket::Daily as usize].known.0, RESET);
}

/// An answer that grants so many tokens of the main bucket and so many places in flight.
fn grant_with_places(tokens: u32, places: u32) -> Answer {
    let mut answer = grant(tokens);
    answer.buckets[Bucket::InFlight as usize] =
        Grant { held: places, left_us: 10_000_000, level: 0, held_by_all: u64::from(places) };
    answer
}

/// What a turn keeps: tokens of the main bucket, and places in flight.
fn kept(turn: &Turn) -> (u32, u32) {
    (turn.asks[Bucket::Main as usize].keep, turn.asks[Bucket::InFlight as usize].keep)
}

/// A busy key that holds 30 tokens and four places, two of which are in use.
fn busy() -> (InFlight, Escrow) {
    let (in_flight, tier) = (InFlight::of(0), Arc::new(Tier { in_flight: Some(9), ..(*tier(40)).clone() }));
    let escrow = Escrow::new(tier, Box::new(in_flight.clone()), NOW);
    in_flight.0.store(2, Ordering::SeqCst);
    let turn = begin(&escrow);
    escrow.finish_turn(&turn, &grant_with_places(31, 4), NOW);
    escrow.spend(Bucket::Main, NOW);
    (in_flight, escrow)
}

#[test]
fn a_node_that_is_about_to_end_keeps_no_place_that_is_not_in_use_and_tells_what_it_spent() {
    let (in_flight, escrow) = busy();
    assert!(escrow.holds_free_place(NOW));
    assert_eq!(escrow.set_leaving(true, NOW), NextTurn::Now);
    let turn = escrow.begin_turn(None, NOW).unwrap();
    assert_eq!((kept(&turn), turn.asks[Bucket::Main as usize].spent), ((0, 2), 1));
    assert_eq!(turn.asks.map(|ask| ask.want), [0; BUCKETS]);
    escrow.finish_turn(&turn, &grant_with_places(0, 2), NOW);
    assert!(!escrow.holds_free_place(NOW));
    assert_eq!(escrow.ask_to_give_back(NOW), NextTurn::AsBefore, "it has nothing more to say");
    // A request ends.
    in_flight.0.store(1, Ordering::SeqCst);
    assert_eq!(escrow.ask_to_give_place_back(NOW), NextTurn::Now);
    assert_eq!(kept(&escrow.begin_turn(None, NOW).unwrap()), (0, 1));
}

#[test]
fn what_a_turn_grants_while_its_node_begins_to_end_is_given_back_by_the_next_one() {
    let (in_flight, escrow) = busy();
    let turn = begin(&escrow);
    assert_eq!(escrow.set_leaving(true, NOW), NextTurn::AsBefore, "a turn is under way");
    // The places are in use: what waited for the tokens has time to spend them.
    let next = escrow.finish_turn(&turn, &grant_with_places(30, 2), NOW);
    let (soon, later) = (NOW.plus(LEAVING_AFTER), NOW.plus(2 * LEAVING_AFTER));
    assert_eq!(next, NextTurn::At(soon));
    let turn = escrow.begin_turn(Some(soon), later).unwrap();
    assert_eq!(kept(&turn), (0, 2));
    // A request ends during that turn: nobody but the end of the turn can tell.
    in_flight.0.store(1, Ordering::SeqCst);
    assert_eq!(escrow.ask_to_give_place_back(later), NextTurn::AsBefore);
    assert_eq!(escrow.finish_turn(&turn, &grant_with_places(0, 2), later), NextTurn::Now);
}

#[test]
fn a_node_that_goes_on_after_all_keeps_what_it_may_need_soon() {
    let (_, escrow) = busy();
    escrow.set_leaving(true, NOW);
    assert_eq!(escrow.set_leaving(false, NOW), NextTurn::AsBefore);
    let turn = escrow.begin_turn(None, NOW).unwrap();
    assert_eq!(kept(&turn).1, 4);
}

#[test]
fn a_node_that_is_about_to_end_takes_no_token_from_the_requests_that_waited_for_it() {
    let (in_flight, escrow) = busy();
    escrow.set_leaving(true, NOW);
    let turn = escrow.begin_turn(None, NOW).unwrap();
    escrow.finish_turn(&turn, &grant_with_places(0, 2), NOW);
    let turn = begin(&escrow);
    in_flight.0.store(1, Ordering::SeqCst);
    assert_eq!(escrow.ask_to_give_place_back(NOW), NextTurn::AsBefore, "a turn is under way");
    assert_eq!(escrow.finish_turn(&turn, &grant_with_places(3, 2), NOW), NextTurn::Now, "a place is free");
    let turn = escrow.begin_turn(None, NOW).unwrap();
    assert_eq!(kept(&turn), (3, 1));
}

#[test]
fn a_turn_that_got_no_answer_is_taken_again_before_a_node_ends_and_no_place_is_kept_for_a_request_that_is_cut() {
    let (_, escrow) = busy();
    escrow.set_leaving(true, NOW);
    let turn = escrow.begin_turn(None, NOW).unwrap();
    escrow.fail_turn();
    assert!(escrow.holds_free_place(NOW));
    assert_eq!(escrow.end(NOW), NextTurn::Now);
    assert_eq!(escrow.begin_turn(None, NOW).unwrap().sequence, turn.sequence);
    assert_eq!(escrow.finish_turn(&turn, &grant_with_places(0, 2), NOW), NextTurn::Now);
    assert_eq!(kept(&escrow.begin_turn(None, NOW).unwrap()), (0, 0));
}

#[test]
fn a_busy_key_keeps_its_tokens_at_a_node_that_is_about_to_end() {
    let (_, escrow) = busy();
    escrow.need([Bucket::Main; 20].into_iter());
    let turn = escrow.begin_turn(None, NOW).unwrap();
    escrow.finish_turn(&turn, &grant_with_places(30, 2), NOW);
    escrow.spend(Bucket::Main, NOW);
    escrow.set_leaving(true, NOW);
    let turn = escrow.begin_turn(None, NOW).unwrap();
    assert!(kept(&turn).0 >= 20, "{turn:?}");
    let idle = NOW.plus(2 * LEAVING_AFTER);
    escrow.finish_turn(&turn, &grant_with_places(20, 2), NOW);
    escrow.ask_to_give_back(idle);
    assert_eq!(kept(&escrow.begin_turn(None, idle).unwrap()), (0, 2));
}

#[test]
fn redis_is_told_what_was_admitted_without_it_and_has_not_come_back_and_not_that_the_bucket_began_empty() {
    let rate = tier(40).main;
    // After so many requests, the bucket is full again in so many seconds.
    for (requests, full_in, told) in [(2, 60, 2), (5, 3, 3), (1, 0, 0)] {
        let escrow = Escrow::new(tier(40), Box::new(InFlight::of(0)), NOW);
        let full_at = NOW.plus(Duration::from_secs(full_in));
        (0..requests).for_each(|_| escrow.owe(Bucket::Main, full_at, rate, rate));
        assert_eq!(begin(&escrow).asks[Bucket::Main as usize].owed, told);
    }
}

#[test]
fn a_turn_that_is_taken_again_after_it_got_no_answer_is_queued_until_it_is_begun_again() {
    let escrow = Escrow::new(tier(40), Box::new(InFlight::of(0)), NOW);
    begin(&escrow);
    escrow.fail_turn();
    assert_eq!(escrow.turn_state(), TurnState::None);
    escrow.need([Bucket::Main].into_iter());
    assert_eq!(escrow.turn_state(), TurnState::Queued);
    let later = NOW.plus(Duration::from_secs(1));
    escrow.begin_turn(None, later).unwrap();
    assert_eq!(escrow.turn_state(), TurnState::Begun(later));
}

#[test]
fn a_server_that_lost_the_day_is_told_what_all_nodes_counted_of_it() {
    let escrow = Escrow::new(Arc::new(Tier { daily: Some(40), ..(*tier(40)).clone() }), Box::new(InFlight::of(0)), NOW);
    let mut answer = grant(1);
    answer.buckets[Bucket::Daily as usize] = Grant { held: 2, left_us: 10_000_000, level: 20, held_by_all: 5 };
    escrow.finish_turn(&begin(&escrow), &answer, NOW);
    assert_eq!(escrow.day_told(NOW), (20, 3));
    escrow.spend(Bucket::Daily, NOW);
    assert_eq!(escrow.day_told(NOW), (21, 3));
    assert_eq!(escrow.day_told(NOW.plus(Duration::from_hours(24))), (0, 0));
    let told = begin(&escrow).asks[Bucket::Daily as usize];
    assert_eq!((told.known, told.spent), ((23, 0), 1), "others may have spent what they held");
    escrow.reset_day(NOW);
    escrow.finish_turn(&escrow.begin_turn(None, NOW).unwrap(), &grant(1), NOW);
    escrow.finish_turn(&escrow.begin_turn(None, NOW).unwrap(), &grant(1), NOW);
    assert_eq!(begin(&escrow).asks[Bucket::Daily as usize].known, (0, 0));
}

#[test]
fn a_key_that_gets_another_id_is_charged_there_with_what_it_used_up_and_what_redis_was_not_told_of_yet() {
    let (rate, before) = (tier(40).main, escrow_with_tokens(&tier(40)));
    (0..3).for_each(|_| assert!(before.spend(Bucket::Main, NOW).is_some()));
    let mut answer = grant(5);
    answer.buckets[Bucket::Main as usize].level = 7_000_000_000;
    before.finish_turn(&begin(&before), &answer, NOW);
    (0..2).for_each(|_| assert!(before.spend(Bucket::Main, NOW).is_some()));
    begin(&before); // which is not answered
    before.spend(Bucket::Main, NOW);
    before.owe(Bucket::Main, NOW.plus(Duration::from_secs(60)), rate, rate);
    let after = Escrow::new(tier(40), Box::new(InFlight::of(0)), NOW);
    assert_eq!(after.charge_as(&before.used_up(), NOW), NextTurn::Now);
    assert!(before.spend(Bucket::Main, NOW).is_none(), "what it held is not spent any more");
    let told = after.begin_turn(None, NOW).unwrap().asks[Bucket::Main as usize];
    assert_eq!((told.known, told.owed, told.spent), ((7_000_000_000, 1), 4, 0));
}

#[test]
fn a_key_that_is_charged_with_another_one_during_a_turn_tells_it_with_the_next_one() {
    let (escrow, other) = (escrow_with_tokens(&tier(40)), escrow_with_tokens(&tier(40)));
    let mut answer = grant(1);
    answer.buckets[Bucket::Main as usize].level = 7_000_000_000;
    other.finish_turn(&begin(&other), &answer, NOW);
    let turn = begin(&escrow);
    assert_eq!(escrow.charge_as(&other.used_up(), NOW), NextTurn::AsBefore);
    assert_eq!(escrow.finish_turn(&turn, &grant(1), NOW), NextTurn::Now);
    let next = escrow.begin_turn(None, NOW).unwrap();
    assert!(next.sequence > turn.sequence + 1, "Redis sees that a turn is missing");
    assert_eq!(next.asks[Bucket::Main as usize].known, (7_000_000_000, 1));
}

#[test]
fn what_came_back_at_a_node_since_its_limit_was_raised_is_not_told_as_used_up() {
    let at = |seconds| NOW.plus(Duration::from_secs(seconds));
    let escrow = escrow_with_tokens(&tier(10));
    // A reload raised the burst after ten seconds; the node is asked again only a minute later.
    escrow.use_tier(&tier(60), at(10));
    escrow.need([Bucket::Main].into_iter());
    let told = escrow.begin_turn(None, at(70)).unwrap().asks[Bucket::Main as usize];
    assert_eq!(told.known, (50_000_000_000, 10_000_001), "ten are available, and one more each second since");
}

#[test]
fn a_request_whose_limits_were_replaced_meanwhile_leaves_the_tier_of_then_and_its_tokens() {
    let (before, after) = (tier(40), tier(60));
    let escrow = escrow_with_tokens(&after);
    for (is_replaced, may_use) in [(true, false), (false, true)] {
        assert_eq!(escrow.use_tier_unless(|| is_replaced, &before, NOW), may_use);
        assert_eq!(escrow.spend(Bucket::Main, NOW).is_some(), !may_use, "a lower limit ends what was granted");
    }
    assert!(!escrow.use_tier_unless(|| true, &before, NOW), "though it is the tier of now");
}

#[test]
fn a_node_with_more_requests_in_flight_than_places_asks_for_them_again_soon() {
    let tier = Arc::new(Tier { in_flight: Some(6), ..(*tier(40)).clone() });
    let due = |in_flight, places| {
        let escrow = Escrow::new(tier.clone(), Box::new(InFlight::of(in_flight)), NOW);
        let turn = begin(&escrow);
        match escrow.finish_turn(&turn, &grant_with_places(0, places), NOW) {
            NextTurn::At(at) => at.since(NOW),
            next => panic!("{next:?}"),
        }
    };
    assert!(due(6, 0) < Duration::from_millis(100) && due(6, 5) < Duration::from_millis(100));
    assert!(due(6, 6) > Duration::from_millis(500));
    assert!(due(9, 6) > Duration::from_millis(500), "no more are to be had");
}

#[test]
fn requests_in_flight_that_are_limited_while_a_turn_is_under_way_ask_for_places_after_it() {
    let escrow = Escrow::new(tier(40), Box::new(InFlight::of(3)), NOW);
    let turn = begin(&escrow);
    escrow.use_tier(&Arc::new(Tier { in_flight: Some(3), ..(*tier(40)).clone() }), NOW);
    assert_eq!(escrow.need([].into_iter()), NextTurn::AsBefore);
    assert!(
        matches!(escrow.finish_turn(&turn, &grant(0), NOW), NextTurn::At(at) if at.since(NOW) < Duration::from_millis(100))
    );
}
