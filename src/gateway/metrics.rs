//! What `/metrics` shows of the gateway's rules: cache, limits, keys, how old what is known of the store is, and the
//! origin.

use std::fmt;
use std::sync::atomic::Ordering;

use super::Gateway;
use super::peers::{LOSSES, Peers};
use crate::clock::Tick;
use crate::cluster::SharedLimits;
use crate::model::Limit;
use crate::telemetry::metrics::{Collector, DescriptorEncoder, counter, counters, gauge};

impl Collector for Gateway {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.observer.metrics.encode(encoder)?;
        let state = self.state_full();
        let cache = self.cache.size();
        gauge(encoder, "guildgate_cache_entries", "Answers in memory", cache.entries as f64)?;
        gauge(encoder, "guildgate_cache_bytes", "Memory of the answers in memory", cache.bytes as f64)?;
        gauge(encoder, "guildgate_cache_max_bytes", "cache.max_size", state.config.cache.max_size as f64)?;
        counter(encoder, "guildgate_cache_evictions", "Answers that were evicted to make room", cache.evictions)?;
        let policies = state.key_table.policies();
        let over = policies.iter().flat_map(|policy| {
            let (tier, counts) = (&policy.tier().name, policy.over_limit());
            let limits = Limit::ALL.map(|limit| (limit.name(), counts.over[limit.index()].load(Ordering::Relaxed)));
            let all = limits.into_iter().chain([("candidate", counts.over_candidate.load(Ordering::Relaxed))]);
            all.map(move |(limit, n)| ([("tier", tier.as_str()), ("limit", limit)], n))
        });
        counters(encoder, "guildgate_over_limit", "Requests over a limit of their tier, refused or in shadow", over)?;
        let (help, shadow) = ("1: limits.shadow is on, no request is refused for a limit", state.config.limits.shadow);
        gauge(encoder, "guildgate_limits_shadow", help, f64::from(shadow))?;
        let help = "Requests without a valid key that were over the limit of their address";
        counter(encoder, "guildgate_over_address_limit", help, state.strangers.over())?;
        gauge(encoder, "guildgate_keys", "Keys that are listed, by secret", state.key_table.keys().len() as f64)?;
        let now = self.now();
        if let Some(age) = self.feed_age(&state, now) {
            let help = "Age of what is known of other processes' changes in the store";
            gauge(encoder, "guildgate_store_feed_age_seconds", help, age.as_secs_f64())?;
            let stale = f64::from(self.keys_are_stale(&state, now));
            gauge(encoder, "guildgate_keys_stale", "1: the keys are too old to be used: every request is 21", stale)?;
        }
        if let Some(limits) = &self.shared_limits {
            encode_shared(limits, encoder)?;
        }
        if let Some(peers) = self.peers() {
            encode_peers(peers, now, encoder)?;
        }
        state.origin.encode_metrics(encoder)
    }
}

/// What is shown only with `cluster.redis`.
fn encode_shared(limits: &SharedLimits, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let up = f64::from(!limits.is_away());
    gauge(encoder, "guildgate_redis_up", "1: Redis answers; 0: limits are each node's own, by when_away", up)?;
    gauge(encoder, "guildgate_cluster_nodes", "Nodes that share the limits, as last seen", f64::from(limits.nodes()))?;
    let [configurations, key_files] = limits.configurations().map(|n| n as f64);
    gauge(encoder, "guildgate_cluster_configurations", "Different configurations, as last seen", configurations)?;
    gauge(encoder, "guildgate_cluster_key_files", "Different key files, as last seen", key_files)?;
    let read = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
    let [answered, failed] = limits.questions.each_ref().map(read);
    let questions = [([("result", "answered")], answered), ([("result", "failed")], failed)];
    counters(encoder, "guildgate_redis_questions", "Scripts about a key's shared limits", questions)?;
    let help = "Decisions of this node alone, while Redis did not answer";
    counter(encoder, "guildgate_redis_away_decisions", help, read(&limits.decided_away))
}

/// What is shown only with `cluster.redis` and an HTTP origin.
fn encode_peers(peers: &Peers, now: Tick, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let age = peers.bus.freshness().age(now).unwrap_or_default();
    gauge(encoder, "guildgate_bus_age_seconds", "Age of what is known of other nodes' writes", age.as_secs_f64())?;
    let is_cut_off = f64::from(peers.is_cut_off(now));
    let help = "1: other nodes are not heard, and nothing is answered from memory";
    gauge(encoder, "guildgate_bus_cut_off", help, is_cut_off)?;
    let losses = LOSSES.into_iter().zip(peers.losses()).map(|(reason, n)| ([("reason", reason)], n));
    let help = "How often everything in memory was dropped because notices of other nodes may be lost";
    counters(encoder, "guildgate_bus_losses", help, losses)
}
