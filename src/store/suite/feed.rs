//! Part of the suite for every store: the change feed between two openings of one store. Each sees the other's data and
//! reads which of it changed.

use super::*;
use crate::model::{Digest, Scope};

pub(crate) async fn two_openings_of_a_store_see_each_others_data_and_changes<T: TestStore>() {
    let test = T::new().await;
    test.add_guild(&guild("g")).await;
    let second = test.open_second().await;
    test.store().set_points(&guild("g"), member(7), 5).await.unwrap();
    assert_eq!(second.points(&guild("g"), member(7)).await.unwrap(), 5);
    assert_eq!(others_changes(&second).await, [Change::Member(member(7))]);
    assert_eq!(others_changes(&second).await, []);

    second.set_points(&guild("g"), member(8), 6).await.unwrap();
    warn(&second, member(7), 100).await;
    second.set_points(&guild("g"), member(8), 7).await.unwrap();
    assert_eq!(others_changes(&second).await, []);
    assert_eq!(others_changes(test.store()).await, [Change::Member(member(7)), Change::Member(member(8))]);
    assert_eq!(test.store().points(&guild("g"), member(8)).await.unwrap(), 7);
}

pub(crate) async fn changes_of_guilds_and_keys_are_changes_of_the_directory<T: TestStore>() {
    let test = T::new().await;
    let second = test.open_second().await;
    let key = KeyRecord {
        id: "k1".into(),
        name: "Bot".into(),
        guild: guild("g"),
        digest: Digest::of(b"secret"),
        tier: None,
        scope: Scope::Read,
        created: 1,
        expires: Some(2),
        last_used: None,
        previous: None,
    };
    test.add_guild(&guild("g")).await;
    assert_eq!(others_changes(&second).await, [Change::Directory]);
    test.store().create_key(key.clone()).await.unwrap();
    assert_eq!(others_changes(&second).await, [Change::Directory]);
    assert_eq!(second.keys().await.unwrap(), [key]);
    test.store().revoke_key("k1").await.unwrap();
    test.store().set_guild_departed(&guild("g"), true).await.unwrap();
    assert_eq!(others_changes(&second).await, [Change::Directory]);
    assert_eq!(second.keys().await.unwrap(), []);
}

pub(crate) async fn a_refused_write_is_not_a_change<T: TestStore>() {
    let test = T::new().await;
    let second = test.open_second().await;
    refused(test.store().revoke_key("none").await);
    is_departed(test.store().set_points(&guild("none"), member(7), 1).await);
    assert_eq!(others_changes(&second).await, []);
}

pub(crate) async fn a_follower_of_a_new_store_misses_no_pruned_change<T: TestStore>() {
    let test = T::with_feed_kept(4).await;
    let second = test.open_second().await;
    for id in 0..20 {
        test.add_guild(&guild(&format!("g{id}"))).await;
    }
    assert_eq!(others_changes(&second).await, [Change::Everything]);
}
