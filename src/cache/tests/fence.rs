use std::time::Duration;

use crate::cache::Fence;
use crate::clock::Tick;
use crate::model::MemberId;
use crate::sync::AtomicU64;
use crate::wire::Read;

const TTL: Duration = Duration::from_secs(30);

fn member(n: u64) -> MemberId {
    MemberId::new(n).unwrap()
}

#[test]
fn what_was_asked_before_or_amid_a_write_does_not_stand_after_it() {
    let fence = Fence::default();
    let before = fence.epoch(member(7), Read::Points);
    let write = fence.begin_write(member(7), TTL, Tick(0));
    let amid = fence.epoch(member(7), Read::Points);
    assert!(!fence.stands(before, member(7), Read::Points));
    write.settled();
    assert!(!fence.stands(amid, member(7), Read::Points));
    assert!(fence.may_keep(member(7), Tick(0)));
}

#[test]
fn a_write_is_unsettled_until_the_origin_has_said() {
    let fence = Fence::default();
    let write = fence.begin_write(member(7), TTL, Tick(0));
    assert!(fence.is_unsettled(member(7), Tick(0)));
    write.settled();
    assert!(!fence.is_unsettled(member(7), Tick(0)));
    fence.begin_write(member(7), TTL, Tick(0)).unknown(Tick(0));
    assert!(fence.is_unsettled(member(7), Tick(1)));
    assert!(!fence.is_unsettled(member(7), Tick(0).plus(TTL)));
    drop(fence.begin_write(member(7), TTL, Tick(0).plus(TTL)));
    assert!(fence.is_unsettled(member(7), Tick(1).plus(TTL)), "a write dropped unsaid");
}

#[test]
fn a_write_of_points_leaves_warns_and_other_members_alone() {
    let fence = Fence::default();
    let warns = fence.epoch(member(7), Read::Warns);
    let other = fence.epoch(member(8), Read::Points);
    fence.begin_write(member(7), TTL, Tick(0)).settled();
    assert!(fence.stands(warns, member(7), Read::Warns));
    assert!(fence.stands(other, member(8), Read::Points));
}

#[test]
fn after_a_write_of_unknown_outcome_nothing_of_the_member_is_kept_for_one_ttl() {
    let fence = Fence::default();
    let warns = fence.epoch(member(7), Read::Warns);
    fence.begin_write(member(7), TTL, Tick(0)).unknown(Tick(5));
    assert!(!fence.stands(warns, member(7), Read::Warns));
    assert!(!fence.may_keep(member(7), Tick(5).plus(TTL - Duration::from_nanos(1))));
    assert!(fence.may_keep(member(7), Tick(5).plus(TTL)));
}

#[test]
fn moving_all_moves_each() {
    let fence = Fence::default();
    let epoch = fence.epoch(member(7), Read::Reviews);
    fence.changed_all();
    assert!(!fence.stands(epoch, member(7), Read::Reviews));
}

#[test]
fn snowflakes_of_one_second_spread_over_the_table() {
    let fence = Fence::default();
    let slots: std::collections::HashSet<*const AtomicU64> = (0..1000u64)
        .map(|n| std::ptr::from_ref(fence.slot(member(190_551_803_669_118_976 + n * 4_194_304), Read::Points)))
        .collect();
    assert!(slots.len() > 980, "{}", slots.len());
}
