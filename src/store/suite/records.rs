//! Part of the suite for every store: single records as the commands write them (guilds, keys, members, warns,
//! reviews). Removing a guild or member removes everything that belongs to it, and a record that breaks a rule is
//! refused.

use super::*;
use crate::model::{Digest, REVIEW, Scope, WARN};

pub(crate) fn key(id: &str, secret: &[u8]) -> KeyRecord {
    KeyRecord {
        id: id.into(),
        name: "Bot".into(),
        guild: guild("g"),
        digest: Digest::of(secret),
        tier: Some("gold".into()),
        scope: Scope::Write,
        created: 1,
        expires: None,
        last_used: Some(3),
        previous: None,
    }
}

pub(crate) async fn the_last_uses_of_many_keys_are_recorded(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    for id in ["k1", "k2"] {
        test.store().create_key(key(id, id.as_bytes())).await.unwrap();
    }
    // More than are recorded at once; those that are gone, and one that was used later than this says.
    let gone = (0..2500).map(|n| (format!("k1{n:04}").into(), 9));
    test.store().record_last_use(gone.chain([("k2".into(), 9), ("k1".into(), 2)]).collect()).await.unwrap();
    let used = test.store().keys().await.unwrap().into_iter().map(|key| key.last_used).collect::<Vec<_>>();
    assert_eq!(used, [Some(3), Some(9)]);
}

pub(crate) async fn keys_are_found_by_text_and_state(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let keys = [("k1", "100% Bot", None, None), ("k_2", "Ada", Some(50), Some(3)), ("k3", "bot", Some(9), None)];
    for (id, name, expires, last_used) in keys {
        let scope = if id == "k3" { Scope::Read } else { Scope::Write };
        let record = KeyRecord { name: name.into(), scope, expires, last_used, ..key(id, id.as_bytes()) };
        test.store().create_key(record).await.unwrap();
    }
    test.store().set_guild(&guild("g"), Some("Night"), None).await.unwrap();
    let text = |text: &str| KeySearch { text: text.to_owned(), ..KeySearch::default() };
    let by = |sort: &str| KeySearch { sort: sort.to_owned(), ..KeySearch::default() };
    let ids = vec!["k3".into(), "gone".into()];
    let among = KeySearch { among: true, ids: ids.clone(), ..KeySearch::default() };
    for (search, skip, limit, expected) in [
        (text(""), 0, 9, &["k1", "k3", "k_2"][..]),
        (text(""), 1, 1, &["k3"]),
        (text("BOT"), 0, 9, &["k1", "k3"]),
        (text("0%"), 0, 9, &["k1"]),
        (text("k_"), 0, 9, &["k_2"]),
        (text("\\"), 0, 9, &[]),
        (text("nigh"), 0, 9, &["k1", "k3", "k_2"]),
        (KeySearch { scope: Some(Scope::Read), ..text("") }, 0, 9, &["k3"]),
        (KeySearch { ends_before: Some(50), ..text("") }, 0, 9, &["k3"]),
        (KeySearch { is_unused: true, ..text("") }, 0, 9, &["k1", "k3"]),
        (among.clone(), 0, 9, &["k3"]),
        (KeySearch { among: false, ..among }, 0, 9, &["k1", "k_2"]),
        (by("name"), 0, 9, &["k1", "k_2", "k3"]),
        (by("last-use"), 0, 9, &["k_2", "k1", "k3"]),
        (by("end"), 0, 9, &["k3", "k_2", "k1"]),
    ] {
        let found = test.store().find_keys(search.clone(), skip, limit).await.unwrap();
        let found: Vec<&str> = found.iter().map(|key| &*key.id).collect();
        assert_eq!(found, expected, "{search:?}");
    }
}

pub(crate) async fn a_renamed_guild_is_the_same_guild(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    test.store().set_points(&guild("g"), member(7), 5).await.unwrap();
    test.store().set_guild(&guild("g"), None, Some(true)).await.unwrap();
    let second = test.open_second().await;
    test.store().set_guild(&guild("g"), Some("Day\nWatch"), None).await.unwrap();
    assert_eq!(others_changes(&second).await, [Change::Directory]);
    refused(test.store().add_guild(&guild("g"), "Other").await);
    let expected = GuildRecord { id: guild("g"), name: "Day Watch".to_owned(), departed: true };
    assert_eq!(second.guilds().await.unwrap(), [expected]);
    assert_eq!(test.store().members(&guild("g"), None, usize::MAX).await.unwrap().len(), 1);
    assert!(refused(test.store().set_guild(&guild("h"), Some("H"), None).await).contains("guild list"));
    assert_eq!(others_changes(&second).await, []);
}

