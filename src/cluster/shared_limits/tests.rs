//! How long a request waits for a turn, and by how many nodes a limit is divided after an outage.

use super::*;
use crate::cluster::escrow::tests::{InFlight, grant, tier};
use crate::config::RedisAt;

const TIMEOUT: Duration = Duration::from_millis(20);

fn limits(clock: Clock) -> Arc<SharedLimits> {
    let config = Cluster {
        redis: RedisAt::parse("redis://127.0.0.1:1").unwrap(),
        node: "node".to_owned(),
        prefix: "test".to_owned(),
        timeout: TIMEOUT,
        when_away: WhenAway::Share,
        nodes: 1,
        lease: Duration::from_secs(10),
        replicas: None,
    };
    SharedLimits::new(config, clock)
}

fn key(limits: &SharedLimits) -> Arc<KeyEscrow> {
    limits.key(&"k".into(), &tier(40), Box::new(InFlight::of(0)))
}

fn needs() -> Needs {
    let mut needs = Needs::default();
    needs.add(Bucket::Main);
    needs
}

#[tokio::test]
async fn what_the_turns_of_other_keys_take_first_does_not_count_as_a_wait_for_redis() {
    let limits = limits(Clock::system());
    let key = key(&limits);
    let turn = tokio::spawn({
        let (key, clock) = (key.clone(), limits.clock.clone());
        async move {
            sleep(5 * TIMEOUT).await;
            let turn = key.escrow.begin_turn(None, clock.now()).unwrap();
            key.escrow.finish_turn(&turn, &grant(1), clock.now());
            key.ended.notify_waiters();
        }
    });
    limits.wait_for_turn(&key, needs(), &mut limits.wait()).await;
    assert!(key.escrow.spend(Bucket::Main, limits.clock.now()).is_some());
    turn.await.unwrap();
}

#[tokio::test]
async fn a_turn_that_has_begun_is_waited_for_no_longer_than_the_timeout() {
    let limits = limits(Clock::system());
    let key = key(&limits);
    let (begun, mut wait) = (limits.clock.now(), limits.wait());
    key.escrow.need([Bucket::Main].into_iter());
    key.escrow.begin_turn(None, begun).unwrap();
    limits.wait_for_turn(&key, needs(), &mut wait).await;
    assert!(!wait.goes_on() && limits.clock.now().since(begun) < MAX_WAIT);
}

#[test]
fn the_nodes_of_before_an_outage_count_until_all_had_time_to_tell_of_themselves() {
    let clock = Clock::manual(0);
    let limits = limits(clock.clone());
    limits.nodes_seen.store(3, Ordering::Relaxed);
    limits.failed();
    // The first one that is back sees no other.
    limits.set_nodes(Nodes::default());
    limits.succeeded();
    limits.set_nodes(Nodes::default());
    assert_eq!(limits.nodes(), 3);
    clock.advance(COUNTS_FOR);
    limits.set_nodes(Nodes::default());
    assert_eq!(limits.nodes(), 1);
}

#[tokio::test]
async fn a_request_of_a_key_that_is_not_listed_any_more_waits_for_no_turn() {
    let limits = limits(Clock::system());
    let key = key(&limits);
    let left = limits.unlisted(&key, &tier(40), &key.escrow.used_up());
    let (begun, mut wait) = (limits.clock.now(), limits.wait());
    limits.wait_for_turn(&left, needs(), &mut wait).await;
    assert!(!wait.goes_on() && limits.clock.now().since(begun) < TIMEOUT);
}
