//! The hit path's budget that can be held without a clock: no allocation, no wait.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use guildgate::clock::{Clock, Tick};
use guildgate::config;
use guildgate::gateway::{Body, CacheStatus, Gateway, KeyFile, KeyList, KeySource, Reply, RequestHeader, State};
use guildgate::keys::{InFlightSlot, ListedKey};
use guildgate::model::{Digest, GuildId, Scope};
use guildgate::origin::{Builtin, Origin};
use guildgate::store::{AnyStore, Directory, SqliteStore};
use guildgate::telemetry::{DecisionLog, Observer};
use guildgate::wire::{Fault, RequestId, TraceContext};

struct Bytes(&'static [u8]);

impl Body for Bytes {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        Ok(self.0)
    }

    async fn flush_answers(&mut self) {}
}

/// Asks, and insists that it is answered without waiting.
fn ask(gateway: &Arc<Gateway>, header: &RequestHeader<'_>) -> Reply {
    let state = gateway.state();
    let mut body = Bytes(b"memberID=190551803669118976");
    let slot = InFlightSlot::default();
    let header = RequestHeader { in_flight: &slot, began: gateway.clock().now(), ..*header };
    let asking = pin!(gateway.handle(&state, &header, &mut body));
    match asking.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => reply,
        Poll::Pending => panic!("the built-in backend made a read wait"),
    }
}

#[tokio::test]
async fn a_hit_waits_for_nothing_and_allocates_nothing() {
    hits_are_free(None).await;
}

#[tokio::test]
async fn a_hit_whose_decision_is_recorded_allocates_nothing_either() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.log");
    let decisions = Arc::new(DecisionLog::open(&path, 1 << 20, Clock::system()).unwrap());
    hits_are_free(Some(decisions.clone())).await;
    decisions.close();
    assert!(std::fs::metadata(path).unwrap().len() > 100, "21 decisions are in the record");
}

async fn hits_are_free(decisions: Option<Arc<DecisionLog>>) {
    let folder = tempfile::tempdir().unwrap();
    let limits = "[limits.tiers.standard]\nrate = \"1000000/s\"\nburst = 1000000\n";
    let config = config::load_str(limits, folder.path(), "test").unwrap().config;
    let store = Arc::new(AnyStore::from(SqliteStore::open(folder.path().join("test.db")).unwrap()));
    let guild: GuildId = "81384788765712384".parse().unwrap();
    store.add_guild(&guild, "Night Watch").await.unwrap();
    let key = ListedKey {
        id: "k1".into(),
        digest: Digest::of(b"some key"),
        guild,
        guild_departed: false,
        tier: Some("standard".into()),
        scope: Scope::Write,
        expires: None,
    };
    let clock = Clock::system();
    let origin = Arc::new(Origin::Builtin(Builtin::new(store, clock.clone())));
    let keys = KeySource::File(KeyFile { keys: [key].into(), guilds: None });
    let state = State::new(config, origin, keys, KeyList::default(), Vec::new(), &clock);
    let gateway = Arc::new(Gateway::new(clock, state, Observer::new(None, decisions)));
    let slot = InFlightSlot::default();
    let header = RequestHeader {
        method: b"POST",
        path: b"/getPoints",
        authorization: Some(b"some key"),
        content_type: Some(b"application/x-www-form-urlencoded"),
        content_encoded: false,
        content_length: None,
        trace: TraceContext::default(),
        began: Tick(0),
        client: [127, 0, 0, 1].into(),
        id: RequestId::random(),
        in_flight: &slot,
    };
    let first = ask(&gateway, &header);
    assert_eq!(first.details.cache, Some(CacheStatus::Forwarded { stale: false, stored: true }));
    // moka writes its own books now and then (a batch of reads, a sweep); a hit itself needs none.
    let each = (0..20)
        .map(|_| {
            let mut hit = false;
            let counted = allocation_counter::measure(|| {
                hit = matches!(ask(&gateway, &header).details.cache, Some(CacheStatus::Hit { .. }));
            });
            assert!(hit);
            counted.count_total
        })
        .collect::<Vec<_>>();
    assert!(each.iter().filter(|n| **n == 0).count() >= 18, "allocations of each hit: {each:?}");
}
