//! When a key stops: by its expiry, when it is revoked, and after a rotation.

use super::*;

/// A change of a key or of its guild, in words, and what a write, a read and a read with bad parameters come to after it.
type ChangeWhileTheBodyComes = (&'static str, [Result<&'static str, Fault>; 3]);

#[tokio::test]
async fn what_is_changed_of_a_key_while_a_body_comes_counts_when_it_has_come() {
    let (revoked, departed) = (Fault::IncorrectKey, Fault::GuildDeparted);
    let narrowed = Fault::NotAllowed(Operation::SetPoints);
    let bad = Fault::MemberNotInteger;
    let rows: [ChangeWhileTheBodyComes; 4] = [
        ("revoked", [Err(revoked), Err(revoked), Err(revoked)]),
        ("expired", [Err(revoked), Err(revoked), Err(revoked)]),
        ("narrowed", [Err(narrowed), Ok("3"), Err(bad)]),
        ("departed", [Err(departed), Err(departed), Err(bad)]),
    ];
    for (change, outcomes) in rows {
        let requests = [
            (&b"/setPoints"[..], &b"memberID=7&amount=5"[..]),
            (b"/getPoints", b"memberID=7"),
            (b"/getPoints", b"memberID=x"),
        ];
        for ((path, body), outcome) in requests.into_iter().zip(outcomes) {
            let w = TestGateway::new(PLENTY).await;
            w.store.set_member(&w.guild(), seven(), None, Some(3)).await.unwrap();
            assert_eq!(text(&w.ask("getPoints", "k3", "memberID=7").await), "3", "it is in memory");
            match change {
                "revoked" => w.store.revoke_key("k3").await.unwrap(),
                "narrowed" => {
                    let narrow = KeyChange { scope: Some(Scope::Read), ..KeyChange::default() };
                    w.store.set_key("k3", narrow).await.unwrap();
                }
                "departed" => drop(w.store.set_guild(&w.guild(), None, Some(true)).await.unwrap()),
                _ => {}
            }
            let mut list = Some(w.gateway.state_full().keys.list().await.unwrap());
            let mut body = After(body, || match change {
                "expired" => w.gateway.clock().set_unix(2000),
                _ => w.gateway.replace_state(None, NewKeys::Listed(list.take().unwrap())),
            });
            let header = RequestHeader { path, authorization: Some(b"k3"), ..header() };
            let state = w.gateway.state().clone();
            let reply = w.gateway.handle(&state, &w.begun(&header), &mut body).await;
            let told = reply.answer.as_deref().map_err(|fault| *fault);
            assert_eq!(told, outcome, "{change}: {}", String::from_utf8_lossy(path));
            let points = w.store.member(&w.guild(), seven()).await.unwrap().unwrap().points;
            assert_eq!(points, 3, "{change}: nothing was written");
        }
    }
}

#[tokio::test]
async fn the_last_use_of_a_rotated_key_is_that_of_whichever_secret_was_used() {
    let w = TestGateway::new(PLENTY).await;
    let last_used = async || {
        w.gateway.write_usage(&w.store, 0).await.unwrap();
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
    assert_eq!(w.store.requests_by_day("k1", 0).await.unwrap(), []);
    let usage = w.gateway.usage_of(|key| &**key == "k1");
    for requests in 1..4 {
        usage[0].key.budget.activity.count(None, None, w.gateway.clock().now());
        for _ in 0..2 {
            w.gateway.write_usage(&w.store, 0).await.unwrap();
            let written = w.store.requests_by_day("k1", 0).await.unwrap();
            assert_eq!(written, [(0, requests)], "each request is written once");
        }
    }
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
