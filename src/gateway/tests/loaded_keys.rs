//! When keys are read, and what is in force of a key file and of what the store lists.

use super::*;
use crate::keys::ListedKey;

#[tokio::test]
async fn keys_become_stale_while_the_feed_is_silent_and_usable_again_with_the_next_read() {
    let w = TestGateway::new(PLENTY).await;
    let is_refused =
        async || w.ask("getPoints", "k1", "memberID=7").await.answer == Err(Fault::Unavailable { retry_after: 1 });
    w.gateway.feed.confirm(w.gateway.now());
    w.gateway.clock().advance(Duration::from_millis(949));
    assert!(!is_refused().await);
    w.gateway.clock().advance(Duration::from_millis(2));
    assert!(is_refused().await);
    w.gateway.feed.confirm(w.gateway.now());
    assert!(!is_refused().await);
}

/// A key file with these keys.
fn key_file(w: &TestGateway, ids: &[&str]) -> KeyFile {
    let listed = |id: &&str| ListedKey {
        id: (*id).into(),
        digest: Digest::of(id.as_bytes()),
        guild: w.guild(),
        guild_departed: false,
        tier: None,
        scope: Scope::Write,
        expires: None,
    };
    KeyFile::new(ids.iter().map(listed).collect(), Some(w.store.clone()))
}

#[tokio::test]
async fn a_key_file_is_put_in_force_while_the_store_is_asked_and_stays_in_force_when_it_tells() {
    let w = TestGateway::new(PLENTY).await;
    let config = || config::load_str(PLENTY, w._folder.path(), "test").unwrap().config;
    let origin = w.gateway.state().origin.clone();
    w.gateway.reload(config(), origin.clone(), NewKeys::File(key_file(&w, &["k1", "f1"])));
    assert!(w.ask("getPoints", "f1", "memberID=7").await.answer.is_ok());
    w.store.set_guild(&w.guild(), None, Some(true)).await.unwrap();
    let older = w.gateway.state_full().keys.list().await.unwrap();
    w.gateway.reload(config(), origin.clone(), NewKeys::File(key_file(&w, &["f1"])));
    assert_eq!(w.ask("getPoints", "k1", "memberID=7").await.answer.unwrap_err(), Fault::IncorrectKey);
    assert!(w.ask("getPoints", "f1", "memberID=7").await.answer.is_ok(), "nobody has told of the guild yet");
    w.gateway.replace_state(None, NewKeys::Listed(older));
    assert_eq!(w.ask("getPoints", "k1", "memberID=7").await.answer.unwrap_err(), Fault::IncorrectKey);
    assert_eq!(w.ask("getPoints", "f1", "memberID=7").await.answer.unwrap_err(), Fault::GuildDeparted);
    // The guild that was left is known to the next file too, though it had no key in the one before.
    w.gateway.reload(config(), origin.clone(), NewKeys::File(key_file(&w, &[])));
    w.gateway.reload(config(), origin, NewKeys::File(key_file(&w, &["f2"])));
    assert_eq!(w.ask("getPoints", "f2", "memberID=7").await.answer.unwrap_err(), Fault::GuildDeparted);
}
