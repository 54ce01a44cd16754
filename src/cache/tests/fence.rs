//! Tests of invalidation by epochs: which answers a write of known or unknown outcome makes unusable, and which ones
//! (other members, other guilds, other reads) it leaves alone. They run in one thread; the interleavings are tested in
//! `tests/model`.

use std::time::Duration;

use crate::cache::{EntryKey, Fence, Reach, Realm};
use crate::clock::Tick;
use crate::model::MemberId;
use crate::sync::AtomicU64;
use crate::wire::Read;

const TTL: Duration = Duration::from_secs(30);

fn member(n: u64) -> MemberId {
    MemberId::new(n).unwrap()
}

const GUILD: Reach = Reach::Realm(Realm(1));

fn at(realm: u64, member_: u64, read: Read) -> EntryKey {
    EntryKey { realm: Realm(realm), member: member(member_), read }
}

fn points(member: u64) -> EntryKey {
    at(1, member, Read::Points)
}

#[test]
fn what_was_asked_before_or_amid_a_write_does_not_stand_after_it() {
    let fence = Fence::default();
    let before = fence.epoch(&points(7));
    let write = fence.begin_write(member(7), GUILD, TTL, Tick(0));
    let amid = fence.epoch(&points(7));
    assert!(!fence.stands(before, &points(7)));
    write.settled();
    assert!(!fence.stands(amid, &points(7)));
    assert!(fence.may_keep(&points(7), Tick(0)));
}

#[test]
fn a_write_is_unsettled_until_the_origin_has_said() {
    let fence = Fence::default();
    let write = fence.begin_write(member(7), GUILD, TTL, Tick(0));
    assert!(fence.is_unsettled(&points(7), Tick(0)));
    write.settled();
    assert!(!fence.is_unsettled(&points(7), Tick(0)));
    fence.begin_write(member(7), GUILD, TTL, Tick(0)).unknown(Tick(0));
    assert!(fence.is_unsettled(&points(7), Tick(1)));
    assert!(!fence.is_unsettled(&points(7), Tick(0).plus(TTL)));
    drop(fence.begin_write(member(7), GUILD, TTL, Tick(0).plus(TTL)));
    assert!(fence.is_unsettled(&points(7), Tick(1).plus(TTL)), "a write dropped unsaid");
}

#[test]
fn a_write_of_points_leaves_warns_and_other_members_alone() {
    let fence = Fence::default();
    let warns = fence.epoch(&at(1, 7, Read::Warns));
    let other = fence.epoch(&points(8));
    fence.begin_write(member(7), GUILD, TTL, Tick(0)).settled();
    assert!(fence.stands(warns, &at(1, 7, Read::Warns)));
    assert!(fence.stands(other, &points(8)));
}

#[test]
fn a_write_leaves_the_same_member_of_other_guilds_alone_unless_it_reaches_all() {
    let fence = Fence::default();
    let elsewhere = at(2, 7, Read::Points);
    let before = fence.epoch(&elsewhere);
    let write = fence.begin_write(member(7), GUILD, TTL, Tick(0));
    assert!(!fence.is_unsettled(&elsewhere, Tick(0)));
    write.unknown(Tick(0));
    assert!(fence.stands(before, &elsewhere) && fence.may_keep(&elsewhere, Tick(0)));

    let write = fence.begin_write(member(7), Reach::All, TTL, Tick(0));
    assert!(!fence.stands(before, &elsewhere) && fence.is_unsettled(&elsewhere, Tick(0)));
    write.unknown(Tick(0));
    assert!(!fence.may_keep(&elsewhere, Tick(0)));
}

#[test]
fn what_others_changed_of_a_member_reaches_it_in_every_guild() {
    let fence = Fence::default();
    let held: Vec<_> =
        [1, 2].into_iter().map(|realm| at(realm, 7, Read::Warns)).map(|at| (fence.epoch(&at), at)).collect();
    fence.changed(member(7));
    assert!(held.iter().all(|(epoch, at)| !fence.stands(*epoch, at)));
}

#[test]
fn after_a_write_of_unknown_outcome_nothing_of_the_member_is_kept_for_one_ttl() {
    let fence = Fence::default();
    let warns = fence.epoch(&at(1, 7, Read::Warns));
    fence.begin_write(member(7), GUILD, TTL, Tick(0)).unknown(Tick(5));
    assert!(!fence.stands(warns, &at(1, 7, Read::Warns)));
    assert!(!fence.may_keep(&points(7), Tick(5).plus(TTL - Duration::from_nanos(1))));
    assert!(fence.may_keep(&points(7), Tick(5).plus(TTL)));
}

#[test]
fn moving_all_moves_each() {
    let fence = Fence::default();
    let epoch = fence.epoch(&at(1, 7, Read::Reviews));
    fence.changed_all();
    assert!(!fence.stands(epoch, &at(1, 7, Read::Reviews)));
}

#[test]
fn snowflakes_of_one_second_spread_over_the_table() {
    let fence = Fence::default();
    let slots: std::collections::HashSet<*const AtomicU64> = (0..1000u64)
        .map(|n| std::ptr::from_ref(fence.slot(member(190_551_803_669_118_976 + n * 4_194_304), Read::Points, GUILD)))
        .collect();
    assert!(slots.len() > 980, "{}", slots.len());
}
