//! When keys are read, and which of two lists is in force last.

use super::*;

#[tokio::test]
async fn a_list_that_was_begun_before_another_is_in_force_before_it() {
    let w = World::new(PLENTY).await;
    let config = config::load_str(PLENTY, w._folder.path(), "test").unwrap().config;
    let older = w.gateway.list(None).await.unwrap();
    w.store.revoke_key("k1").await.unwrap();
    assert!(w.gateway.list(None).now_or_never().is_none(), "another was listed meanwhile");
    let origin = w.gateway.state().origin.clone();
    w.gateway.reload(config, origin, w.source.clone(), older);
    assert!(w.ask("getPoints", "k1", "memberID=7").await.answer.is_ok(), "the list was older");
    w.gateway.take_book(w.gateway.list(None).await.unwrap());
    assert_eq!(w.ask("getPoints", "k1", "memberID=7").await.answer.unwrap_err(), Fault::IncorrectKey);
}

#[tokio::test]
async fn what_was_heard_of_while_keys_were_listed_for_a_reload_is_doubted_until_it_is_read() {
    let w = World::new(PLENTY).await;
    let config = config::load_str(PLENTY, w._folder.path(), "test").unwrap().config;
    let older = w.gateway.list(None).await.unwrap();
    w.gateway.doubt.book_changed();
    let origin = w.gateway.state().origin.clone();
    w.gateway.reload(config, origin, w.source.clone(), older);
    w.advance(1);
    w.gateway.doubt.heard_all(w.gateway.now(), w.gateway.now());
    assert!(w.gateway.doubt.grows(w.gateway.now()), "the reload's list was believed to have the change in it");
}

#[tokio::test]
async fn while_nothing_is_heard_keys_are_read_again_once_they_are_old_and_not_at_each_look() {
    let w = World::new(PLENTY).await;
    let is_asked_for = || w.gateway.book_is_old.notified().now_or_never().is_some();
    w.gateway.hears_nothing();
    assert!(!is_asked_for(), "they were read just now");
    w.gateway.clock.advance(Duration::from_millis(300));
    w.gateway.hears_nothing();
    assert!(is_asked_for());
    let fresh = w.gateway.list(None).await.unwrap();
    w.gateway.hears_nothing();
    assert!(!is_asked_for(), "they are being read");
    w.gateway.take_book(fresh);
    w.gateway.hears_nothing();
    assert!(!is_asked_for(), "they were read just now");
}
