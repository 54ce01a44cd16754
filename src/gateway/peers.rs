//! The other nodes before the same HTTP origin, as far as the rules depend on them (guarantee 2): what they tell over the
//! bus takes effect in this node's cache, and they are told of this node's writes. Without a bus nothing of this runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::state::Core;
use super::{Gateway, KeySource, State};
use crate::cache::WriteGuard;
use crate::clock::Tick;
use crate::cluster::bus::{Bus, BusWrite, DropReason, Listener, RemoteWrite, Transport};
use crate::model::{GuildId, MemberId};
use crate::wire::Fault;

/// This node's end of the bus.
#[derive(Debug)]
pub struct Peers {
    pub bus: Bus,
    /// The tick until which nothing is kept, since other nodes' writes in flight may not be known.
    keep_nothing_until: AtomicU64,
    /// How often everything was dropped because notices may have been lost, in the order of [`LOSSES`].
    losses: [AtomicU64; LOSSES.len()],
}

/// How `/metrics` names what may have been lost.
pub(super) const LOSSES: [&str; 4] = ["gap", "bad_entry", "other_server", "removed"];

impl Peers {
    pub(super) fn new(bus: Bus) -> Self {
        Peers { bus, keep_nothing_until: AtomicU64::new(0), losses: Default::default() }
    }

    /// Whether this node did not hear the others for so long that it answers nothing from memory.
    pub(super) fn is_cut_off(&self, now: Tick) -> bool {
        self.bus.freshness().is_stale(now)
    }

    /// How often notices may have been lost, by [`LOSSES`].
    pub(super) fn losses(&self) -> [u64; LOSSES.len()] {
        self.losses.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Whether answers may be kept at `now`.
    pub(super) fn may_store(&self, now: Tick) -> bool {
        self.keep_nothing_until.load(Ordering::SeqCst) <= now.0
    }
}

impl Core {
    /// The other nodes that hear of each other by the bus. Those of the built-in backend hear by the store's feed.
    pub(super) fn peers(&self, state: &State) -> Option<&Peers> {
        self.peers.as_ref().filter(|_| !state.origin.is_builtin())
    }

    /// Invalidates the cache if this node did not hear the others for too long.
    pub(super) fn invalidate_if_peers_are_unheard(&self, state: &State, now: Tick) {
        if self.peers(state).is_some_and(|peers| peers.is_cut_off(now)) {
            self.cache.epochs().invalidate_all();
        }
    }

    /// Announces a write to the other nodes. The epoch must have been advanced before.
    pub(super) async fn announce_to_peers(
        &self,
        state: &State,
        member: MemberId,
    ) -> Result<Option<BusWrite<'_>>, Fault> {
        let Some(peers) = self.peers(state) else { return Ok(None) };
        let announced = async {
            let mut write = peers.bus.begin(member).await?;
            write.before_asking().await.map(|()| write)
        };
        announced.await.map(Some).map_err(|_| Fault::Unavailable { retry_after: 1 })
    }
}

impl Gateway {
    /// The other nodes, if there is a bus.
    pub fn peers(&self) -> Option<&Peers> {
        self.core.peers.as_ref()
    }

    /// Hears the other nodes, and tells them what is to be told, until the process ends.
    pub async fn follow_peers(&self, transport: &impl Transport) {
        if let Some(peers) = self.peers() {
            peers.bus.run(transport, RemoteWrites { gateway: self, peers, in_flight: HashMap::new() }).await;
        }
    }
}

/// The writes of other nodes, as this node's cache tracks them.
struct RemoteWrites<'g> {
    gateway: &'g Gateway,
    peers: &'g Peers,
    in_flight: HashMap<RemoteWrite, WriteGuard<'g>>,
}

impl<'g> RemoteWrites<'g> {
    fn begin(&self, member: MemberId) -> WriteGuard<'g> {
        let Gateway { core, handover, .. } = self.gateway;
        core.cache.begin_remote_write(member, handover.remote_no_store_time(), core.now())
    }
}

impl Listener for RemoteWrites<'_> {
    fn drop_everything(&mut self, reason: DropReason) {
        if let DropReason::OtherServer { until } | DropReason::Removed { until } = reason {
            self.peers.keep_nothing_until.fetch_max(until.0, Ordering::SeqCst);
        }
        self.gateway.core.cache.epochs().invalidate_all();
        let loss = match reason {
            DropReason::NotContinuous | DropReason::Everything => return,
            DropReason::Gap => 0,
            DropReason::BadEntry => 1,
            DropReason::OtherServer { .. } => 2,
            DropReason::Removed { .. } => 3,
        };
        self.peers.losses[loss].fetch_add(1, Ordering::Relaxed);
        let reason = LOSSES[loss];
        tracing::warn!(reason, "what other nodes told may be lost; everything in memory was dropped");
    }

    fn write_begun(&mut self, write: RemoteWrite, member: MemberId) {
        self.in_flight.insert(write, self.begin(member));
    }

    fn write_over(&mut self, write: RemoteWrite, member: MemberId, settled: bool) {
        let guard = self.in_flight.remove(&write).unwrap_or_else(|| self.begin(member));
        match settled {
            true => guard.end_settled(),
            false => guard.end_unsettled(self.gateway.core.now(), self.gateway.handover.remote_no_store_time()),
        }
    }

    fn purge(&mut self, guild: Option<&GuildId>, member: Option<MemberId>) {
        // Where only the origin knows the guilds of the keys, a purge of one invalidates nothing at any node.
        let _ = self.gateway.purge_here(guild, member);
        // The bot may have left it.
        if guild.is_some() && matches!(self.gateway.core.state().keys, KeySource::Store(_)) {
            self.gateway.follower.keys_changed();
        }
    }
}
