//! Part of the suite for every store: single records as the commands write them (guilds, keys, members, warns,
//! reviews). Removing a guild or member removes everything that belongs to it, and a record that breaks a rule is
//! refused.

use super::*;
use crate::model::{Digest, Scope};

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

pub(crate) async fn a_key_is_refused_where_its_id_its_secret_or_its_guild_is_wrong<W: World>() {
    let world = W::new().await;
    assert!(refused(world.store().create_key(key("k1", b"one")).await).contains("guild add"));
    world.add(&guild("g")).await;
    world.store().create_key(key("k1", b"one")).await.unwrap();
    refused(world.store().create_key(key("k1", b"two")).await);
    refused(world.store().create_key(key("k2", b"one")).await);
    assert_eq!(world.store().keys().await.unwrap(), [key("k1", b"one")]);
    world.store().revoke_key("k1").await.unwrap();
    refused(world.store().revoke_key("k1").await);
    assert_eq!(world.store().keys().await.unwrap(), []);
}

pub(crate) async fn a_guild_is_added_once_and_only_one_that_is_there_can_be_left<W: World>() {
    let world = W::new().await;
    world.store().add_guild(&guild("g"), "Night\nWatch").await.unwrap();
    refused(world.store().add_guild(&guild("g"), "Other").await);
    refused(world.store().set_guild_left(&guild("h"), true).await);
    let expected = GuildRecord { id: guild("g"), name: "Night Watch".to_owned(), left: false };
    assert_eq!(world.store().guilds().await.unwrap(), [expected]);
}

pub(crate) async fn a_renamed_guild_is_the_same_guild<W: World>() {
    let world = W::new().await;
    world.add(&guild("g")).await;
    world.store().set_points(&guild("g"), member(7), 5).await.unwrap();
    world.store().set_guild_left(&guild("g"), true).await.unwrap();
    let neighbour = world.neighbour().await;
    world.store().rename_guild(&guild("g"), "Day\nWatch").await.unwrap();
    assert_eq!(told(&neighbour).await, [Change::Directory]);
    let expected = GuildRecord { id: guild("g"), name: "Day Watch".to_owned(), left: true };
    assert_eq!(neighbour.guilds().await.unwrap(), [expected]);
    assert_eq!(world.store().members(&guild("g")).await.unwrap().len(), 1);
    assert!(refused(world.store().rename_guild(&guild("h"), "H").await).contains("guild add"));
    assert_eq!(told(&neighbour).await, []);
}

pub(crate) async fn a_removed_guild_takes_everything_of_it_along_and_begins_anew<W: World>() {
    let world = W::new().await;
    let (store, other) = (world.store(), guild("other"));
    for id in ["g", "other"] {
        world.add(&guild(id)).await;
    }
    for id in [7, 8] {
        store.set_points(&guild("g"), member(id), 5).await.unwrap();
        store.set_points(&other, member(id), 6).await.unwrap();
        warn(store, member(id), 100).await;
    }
    review(store, member(7), "kind").await;
    store.add_warn(&other, member(7), "Mod", "spam", 100).await.unwrap();
    store.create_key(key("k1", b"one")).await.unwrap();
    let of_other = KeyRecord { guild: other.clone(), ..key("k2", b"two") };
    store.create_key(of_other.clone()).await.unwrap();
    let neighbour = world.neighbour().await;

    let removed = store.remove_guild(&guild("g")).await.unwrap();
    assert_eq!(removed, RemovedGuild { members: 2, warns: 2, reviews: 1, keys: 1 });
    assert_eq!(told(&neighbour).await, [Change::Everything]);
    gone(neighbour.points(&guild("g"), member(7)).await);
    gone(store.set_points(&guild("g"), member(7), 1).await);
    assert!(refused(store.remove_guild(&guild("g")).await).contains("guild add"));
    assert_eq!(told(&neighbour).await, []);
    assert_eq!(neighbour.keys().await.unwrap(), std::slice::from_ref(&of_other));
    assert_eq!(neighbour.points(&other, member(7)).await.unwrap(), 6);
    assert_eq!(neighbour.list_warns(&other, None).await.unwrap().len(), 1);

    world.add(&guild("g")).await;
    assert_eq!(neighbour.points(&guild("g"), member(7)).await.unwrap(), 0);
    assert_eq!(neighbour.members(&guild("g")).await.unwrap(), []);
    assert_eq!(neighbour.list_warns(&guild("g"), None).await.unwrap(), []);
    assert_eq!(neighbour.list_reviews(&guild("g"), None).await.unwrap(), []);
    assert_eq!(warn(store, member(7), 100).await, 1, "ids begin anew");
    store.create_key(key("k1", b"one")).await.unwrap();
}

