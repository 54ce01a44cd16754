//! The rules, on the built-in backend, with a clock that the test moves and no socket.

mod key_life;
mod limits;
mod loaded_keys;

use std::time::{Duration, Instant};

use futures_util::poll;
use tempfile::TempDir;

use super::*;
use crate::clock::Tick;
use crate::config;
use crate::model::{Digest, GuildId, Limit, MemberId, Scope, WARN};
use crate::origin::{Builtin, Origin};
use crate::store::{KeyChange, KeyRecord, Store};
use crate::telemetry::decisions::{Decision, RecordReader};
use crate::telemetry::{CLOSE_TIMEOUT, DecisionLog};
use crate::wire::{Operation, Param, RequestId, TraceContext};

/// A gateway over a store of its own, at Unix second 1000.
struct TestGateway {
    gateway: Arc<Gateway>,
    store: Arc<Store>,
    decisions: Arc<DecisionLog>,
    _folder: TempDir,
}

const GUILD: &str = "81384788765712384";

struct Bytes<'b>(&'b [u8]);

impl Body for Bytes<'_> {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        Ok(self.0)
    }
}

/// A body that must not be asked for.
struct Untouched;

impl Body for Untouched {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        panic!("the body was read")
    }
}

/// A body in which a defect of ours shows.
struct Broken;

impl Body for Broken {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        tokio::task::yield_now().await;
        panic!("a defect that a test put here")
    }
}

/// A body that comes after something has happened.
struct After<'b, F>(&'b [u8], F);

impl<F: FnMut() + Send> Body for After<'_, F> {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        tokio::task::yield_now().await;
        self.1();
        Ok(self.0)
    }
}

impl TestGateway {
    async fn new(toml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = config::load_str(toml, folder.path(), "test").unwrap().config;
        let at = config::StoreAt::Sqlite(folder.path().join("test.db"));
        let store = Store::open(&at, crate::store::IfMissing::Make).await.unwrap();
        let guild: GuildId = GUILD.parse().unwrap();
        store.add_guild(&guild, "Night Watch").await.unwrap();
        for (id, scope, expires) in
            [("k1", Scope::Write, None), ("k2", Scope::Read, None), ("k3", Scope::Write, Some(2000))]
        {
            let key = KeyRecord {
                id: id.into(),
                name: String::new(),
                guild: guild.clone(),
                digest: Digest::of(id.as_bytes()),
                tier: None,
                scope,
                created: 0,
                expires,
                last_used: None,
                previous: None,
            };
            store.create_key(key).await.unwrap();
        }
        let clock = Clock::manual(1000);
        let source = KeySource::Store(store.clone());
        let origin = Arc::new(Origin::Builtin(Builtin::new(store.clone(), clock.clone())));
        let state = State::new(config, origin, source.clone(), source.list().await.unwrap(), Vec::new(), &clock);
        let decisions = Arc::new(DecisionLog::open(&folder.path().join("d.log"), 1 << 20, clock.clone()).unwrap());
        let decided = Arc::new(Some(decisions.clone()).into());
        let gateway = Gateway::new(clock, state, Observer { decisions: decided, ..Observer::default() });
        TestGateway { gateway: Arc::new(gateway), store, decisions, _folder: folder }
    }

    async fn ask(&self, operation: &str, key: &str, body: &str) -> Reply {
        let path = format!("/{operation}");
        self.ask_header(&RequestHeader { path: path.as_bytes(), authorization: Some(key.as_bytes()), ..header() }, body)
            .await
    }

    async fn ask_header(&self, header: &RequestHeader<'_>, body: &str) -> Reply {
        let state = self.gateway.state().clone();
        self.gateway.handle(&state, &self.begun(header), &mut Bytes(body.as_bytes())).await
    }

    /// The header of a request whose turn begins now.
    fn begun<'h>(&self, header: &RequestHeader<'h>) -> RequestHeader<'h> {
        RequestHeader { began: self.gateway.now(), ..*header }
    }

    async fn refused_unread(&self, header: &RequestHeader<'_>) -> Fault {
        let state = self.gateway.state().clone();
        self.gateway.handle(&state, &self.begun(header), &mut Untouched).await.answer.unwrap_err()
    }

    /// What was recorded until now. Nothing is recorded after it.
    fn decisions(&self) -> Vec<Decision> {
        self.decisions.writer.close(Instant::now() + CLOSE_TIMEOUT);
        let path = self._folder.path().join("d.log");
        let mut reader = RecordReader::open(&path).unwrap();
        std::iter::from_fn(|| reader.next_block().unwrap()).flat_map(|block| block.decisions).collect()
    }

    /// Gives a key another secret; the one before works until this Unix second.
    async fn rotate(&self, id: &str, secret: &str, until: Option<i64>) {
        let now = self.gateway.clock().unix();
        self.store.rotate_key(id, Digest::of(secret.as_bytes()), until, now).await.unwrap();
        self.reload_keys().await;
    }

    async fn reload_keys(&self) {
        let list = self.gateway.state_full().keys.list().await.unwrap();
        self.gateway.replace_state(None, NewKeys::Listed(list));
    }

    fn advance(&self, seconds: u64) {
        self.gateway.clock().advance(Duration::from_secs(seconds));
    }

    fn guild(&self) -> GuildId {
        GUILD.parse().unwrap()
    }
}

