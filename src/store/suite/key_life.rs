//! Part of the suite for every store: rotating, revoking and changing a key. After a rotation two secrets belong to one
//! key until the overlap ends, never more than two, and no secret belongs to two keys.

use super::records::key;
use super::*;
use crate::model::{Digest, Scope};
use crate::store::{KeyChange, Previous};

/// A store with the key k1, whose secret is "one".
pub(crate) async fn with_key(kind: Kind) -> TestStore {
    let test = TestStore::with_guild(kind).await;
    test.store().create_key(key("k1", b"one")).await.unwrap();
    test
}

pub(crate) async fn rotate(
    test: &TestStore,
    id: &str,
    secret: &[u8],
    until: Option<i64>,
    now: i64,
) -> Result<(), StoreError> {
    test.store().rotate_key(id, Digest::of(secret), until, now).await.map(drop)
}

pub(crate) fn previous(secret: &[u8], until: i64) -> Option<Previous> {
    Some(Previous { digest: Digest::of(secret), until })
}

pub(crate) async fn a_rotated_key_is_the_same_key_with_two_secrets_and_others_see_it(kind: Kind) {
    let test = with_key(kind).await;
    let second = test.open_second().await;
    rotate(&test, "k1", b"two", Some(200), 100).await.unwrap();
    assert_eq!(others_changes(&second).await, [Change::Directory]);
    let expected = KeyRecord { previous: previous(b"one", 200), ..key("k1", b"two") };
    for secret in [b"one", b"two"] {
        assert_eq!(second.key_of(Digest::of(secret)).await.unwrap().as_ref(), Some(&expected));
    }
    assert_eq!(second.key_of(Digest::of(b"three")).await.unwrap(), None);
    assert_eq!(second.keys().await.unwrap(), [expected]);
    // The secret before the last is forgotten, and free again.
    rotate(&test, "k1", b"three", Some(150), 100).await.unwrap();
    let expected = KeyRecord { previous: previous(b"two", 150), ..key("k1", b"three") };
    assert_eq!(second.keys().await.unwrap(), [expected]);
    test.store().create_key(key("k2", b"one")).await.unwrap();
}

pub(crate) async fn without_an_overlap_the_old_secret_is_refused_at_once(kind: Kind) {
    for until in [None, Some(100), Some(-1)] {
        let test = with_key(kind).await;
        rotate(&test, "k1", b"two", until, 100).await.unwrap();
        assert_eq!(test.store().keys().await.unwrap(), [key("k1", b"two")], "{until:?}");
        rotate(&test, "k1", b"three", Some(200), 100).await.unwrap();
        rotate(&test, "k1", b"four", until, 101).await.unwrap();
        assert_eq!(test.store().keys().await.unwrap(), [key("k1", b"four")], "{until:?}");
    }
}

pub(crate) async fn no_two_keys_and_no_two_secrets_of_a_key_are_equal(kind: Kind) {
    let test = with_key(kind).await;
    assert!(refused(test.store().create_key(key("k1", b"new")).await).contains("k1"));
    let of_none = KeyRecord { guild: guild("none"), ..key("k2", b"new") };
    assert!(refused(test.store().create_key(of_none).await).contains("guild add"));
    rotate(&test, "k1", b"two", Some(200), 100).await.unwrap();
    test.store().create_key(key("k2", b"other")).await.unwrap();
    let before = test.store().keys().await.unwrap();
    let second = test.open_second().await;
    for taken in [&b"one"[..], b"two"] {
        refused(test.store().create_key(key("k3", taken)).await);
        refused(test.store().create_key(KeyRecord { previous: previous(taken, 9), ..key("k3", b"new") }).await);
        for id in ["k1", "k2"] {
            assert!(refused(rotate(&test, id, taken, Some(200), 100).await).contains("k1"), "{id}");
        }
    }
    assert_eq!(test.store().keys().await.unwrap(), before);
    assert_eq!(others_changes(&second).await, []);
}