pub(crate) async fn setting_a_member_changes_what_is_given_and_keeps_the_rest<W: World>() {
    let world = W::new().await;
    world.add(&guild("g")).await;
    let listed = async || {
        let all = world.store().members(&guild("g")).await.unwrap();
        all.into_iter().map(|m| (m.member.get(), m.name, m.points)).collect::<Vec<_>>()
    };
    world.store().set_member(&guild("g"), member(7), None, None).await.unwrap();
    assert_eq!(listed().await, [(7, "7".to_owned(), 0)]);
    world.store().set_member(&guild("g"), member(7), Some("Ada"), None).await.unwrap();
    world.store().set_member(&guild("g"), member(7), None, Some(-5)).await.unwrap();
    assert_eq!(listed().await, [(7, "Ada".to_owned(), -5)]);
    assert_eq!(world.store().set_points(&guild("g"), member(7), 6).await.unwrap(), "Ada");
    refused(world.store().set_member(&guild("h"), member(7), None, None).await);
    refused(world.store().members(&guild("h")).await);
}

pub(crate) async fn removing_a_member_takes_its_warns_and_reviews_along<W: World>() {
    let world = W::new().await;
    world.add(&guild("g")).await;
    for id in [7, 8] {
        warn(world.store(), member(id), 100).await;
        review(world.store(), member(id), "kind").await;
    }
    world.store().remove_member(&guild("g"), member(7)).await.unwrap();
    refused(world.store().remove_member(&guild("g"), member(7)).await);
    let owners: Vec<_> = world.store().list_warns(&guild("g"), None).await.unwrap().into_iter().map(|w| w.0).collect();
    assert_eq!(owners, [member(8)]);
    assert_eq!(world.store().list_reviews(&guild("g"), Some(member(7))).await.unwrap(), []);
    assert_eq!(world.store().list_reviews(&guild("g"), Some(member(8))).await.unwrap().len(), 1);
}

pub(crate) async fn a_warn_or_review_is_removed_by_its_id_once<W: World>() {
    let world = W::new().await;
    world.add(&guild("g")).await;
    let warn = warn(world.store(), member(7), 100).await;
    let review = review(world.store(), member(7), "kind").await;
    let neighbour = world.neighbour().await;
    world.store().remove_warn(&guild("g"), warn).await.unwrap();
    assert_eq!(told(&neighbour).await, [Change::Member(member(7))]);
    world.store().remove_review(&guild("g"), review).await.unwrap();
    refused(world.store().remove_warn(&guild("g"), warn).await);
    refused(world.store().remove_review(&guild("g"), review).await);
    assert_eq!(world.store().list_warns(&guild("g"), None).await.unwrap(), []);
    assert_eq!(world.store().list_reviews(&guild("g"), None).await.unwrap(), []);
}

pub(crate) async fn a_rating_outside_one_to_five_is_refused<W: World>() {
    let world = W::new().await;
    world.add(&guild("g")).await;
    for rating in [0, 6] {
        refused(world.store().add_review(&guild("g"), member(7), "Bo", rating, "kind").await);
    }
    assert_eq!(world.store().members(&guild("g")).await.unwrap(), []);
}