fn header() -> RequestHeader<'static> {
    RequestHeader {
        method: b"POST",
        path: b"/getPoints",
        authorization: Some(b"k1"),
        content_type: None,
        content_encoded: false,
        content_length: None,
        trace: TraceContext::default(),
        began: Tick(0),
        client: [127, 0, 0, 1].into(),
        id: RequestId::random(),
        in_flight: Box::leak(Box::default()),
    }
}

fn seven() -> MemberId {
    "7".parse().unwrap()
}

fn text(reply: &Reply) -> &str {
    reply.answer.as_deref().unwrap()
}

const PLENTY: &str = "limits.tiers.standard = { rate = \"1000/s\", burst = 1000 }\n";

#[tokio::test]
async fn refusals_come_in_the_contracts_order_and_before_the_body() {
    let w = TestGateway::new("limits.tiers.standard = { rate = \"1/s\", burst = 3 }").await;
    let bad = RequestHeader {
        path: b"/nothing",
        method: b"GET",
        content_length: Some(1 << 30),
        authorization: None,
        ..header()
    };
    assert_eq!(w.refused_unread(&bad).await, Fault::UnknownOperation);
    let bad = RequestHeader { path: b"/setPoints", ..bad };
    assert_eq!(w.refused_unread(&bad).await, Fault::MethodNotPost);
    let bad = RequestHeader { method: b"POST", ..bad };
    assert_eq!(w.refused_unread(&bad).await, Fault::BodyTooLarge);
    let bad = RequestHeader { content_length: None, content_type: Some(b"text/html"), ..bad };
    assert_eq!(w.refused_unread(&bad).await, Fault::NoKey);
    let bad = RequestHeader { authorization: Some(b""), ..bad };
    assert_eq!(w.refused_unread(&bad).await, Fault::NoKey);
    let bad = RequestHeader { authorization: Some(b"k9"), ..bad };
    assert_eq!(w.refused_unread(&bad).await, Fault::IncorrectKey);
    let bad = RequestHeader { authorization: Some(b"k2"), ..bad };
    let not_allowed = Fault::NotAllowed(Operation::SetPoints);
    assert_eq!(w.refused_unread(&bad).await, not_allowed);
    let bad = RequestHeader { path: b"/getPoints", ..bad };
    assert_eq!(w.refused_unread(&bad).await, Fault::NotAForm);
    let bad = RequestHeader { content_type: None, content_encoded: true, ..bad };
    assert_eq!(w.refused_unread(&bad).await, Fault::NotAForm);
    // The three above have used the burst up: 12 comes before all of them.
    assert_eq!(w.refused_unread(&bad).await, Fault::TooManyRequests { retry_after: 1 });
    let bad = RequestHeader { path: b"/setPoints", ..bad };
    assert_eq!(w.refused_unread(&bad).await, Fault::TooManyRequests { retry_after: 1 });
    // The parameters come before the guild.
    w.store.set_guild(&w.guild(), None, Some(true)).await.unwrap();
    w.reload_keys().await;
    for (body, fault) in [
        ("memberID=7&memberID=7", Fault::Repeated(Param::MemberId)),
        ("amount=5", Fault::MemberMissing),
        ("memberID=x", Fault::MemberNotInteger),
        ("memberID=7&amount=&amount=", Fault::Repeated(Param::Amount)),
        ("memberID=7", Fault::AmountMissing),
        ("memberID=7&amount=x", Fault::AmountNotInteger),
        ("memberID=7&amount=5", Fault::GuildDeparted),
    ] {
        w.advance(1);
        assert_eq!(w.ask("setPoints", "k1", body).await.answer.unwrap_err(), fault, "{body}");
    }
}

