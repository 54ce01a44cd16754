//! Invalidates cached answers because an admin asks for it: those to the keys of a guild, those about a member, or all.
//! It only moves epochs, so no request waits for it. Other nodes are told over the bus.

use super::{Gateway, KeySource};
use crate::cache::Realms;
use crate::model::{GuildId, MemberId};

/// Why the answers of a guild cannot be invalidated.
const UNKNOWN_GUILDS: &str =
    "only the origin knows the guilds of the keys (keys.source = \"origin\"); purge a member or everything";

impl Gateway {
    /// Invalidates the cached answers to the keys of `guild`, about `member`, or both; all where neither is given.
    ///
    /// # Errors
    /// A guild cannot be purged where only the origin knows the keys.
    pub fn purge(&self, guild: Option<&GuildId>, member: Option<MemberId>) -> Result<(), &'static str> {
        self.purge_here(guild, member)?;
        if let Some(peers) = self.peers_of(&self.state()) {
            peers.bus.purge(guild.cloned(), member);
        }
        Ok(())
    }

    /// As [`Gateway::purge`], at this node only.
    pub(super) fn purge_here(&self, guild: Option<&GuildId>, member: Option<MemberId>) -> Result<(), &'static str> {
        let gate = &self.cache.gate;
        let Some(guild) = guild else {
            member.map_or_else(|| gate.invalidate_all(), |member| gate.invalidate_member(member, Realms::All));
            return Ok(());
        };
        let state = self.state();
        if matches!(state.keys, KeySource::Origin(_)) {
            return Err(UNKNOWN_GUILDS);
        }
        // A guild that never had a key has no answers.
        if let Some(realm) = state.key_table.realm_of(guild) {
            let of_member = |member| gate.invalidate_member(member, Realms::One(realm));
            member.map_or_else(|| gate.invalidate_realm(realm), of_member);
        }
        Ok(())
    }
}