pub(crate) async fn a_guild_is_removed_with_everything_of_it_and_begins_empty_when_added_again(kind: Kind) {
    let test = TestStore::new(kind).await;
    let (store, other) = (test.store(), guild("other"));
    for id in ["g", "other"] {
        test.add_guild(&guild(id)).await;
    }
    for id in [7, 8] {
        store.set_points(&guild("g"), member(id), 5).await.unwrap();
        store.set_points(&other, member(id), 6).await.unwrap();
        warn(store, member(id), 100).await;
    }
    review(store, member(7), "kind").await;
    store.add_note(&WARN, &other, member(7), warn_for("spam", 100)).await.unwrap();
    store.create_key(key("k1", b"one")).await.unwrap();
    let of_other = KeyRecord { guild: other.clone(), ..key("k2", b"two") };
    store.create_key(of_other.clone()).await.unwrap();
    let second = test.open_second().await;

    let removed = store.remove_guild(&guild("g")).await.unwrap();
    assert_eq!(removed, RemovedGuild { members: 2, notes: [2, 1], keys: 1 });
    assert_eq!(others_changes(&second).await, [Change::Everything]);
    is_departed(second.points(&guild("g"), member(7)).await);
    is_departed(store.set_points(&guild("g"), member(7), 1).await);
    assert!(refused(store.remove_guild(&guild("g")).await).contains("guild list"));
    assert_eq!(others_changes(&second).await, []);
    assert_eq!(second.keys().await.unwrap(), std::slice::from_ref(&of_other));
    assert_eq!(second.points(&other, member(7)).await.unwrap(), 6);
    assert_eq!(second.notes(&WARN, &other, None, None, usize::MAX).await.unwrap().len(), 1);

    test.add_guild(&guild("g")).await;
    assert_eq!(second.points(&guild("g"), member(7)).await.unwrap(), 0);
    assert_eq!(second.members(&guild("g"), None, usize::MAX).await.unwrap(), []);
    assert_eq!(second.notes(&WARN, &guild("g"), None, None, usize::MAX).await.unwrap(), []);
    assert_eq!(second.notes(&REVIEW, &guild("g"), None, None, usize::MAX).await.unwrap(), []);
    assert_eq!(warn(store, member(7), 100).await, 1, "ids begin at 1 again");
    store.create_key(key("k1", b"one")).await.unwrap();
}

pub(crate) async fn setting_a_member_changes_the_given_fields(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let listed = async || {
        let all = test.store().members(&guild("g"), None, usize::MAX).await.unwrap();
        all.into_iter().map(|m| (m.member.get(), m.name, m.points)).collect::<Vec<_>>()
    };
    test.store().set_member(&guild("g"), member(7), None, None).await.unwrap();
    assert_eq!(listed().await, [(7, "7".to_owned(), 0)]);
    test.store().set_member(&guild("g"), member(7), Some("Ada"), None).await.unwrap();
    test.store().set_member(&guild("g"), member(7), None, Some(-5)).await.unwrap();
    assert_eq!(listed().await, [(7, "Ada".to_owned(), -5)]);
    assert_eq!(test.store().set_points(&guild("g"), member(7), 6).await.unwrap(), "Ada");
    refused(test.store().set_member(&guild("h"), member(7), None, None).await);
    refused(test.store().members(&guild("h"), None, usize::MAX).await);
}

pub(crate) async fn a_member_is_removed_with_its_warns_and_reviews(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    for id in [7, 8] {
        warn(test.store(), member(id), 100).await;
        review(test.store(), member(id), "kind").await;
    }
    let (store, g) = (test.store(), guild("g"));
    store.remove_member(&g, member(7)).await.unwrap();
    refused(store.remove_member(&g, member(7)).await);
    for kind in [&WARN, &REVIEW] {
        let left = store.notes(kind, &g, None, None, usize::MAX).await.unwrap();
        assert_eq!(left.iter().map(|(of, note)| (of.get(), note.id)).collect::<Vec<_>>(), [(8, 2)]);
        store.remove_note(kind, &g, 2).await.unwrap();
        refused(store.remove_note(kind, &g, 2).await);
        assert_eq!(store.notes(kind, &g, None, None, usize::MAX).await.unwrap(), []);
    }
}

