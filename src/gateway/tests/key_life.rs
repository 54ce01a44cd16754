//! When a key stops: by its expiry, when it is revoked, and after a rotation.

use super::*;

#[tokio::test]
async fn the_last_use_of_a_rotated_key_is_that_of_whichever_secret_was_used() {
    let w = TestGateway::new(PLENTY).await;
    let last_used = async || {
        w.gateway.write_usage(&w.store, true).await.unwrap();
        w.store.keys().await.unwrap().into_iter().find(|key| &*key.id == "k1").unwrap().last_used
    };
    w.rotate("k1", "new", Some(9000)).await;
    for (secret, at) in [("k1", 1001), ("new", 1002), ("k1", 1003)] {
        w.advance(1);
        assert!(w.ask("getPoints", secret, "memberID=7").await.answer.is_ok());
        assert_eq!(last_used().await, Some(at), "{secret}");
    }
    w.advance(1);
    assert_eq!(last_used().await, Some(1003));
}

#[tokio::test]
async fn without_an_overlap_the_secret_before_a_rotation_stops_at_once() {
    let w = TestGateway::new(PLENTY).await;
    assert!(w.ask("getPoints", "k1", "memberID=7").await.answer.is_ok());
    w.rotate("k1", "new", Some(1000)).await;
    assert_eq!(w.ask("getPoints", "k1", "memberID=7").await.answer.unwrap_err(), Fault::IncorrectKey);
    assert!(w.ask("getPoints", "new", "memberID=7").await.answer.is_ok());
    w.rotate("k1", "newer", Some(2000)).await;
    w.rotate("k1", "newest", Some(3000)).await;
    assert_eq!(w.ask("getPoints", "new", "memberID=7").await.answer.unwrap_err(), Fault::IncorrectKey);
    for secret in ["newer", "newest"] {
        assert!(w.ask("getPoints", secret, "memberID=7").await.answer.is_ok(), "{secret}");
    }
}

#[tokio::test]
async fn both_secrets_end_with_their_key_where_that_ends_before_the_overlap() {
    let w = TestGateway::new(PLENTY).await;
    w.rotate("k3", "new", Some(9000)).await;
    for secret in ["k3", "new"] {
        w.gateway.clock().set_unix(1999);
        assert!(w.ask("getPoints", secret, "memberID=7").await.answer.is_ok(), "{secret}");
        w.gateway.clock().set_unix(2000);
        assert_eq!(w.ask("getPoints", secret, "memberID=7").await.answer.unwrap_err(), Fault::IncorrectKey, "{secret}");
    }
    // An end that is put off is put off for the old secret too, but not beyond its overlap.
    let never = KeyChange { expires: Some(None), ..KeyChange::default() };
    w.store.set_key("k3", never).await.unwrap();
    w.reload_keys().await;
    for (at, works) in [(8999, true), (9000, false)] {
        w.gateway.clock().set_unix(at);
        assert_eq!(w.ask("getPoints", "k3", "memberID=7").await.answer.is_ok(), works, "{at}");
        assert!(w.ask("getPoints", "new", "memberID=7").await.answer.is_ok());
    }
}
