//! The other nodes before the same HTTP origin, as far as the rules depend on them (guarantee 2): what they tell over the
//! bus takes effect in this node's memory, and they are told of this node's writes. Without a bus nothing of this runs.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Gateway, State};
use crate::cache::Realms;
use crate::clock::Tick;
use crate::cluster::RedisStream;
use crate::cluster::bus::{Bus, Heard, Loss, NotConfirmed, Notice};
use crate::model::MemberId;

/// This node's end of the bus.
#[derive(Debug)]
pub struct Peers {
    pub bus: Bus,
    /// How often everything was dropped because notices may be missing, in the order of [`LOSSES`].
    losses: [AtomicU64; LOSSES.len()],
}

/// How `/metrics` names why notices may be missing.
pub(super) const LOSSES: [&str; 3] = ["unheard", "silent_node", "bad_entry"];

impl Peers {
    pub(super) fn new(bus: Bus) -> Self {
        Peers { bus, losses: Default::default() }
    }

    /// Whether this node did not hear the others for so long that it answers nothing from memory.
    pub(super) fn is_cut_off(&self, now: Tick) -> bool {
        self.bus.freshness().is_stale(now)
    }

    /// How often notices may be missing, by [`LOSSES`].
    pub(super) fn losses(&self) -> [u64; LOSSES.len()] {
        self.losses.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

impl Gateway {
    /// The other nodes, if there is a bus.
    pub fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }

    /// The other nodes that hear of each other by the bus. Those of the built-in backend hear by the store's feed.
    pub(super) fn peers_of(&self, state: &State) -> Option<&Peers> {
        self.peers().filter(|_| !state.origin.is_builtin())
    }

    /// Whether this node hears the others, if there are any. Otherwise nothing is answered from memory, and no write begins.
    pub(super) fn hears_peers(&self, state: &State, now: Tick) -> bool {
        self.peers_of(state).is_none_or(|peers| !peers.is_cut_off(now))
    }

    /// Tells the other nodes that a write has ended; `settled`: its outcome is known. They are told also where the future
    /// is dropped, which resolves once they cannot answer what was before the write for longer than a second.
    ///
    /// # Errors
    /// They could not be told within `origin.timeout`. They are told until they can be.
    pub(super) async fn tell_peers(&self, state: &State, member: MemberId, settled: bool) -> Result<(), NotConfirmed> {
        let Some(peers) = self.peers_of(state) else { return Ok(()) };
        peers.bus.tell(Notice::Changed { member, settled }, state.write_time()).await
    }

    /// Hears the other nodes, and tells them what is to be told, until the process ends.
    pub async fn follow_peers(&self, stream: &RedisStream) {
        if let Some(peers) = self.peers() {
            peers.bus.run(stream, |heard| self.apply(peers, heard)).await;
        }
    }

    fn apply(&self, peers: &Peers, heard: Heard) {
        let (gate, state, now) = (&self.cache.gate, self.state(), self.now());
        match heard {
            Ok(Notice::Beat | Notice::Bye) => {}
            Ok(Notice::Changed { member, settled }) => {
                if !settled {
                    gate.unknown_outcome(member, now.plus(state.unknown_for()));
                }
                gate.invalidate_member(member, Realms::All);
            }
            Ok(Notice::Purge { guild, member }) => {
                // Where only the origin knows the guilds of the keys, a purge of one invalidates nothing at any node.
                let _ = self.purge_here(guild.as_ref(), member);
            }
            Err(loss) => {
                match loss {
                    Loss::SilentNode => gate.ask_until(now.plus(state.write_time())),
                    Loss::Unheard | Loss::BadEntry => gate.invalidate_all(),
                }
                peers.losses[loss as usize].fetch_add(1, Ordering::Relaxed);
                let reason = LOSSES[loss as usize];
                tracing::warn!(reason, "what other nodes told may be lost; everything in memory was dropped");
            }
        }
    }
}
