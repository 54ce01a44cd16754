//! One node of the simulation: the bus's own rules, and the gateway's own cache, used as `gateway/read.rs`,
//! `gateway/write.rs` and `gateway/peers.rs` use them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use guildgate::cache::{AnswerCache, Entry, EntryKey, EntryState, Epoch, Realm, Realms, WriteGuard};
use guildgate::clock::Tick;
use guildgate::cluster::Freshness;
use guildgate::cluster::bus::{DropReason, Incarnation, Listener, Node, RemoteWrite};
use guildgate::config;
use guildgate::model::{GuildId, MemberId};
use guildgate::wire::Operation;

use crate::world::{Bug, Time};

/// `cache.points.ttl`: shorter than the pauses of nodes, so that what is not kept for so long is kept again before they
/// end.
pub const TTL: Duration = Duration::from_secs(2);

pub fn entry_key(member: MemberId) -> EntryKey {
    EntryKey { realm: Realm(1), member, read: Operation::GetPoints }
}

/// A write of a caller of this node.
pub struct Write {
    pub member: MemberId,
    /// Until the origin has answered.
    pub guard: Option<WriteGuard<'static>>,
    /// Its number on the bus.
    pub number: u64,
    /// The entry whose confirmation it waits for.
    pub waits_for: Option<u64>,
    /// What the origin answered; `None`: it was not asked, or did not answer.
    pub version: Option<u64>,
    pub is_asked: bool,
    pub announcements: usize,
}

/// A question to the origin, and the reads that wait for its answer.
pub struct Flight {
    pub member: MemberId,
    pub epoch: Epoch,
    pub asked: Time,
    pub readers: Vec<ReadBegun>,
}

/// A read of a caller, and what it must see at least: the newest write that was acknowledged anywhere a second before it
/// began, and the newest that this node's callers had seen by then.
#[derive(Clone, Copy)]
pub struct ReadBegun {
    pub member: MemberId,
    pub at: Time,
    pub acknowledged: u64,
    pub seen_here: u64,
}

pub struct SimulatedNode {
    pub bus: Node,
    pub freshness: Arc<Freshness>,
    pub effects: Effects,
    pub connection: Option<u64>,
    /// Numbers the batches and reads that are under way, so that their deadlines find them.
    pub batch: u64,
    pub read: u64,
    pub is_sending: bool,
    /// When the timer of the next beat ends.
    pub beat_at: Time,
    pub writes: HashMap<u64, Write>,
    pub flights: HashMap<u64, Flight>,
}

/// The node's cache, and what the bus did to it.
pub struct Effects {
    pub cache: &'static AnswerCache,
    pub bug: Bug,
    pub now: Tick,
    keep_nothing_until: Tick,
    remote_writes: HashMap<RemoteWrite, WriteGuard<'static>>,
    pub drops: HashMap<&'static str, u64>,
}

impl SimulatedNode {
    /// A process that has just started.
    pub fn new(cache: &'static AnswerCache, bug: Bug, incarnation: u64, now: Time) -> Self {
        cache.epochs().invalidate_all();
        let bus = Node::new(Incarnation(incarnation), Tick(now));
        let freshness = bus.freshness();
        let effects = Effects {
            cache,
            bug,
            now: Tick(now),
            keep_nothing_until: Tick(0),
            remote_writes: HashMap::new(),
            drops: HashMap::new(),
        };
        SimulatedNode {
            bus,
            freshness,
            effects,
            connection: None,
            batch: 0,
            read: 0,
            is_sending: false,
            beat_at: 0,
            writes: HashMap::new(),
            flights: HashMap::new(),
        }
    }

    /// `Gateway::look_up`, for a request that began at `began`.
    pub fn look_up(&self, member: MemberId, began: Time) -> Option<u64> {
        let cache = self.effects.cache;
        if self.freshness.is_stale(Tick(began)) && self.effects.bug != Bug::AnswerWhileUnheard {
            cache.epochs().invalidate_all();
        }
        let entry = cache.get(&entry_key(member))?;
        match entry.state_at(Tick(began), || 0) {
            EntryState::Fresh { .. } => entry.text.parse().ok(),
            _ => None,
        }
    }

    /// The flight that a read may join, by the epoch that stands now.
    pub fn joinable(&mut self, member: MemberId) -> Option<&mut Flight> {
        let epoch = self.effects.cache.epoch(&entry_key(member));
        self.flights.values_mut().find(|flight| flight.member == member && flight.epoch == epoch)
    }

    /// `Gateway::fetch` and `Gateway::lead` after the origin has answered.
    pub fn keep(&self, flight: &Flight, version: u64, now: Time) {
        let may_store = self.effects.keep_nothing_until <= Tick(now);
        let ttl = if may_store { TTL } else { Duration::ZERO };
        let zero = Duration::ZERO;
        let freshness = config::Freshness { ttl, stale_while_revalidate: zero, stale_if_error: zero };
        let key = entry_key(flight.member);
        let text: Arc<str> = version.to_string().into();
        let entry = Arc::new(Entry::new((key, flight.epoch), text, (Tick(flight.asked), Tick(now)), freshness, None));
        self.effects.cache.insert(key, &entry, Realms::One(key.realm), Tick(now));
    }

    /// The epoch moves before the write is announced.
    pub fn begin_write(&self, member: MemberId, now: Time) -> WriteGuard<'static> {
        let cache = self.effects.cache;
        cache.begin_write(member, &[Operation::GetPoints], Realms::One(Realm(1)), TTL, Tick(now))
    }
}

impl Effects {
    fn dropped(&mut self, reason: &'static str) {
        *self.drops.entry(reason).or_default() += 1;
    }

    fn begin(&self, member: MemberId) -> WriteGuard<'static> {
        self.cache.begin_remote_write(member, TTL, self.now)
    }
}

impl Listener for Effects {
    fn drop_everything(&mut self, reason: DropReason) {
        let is_ignored = match self.bug {
            Bug::IgnoreGaps => reason == DropReason::Gap,
            Bug::IgnoreLosses => !matches!(reason, DropReason::Gap | DropReason::BadEntry),
            Bug::None | Bug::AcknowledgeUnconfirmed | Bug::AnswerWhileUnheard => false,
        };
        if is_ignored {
            return;
        }
        match reason {
            DropReason::Gap => self.dropped("gap"),
            DropReason::BadEntry => self.dropped("bad entry"),
            DropReason::OtherServer { until } => {
                self.dropped("other server");
                self.keep_nothing_until = until;
            }
            DropReason::Removed { until } => {
                self.dropped("removed");
                self.keep_nothing_until = until;
            }
            DropReason::NotContinuous => self.dropped("first"),
            DropReason::Everything => self.dropped("everything"),
        }
        self.cache.epochs().invalidate_all();
    }

    fn write_begun(&mut self, write: RemoteWrite, member: MemberId) {
        let guard = self.begin(member);
        self.remote_writes.insert(write, guard);
    }

    fn write_over(&mut self, write: RemoteWrite, member: MemberId, settled: bool) {
        let guard = self.remote_writes.remove(&write).unwrap_or_else(|| self.begin(member));
        match settled {
            true => guard.end_settled(),
            false => guard.end_unsettled(self.now, TTL),
        }
    }

    fn purge(&mut self, _: Option<&GuildId>, _: Option<MemberId>) {
        self.cache.epochs().invalidate_all();
    }
}
