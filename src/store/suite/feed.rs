//! Part of the suite for every store: the change feed between two openings of one store. Each is told of the other's
//! changes and only of those that were made, and sees the data itself.

use super::*;
use crate::model::{Digest, Scope};

pub(crate) async fn two_stores_on_one_file_see_each_others_data_and_are_told_of_each_others_changes<W: World>() {
    let world = W::new().await;
    world.add(&guild("g")).await;
    let neighbour = world.neighbour().await;
    world.store().set_points(&guild("g"), member(7), 5).await.unwrap();
    assert_eq!(neighbour.points(&guild("g"), member(7)).await.unwrap(), 5);
    assert_eq!(told(&neighbour).await, [Change::Member(member(7))]);
    assert_eq!(told(&neighbour).await, []);

    neighbour.set_points(&guild("g"), member(8), 6).await.unwrap();
    warn(&neighbour, member(7), 100).await;
    neighbour.set_points(&guild("g"), member(8), 7).await.unwrap();
    assert_eq!(told(&neighbour).await, []);
    assert_eq!(told(world.store()).await, [Change::Member(member(7)), Change::Member(member(8))]);
    assert_eq!(world.store().points(&guild("g"), member(8)).await.unwrap(), 7);
}

pub(crate) async fn guilds_and_keys_are_told_as_the_directory<W: World>() {
    let world = W::new().await;
    let neighbour = world.neighbour().await;
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
    world.add(&guild("g")).await;
    assert_eq!(told(&neighbour).await, [Change::Directory]);
    world.store().create_key(key.clone()).await.unwrap();
    assert_eq!(told(&neighbour).await, [Change::Directory]);
    assert_eq!(neighbour.keys().await.unwrap(), [key]);
    world.store().revoke_key("k1").await.unwrap();
    world.store().set_guild_left(&guild("g"), true).await.unwrap();
    assert_eq!(told(&neighbour).await, [Change::Directory]);
    assert_eq!(neighbour.keys().await.unwrap(), []);
}

pub(crate) async fn a_refused_write_is_not_told<W: World>() {
    let world = W::new().await;
    let neighbour = world.neighbour().await;
    refused(world.store().revoke_key("none").await);
    gone(world.store().set_points(&guild("none"), member(7), 1).await);
    assert_eq!(told(&neighbour).await, []);
}

pub(crate) async fn a_follower_of_a_new_store_misses_nothing_that_was_pruned<W: World>() {
    let world = W::keeping(4).await;
    let neighbour = world.neighbour().await;
    for id in 0..20 {
        world.add(&guild(&format!("g{id}"))).await;
    }
    assert_eq!(told(&neighbour).await, [Change::Everything]);
}