pub(crate) async fn a_missing_or_expired_key_is_not_rotated(kind: Kind) {
    let test = with_key(kind).await;
    assert!(refused(rotate(&test, "k9", b"two", None, 100).await).contains("k9"));
    let expires = KeyChange { expires: Some(Some(100)), ..KeyChange::default() };
    test.store().set_key("k1", expires).await.unwrap();
    assert!(refused(rotate(&test, "k1", b"two", None, 100).await).contains("key set k1"));
    assert_eq!(test.store().keys().await.unwrap()[0].digest, Digest::of(b"one"));
    rotate(&test, "k1", b"two", Some(200), 99).await.unwrap();
    assert_eq!(test.store().keys().await.unwrap()[0].digest, Digest::of(b"two"));
}

pub(crate) async fn a_previous_secret_ends_with_its_overlap_or_with_the_whole_key(kind: Kind) {
    let rotated = KeyRecord { previous: previous(b"old", 200), ..key("k1", b"one") };
    assert_eq!(key("k1", b"one").previous_ends(), None);
    assert_eq!(rotated.previous_ends(), Some(200));
    assert_eq!(KeyRecord { expires: Some(150), ..rotated.clone() }.previous_ends(), Some(150));
    assert_eq!(KeyRecord { expires: Some(250), ..rotated.clone() }.previous_ends(), Some(200));
    let test = TestStore::with_guild(kind).await;
    test.store().create_key(rotated.clone()).await.unwrap();
    assert_eq!(test.store().keys().await.unwrap(), [rotated]);
}

pub(crate) async fn a_revoked_key_frees_both_its_secrets(kind: Kind) {
    let test = with_key(kind).await;
    rotate(&test, "k1", b"two", Some(200), 100).await.unwrap();
    let second = test.open_second().await;
    test.store().revoke_key("k1").await.unwrap();
    assert_eq!(others_changes(&second).await, [Change::Directory]);
    assert_eq!(second.keys().await.unwrap(), []);
    assert!(refused(test.store().revoke_key("k1").await).contains("k1"));
    for (id, secret) in [("k1", b"one"), ("k2", b"two")] {
        test.store().create_key(key(id, secret)).await.unwrap();
        assert_eq!(others_changes(&second).await, [Change::Directory]);
    }
}

pub(crate) async fn setting_a_key_changes_the_given_fields_and_keeps_its_secrets(kind: Kind) {
    let test = with_key(kind).await;
    rotate(&test, "k1", b"two", Some(200), 100).await.unwrap();
    let second = test.open_second().await;
    let mut expected = KeyRecord { previous: previous(b"one", 200), ..key("k1", b"two") };
    let nothing = KeyChange::default;
    type Expect = fn(&mut KeyRecord);
    let steps: [(KeyChange, Expect); 7] = [
        (nothing(), |_| {}),
        (KeyChange { name: Some("My\nbot".into()), ..nothing() }, |key| key.name = "My bot".into()),
        (KeyChange { scope: Some(Scope::Read), ..nothing() }, |key| key.scope = Scope::Read),
        (KeyChange { tier: Some(Some("tin".into())), ..nothing() }, |key| key.tier = Some("tin".into())),
        (KeyChange { tier: Some(None), ..nothing() }, |key| key.tier = None),
        (KeyChange { expires: Some(Some(500)), ..nothing() }, |key| key.expires = Some(500)),
        (KeyChange { expires: Some(None), name: Some(String::new()), ..nothing() }, |key| {
            key.expires = None;
            key.name = String::new();
        }),
    ];
    for (change, expect) in steps {
        expect(&mut expected);
        test.store().set_key("k1", change.clone()).await.unwrap();
        assert_eq!(others_changes(&second).await, [Change::Directory], "{change:?}");
        assert_eq!(second.keys().await.unwrap(), [expected.clone()], "{change:?}");
    }
    assert!(refused(test.store().set_key("k9", nothing()).await).contains("k9"));
    assert_eq!(others_changes(&second).await, []);
}