#[tokio::test]
async fn an_answer_is_given_from_memory_until_its_ttl_is_over() {
    let w = TestGateway::new(PLENTY).await;
    w.store.set_member(&w.guild(), seven(), None, Some(3)).await.unwrap();
    let first = w.ask("getPoints", "k1", "memberID=7").await;
    assert_eq!((text(&first), first.details.cache), ("3", Some(CacheStatus::Forwarded { stale: false, stored: true })));
    w.store.set_member(&w.guild(), seven(), None, Some(4)).await.unwrap();
    w.advance(12);
    let hit = w.ask("getPoints", "k2", "memberID=007").await;
    let (ttl, age) = (Duration::from_secs(18), Duration::from_secs(12));
    assert_eq!((text(&hit), hit.details.cache), ("3", Some(CacheStatus::Hit { ttl, age })));
    // One that becomes too old while the body comes is not given.
    let state = w.gateway.state().clone();
    let mut body = After(b"memberID=7", || w.advance(18));
    let late = w.gateway.handle(&state, &w.begun(&header()), &mut body).await;
    assert_eq!((text(&late), late.details.cache), ("4", Some(CacheStatus::Forwarded { stale: true, stored: true })));
}

#[tokio::test]
async fn a_warn_that_expires_while_its_read_waits_is_not_given() {
    let w = TestGateway::new(PLENTY).await;
    // A read may also end at once.
    for member in 1..=100 {
        let (now, id) = (w.gateway.clock().unix(), MemberId::new(member).unwrap());
        let warn = crate::store::suite::warn_for("spam", now + 5);
        w.store.add_note(&WARN, &w.guild(), id, warn).await.unwrap();
        let body = format!("memberID={member}");
        let mut ask = std::pin::pin!(w.ask("getWarns", "k1", &body));
        if poll!(&mut ask).is_pending() {
            w.advance(5);
            assert_eq!(text(&ask.await), "{}");
            return;
        }
    }
    panic!("no read had to wait");
}

#[tokio::test]
async fn a_warn_is_never_given_past_its_expiry_even_by_a_wall_clock_that_jumps() {
    let w = TestGateway::new(PLENTY).await;
    w.store.add_note(&WARN, &w.guild(), seven(), crate::store::suite::warn_for("spam", 1010)).await.unwrap();
    w.store.add_note(&WARN, &w.guild(), seven(), crate::store::suite::warn_for("more", 9999)).await.unwrap();
    let both = w.ask("getWarns", "k1", "memberID=7").await;
    assert!(text(&both).contains("spam") && text(&both).contains("more"));
    w.advance(9);
    assert!(text(&w.ask("getWarns", "k1", "memberID=7").await).contains("spam"));
    w.gateway.clock().set_unix(1010);
    let later = w.ask("getWarns", "k1", "memberID=7").await;
    assert_eq!(text(&later), "{warns_7_id_2_9999=Mod: more (Expires 9999)}");
}

#[tokio::test]
async fn a_panic_is_20_for_the_one_who_met_it_and_harms_nobody_else() {
    let w = TestGateway::new("limits.tiers.standard = { rate = \"1000/s\", burst = 1000, in_flight = 1 }").await;
    let state = w.gateway.state().clone();
    let write = RequestHeader { path: b"/setPoints", ..header() };
    for _ in 0..3 {
        let reply = w.gateway.handle(&state, &header(), &mut Broken).await;
        assert_eq!(reply.answer.unwrap_err(), Fault::NoUsableAnswer);
        assert!(reply.details.panicked);
        assert_eq!(*reply.details.key.unwrap().id, *"k1", "what was found out before it is told");
        let reply = w.gateway.handle(&state, &write, &mut Broken).await;
        assert_eq!(reply.answer.unwrap_err(), Fault::NoUsableAnswer);
    }
    // Its one slot in flight was released, and nothing was written.
    let reply = w.ask("getPoints", "k1", "memberID=7").await;
    assert_eq!((text(&reply), reply.details.panicked), ("0", false));
    w.ask("setPoints", "k1", "memberID=7&amount=9").await.answer.unwrap();
    assert_eq!(text(&w.ask("getPoints", "k1", "memberID=7").await), "9");
}

#[tokio::test]
async fn a_request_whose_keys_have_become_too_old_while_its_body_came_is_21() {
    let w = TestGateway::new(PLENTY).await;
    let state = w.gateway.state().clone();
    for path in [&b"/getPoints"[..], b"/setPoints"] {
        w.gateway.feed.confirm(w.gateway.now());
        let mut body = After(b"memberID=7&amount=5", || w.advance(1));
        let reply = w.gateway.handle(&state, &w.begun(&RequestHeader { path, ..header() }), &mut body).await;
        assert_eq!(reply.answer.unwrap_err(), Fault::Unavailable { retry_after: 1 });
    }
    w.gateway.feed.confirm(w.gateway.now());
    assert_eq!(text(&w.ask("getPoints", "k1", "memberID=7").await), "0");
}
