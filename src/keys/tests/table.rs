use super::*;
use crate::keys::InFlightSlot;

#[test]
fn a_key_is_found_by_its_digest() {
    let key_table = first_table(vec![listed("a", "A")], 2);
    assert_eq!(&*key_table.find(&Digest::of(b"A"), never).unwrap().id, "a");
    assert!(key_table.find(&Digest::of(b"B"), never).is_none());
}

#[test]
fn an_expired_key_is_not_there() {
    let key_table = first_table(vec![ListedKey { expires: Some(100), ..listed("a", "A") }], 2);
    assert!(key_table.find(&Digest::of(b"A"), || 99).is_some());
    assert!(key_table.find(&Digest::of(b"A"), || 100).is_none());
}

#[test]
fn each_guild_keeps_its_realm() {
    let keys = || vec![listed("a", "A"), ListedKey { guild: "other".parse().unwrap(), ..listed("b", "B") }];
    let first = first_table(keys(), 2);
    let second = table_at(keys().into_iter().rev().collect(), 2, &first, 0);
    let realm = |key_table: &KeyTable, key: &[u8]| key_table.find(&Digest::of(key), never).unwrap().realm;
    assert_eq!(realm(&first, b"A"), realm(&second, b"A"));
    assert_ne!(realm(&second, b"A"), realm(&second, b"B"));
}

#[test]
fn a_slot_in_flight_is_released_once_and_not_taken_again() {
    let key_table = first_table(vec![listed("a", "A")], 2);
    let key = key_table.find(&Digest::of(b"A"), never).unwrap();
    let others = || InFlightSlot::default().take(key).others();
    let (reset, stays, late) = (InFlightSlot::default(), InFlightSlot::default(), InFlightSlot::default());
    let (request, _another) = (reset.take(key), stays.take(key));
    assert_eq!(others(), 2);
    reset.release();
    reset.release();
    assert_eq!(others(), 1);
    drop(request);
    assert_eq!(others(), 1);
    late.release();
    let request = late.take(key);
    assert_eq!((request.others(), others()), (1, 1), "its caller had hung up before it was let in");
    drop(request);
    assert_eq!(others(), 1);
}

#[test]
fn a_key_with_nothing_changed_is_shared_with_the_table_before() {
    let first = first_table(vec![listed("same", "a"), listed("narrowed", "b")], 10);
    let narrowed = ListedKey { scope: Scope::Read, ..listed("narrowed", "b") };
    let next = table_at(vec![listed("same", "a"), narrowed.clone(), listed("new", "c")], 10, &first, 1);
    let is_shared = |earlier: &KeyTable, later: &KeyTable, secret: &str| {
        let find = |table: &KeyTable| table.find(&Digest::of(secret.as_bytes()), never).unwrap().clone();
        Arc::ptr_eq(&find(earlier), &find(later))
    };
    assert!(is_shared(&first, &next, "a") && !is_shared(&first, &next, "b"));
    let under_other_limits = table_at(vec![listed("same", "a"), narrowed], 11, &next, 2);
    assert!(!is_shared(&next, &under_other_limits, "a"));
}
