//! What `/metrics` shows of the gateway's rules: cache, limits, keys, how old what is known of the store is, and the
//! origin.

use std::fmt;

use super::Gateway;
use crate::model::Limit;
use crate::telemetry::metrics::{Collector, DescriptorEncoder, counter, counters, gauge};

impl Collector for Gateway {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.observer.encode_metrics(encoder)?;
        let state = self.core.state_full();
        let cache = self.core.cache.size();
        gauge(encoder, "guildgate_cache_entries", "Answers in memory", cache.entries as f64)?;
        gauge(encoder, "guildgate_cache_bytes", "Memory of the answers in memory", cache.bytes as f64)?;
        gauge(encoder, "guildgate_cache_max_bytes", "cache.max_size", state.config.cache.max_size as f64)?;
        counter(encoder, "guildgate_cache_evictions", "Answers that were evicted to make room", cache.evictions)?;
        let policies = state.key_table.policies();
        let over = policies.iter().flat_map(|policy| {
            let (tier, counts) = (&policy.tier().name, policy.over_limit().read());
            let limits = Limit::ALL.map(|limit| (limit.name(), counts.over[limit.index()]));
            let all = limits.into_iter().chain([("candidate", counts.over_candidate)]);
            all.map(move |(limit, n)| ([("tier", tier.as_str()), ("limit", limit)], n))
        });
        counters(encoder, "guildgate_over_limit", "Requests over a limit of their tier, refused or in shadow", over)?;
        counter(
            encoder,
            "guildgate_over_address_limit",
            "Requests without a valid key that were over the limit of their address",
            state.strangers.over(),
        )?;
        gauge(encoder, "guildgate_keys", "Keys that are listed, by secret", state.key_table.len() as f64)?;
        let now = self.core.now();
        if let Some(age) = self.follower.feed_age(&state, now) {
            let help = "Age of what is known of other processes' changes in the store";
            gauge(encoder, "guildgate_store_feed_age_seconds", help, age.as_secs_f64())?;
            let stale = self.follower.keys_are_stale(&state, now);
            let help = "1: the keys are too old to be used, and every request is refused with 21";
            gauge(encoder, "guildgate_keys_stale", help, f64::from(u8::from(stale)))?;
        }
        state.origin.encode_metrics(encoder)
    }
}