pub(crate) async fn a_page_begins_after_an_id_and_has_so_many_items(kind: Kind) {
    let test = TestStore::new(kind).await;
    let (store, g) = (test.store(), guild("g"));
    refused(store.members(&g, None, 2).await);
    refused(store.notes(&WARN, &g, None, None, 2).await);
    for id in ["g", "other"] {
        test.add_guild(&guild(id)).await;
    }
    assert_eq!(store.notes(&REVIEW, &g, None, None, 2).await.unwrap(), []);
    for id in [5, 0, 3] {
        store.set_points(&g, member(id), 1).await.unwrap();
    }
    for (after, page) in [(None, &[0, 3][..]), (Some(3), &[5]), (Some(5), &[])] {
        let found = store.members(&g, after.map(member), 2).await.unwrap();
        assert_eq!(found.iter().map(|m| m.member.get()).collect::<Vec<_>>(), page);
    }
    assert_eq!(store.member(&g, member(3)).await.unwrap().unwrap().points, 1);
    assert_eq!(store.member(&g, member(4)).await.unwrap(), None);
    for of in [5, 3, 5] {
        warn(store, member(of), 100).await;
        review(store, member(of), "kind").await;
    }
    let page = store.notes(&WARN, &g, None, Some(1), 5).await.unwrap();
    assert_eq!(page.iter().map(|(of, warn)| (of.get(), warn.id)).collect::<Vec<_>>(), [(3, 2), (5, 3)]);
    let page = store.notes(&REVIEW, &g, Some(member(5)), None, 5).await.unwrap();
    assert_eq!(page.iter().map(|(of, review)| (of.get(), review.id)).collect::<Vec<_>>(), [(5, 1), (5, 3)]);
    assert_eq!(store.notes(&REVIEW, &g, Some(member(5)), None, 1).await.unwrap().len(), 1);
    for (id, secret) in [("k2", b"two"), ("k1", b"one"), ("k3", b"thr")] {
        store.create_key(key(id, secret)).await.unwrap();
    }
    let of_other = KeyRecord { guild: guild("other"), ..key("k4", b"four") };
    store.create_key(of_other.clone()).await.unwrap();
    let ids = |keys: Vec<KeyRecord>| keys.into_iter().map(|key| key.id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(store.keys_page(None, None, 3).await.unwrap()), ["k1", "k2", "k3"]);
    assert_eq!(ids(store.keys_page(None, Some("k2"), 3).await.unwrap()), ["k3", "k4"]);
    assert_eq!(ids(store.keys_page(Some(&g), Some("k1"), 9).await.unwrap()), ["k2", "k3"]);
    assert_eq!(store.key("k4").await.unwrap(), Some(of_other));
    assert_eq!(store.key("k5").await.unwrap(), None);
}

pub(crate) async fn a_warn_or_review_is_put_under_an_id_again_and_again_and_never_under_another_members(kind: Kind) {
    let test = TestStore::new(kind).await;
    let (store, g) = (test.store(), guild("g"));
    let warn = |reason: &str| Note { id: 17, author: "Mod".into(), text: reason.into(), number: 100 };
    refused(store.put_note(&WARN, &g, member(7), warn("spam")).await);
    test.add_guild(&g).await;
    let second = test.open_second().await;
    for (reason, is_new) in [("one\n", true), ("two\n", false), ("two\n", false)] {
        assert_eq!(store.put_note(&WARN, &g, member(7), warn(reason)).await.unwrap(), is_new);
        assert_eq!(others_changes(&second).await, [Change::Member(member(7))]);
    }
    assert_eq!(second.notes(&WARN, &g, None, None, usize::MAX).await.unwrap(), [(member(7), warn("two "))]);
    assert!(refused(store.put_note(&WARN, &g, member(8), warn("spam")).await).contains("member 7's"));
    assert_eq!(store.member(&g, member(8)).await.unwrap(), None, "a refused one leaves nothing");
    let review = |rating| Note { id: 0, author: "Bo".into(), number: rating, text: "kind".into() };
    assert!(store.put_note(&REVIEW, &g, member(7), review(5)).await.unwrap());
    assert!(!store.put_note(&REVIEW, &g, member(7), review(4)).await.unwrap());
    refused(store.put_note(&REVIEW, &g, member(7), review(6)).await);
    refused(store.put_note(&REVIEW, &g, member(8), review(5)).await);
    assert_eq!(store.notes(&REVIEW, &g, None, None, usize::MAX).await.unwrap(), [(member(7), review(4))]);
}

pub(crate) async fn a_warn_or_review_that_makes_an_answer_longer_than_a_mebibyte_is_refused(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let (store, g) = (test.store(), guild("g"));
    for (note, number) in [(&WARN, 4_000_000_000), (&REVIEW, 5)] {
        let of = |id, text: String| Note { id, author: "Mod".into(), text, number };
        store.add_note(note, &g, member(7), of(0, "x".repeat(100_000))).await.unwrap();
        let empty = note.answer(member(7), &[of(1, "x".repeat(100_000)), of(2, String::new())]).len();
        let most = (1 << 20) - empty;
        for text in ["x".repeat(most + 1), "x".repeat(1 << 20)] {
            let why = refused(store.put_note(note, &g, member(7), of(2, text)).await);
            assert!(why.contains("member 7 in guild g") && why.contains(&format!("{} remove", note.name)), "{why}");
        }
        assert!(store.put_note(note, &g, member(7), of(2, "x".repeat(most))).await.unwrap(), "nothing was left");
        let found = store.notes_of(note, &g, member(7), 0).await.unwrap();
        assert_eq!(note.answer(member(7), &found).len(), 1 << 20);
        refused(store.add_note(note, &g, member(7), of(0, String::new())).await);
    }
    // Those that have expired are in no answer.
    for id in 100..112 {
        let expired = Note { id, author: "Mod".into(), text: "x".repeat(100_000), number: 1 };
        store.put_note(&WARN, &g, member(8), expired).await.unwrap();
    }
}
