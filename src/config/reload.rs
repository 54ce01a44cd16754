//! Which settings of a new configuration take effect while running, and which after a restart (contract section 3, the
//! last paragraph). Pure: it reads no file and changes nothing.

use std::mem::{discriminant, replace};
use std::sync::Arc;

use super::{Admin, Config, Limits, Tier};

/// A configuration that can replace the one in force without a restart.
#[derive(Debug)]
pub struct Reloaded {
    /// The new configuration, with the values in force where a change needs a restart.
    pub config: Config,
    /// The sections that differ from those in force.
    pub changed: Vec<&'static str>,
    /// The names of the settings that take effect after a restart.
    pub after_restart: Vec<String>,
}

impl Config {
    /// What replaces this configuration when `next` is loaded. `has_store`: whether the server has opened a store.
    pub fn reloaded(&self, mut next: Config, has_store: bool) -> Reloaded {
        let mut kept = Kept(Vec::new());
        let (server, log) = (&mut next.server, &mut next.log);
        kept.keep("server.listen", &self.server.listen, &mut server.listen);
        kept.keep("server.handover", &self.server.handover, &mut server.handover);
        kept.keep("server.threads", &self.server.threads, &mut server.threads);
        kept.keep("server.max_connections", &self.server.max_connections, &mut server.max_connections);
        let (running, per_address) =
            (&self.server.max_connections_per_address, &mut server.max_connections_per_address);
        kept.keep("server.max_connections_per_address", running, per_address);
        if self.server.tls.is_some() != server.tls.is_some() {
            kept.keep("server.tls", &self.server.tls, &mut server.tls);
        }
        kept.keep("origin.store", &self.origin.store, &mut next.origin.store);
        if discriminant(&self.origin.kind) != discriminant(&next.origin.kind) {
            kept.keep("origin.kind", &self.origin.kind, &mut next.origin.kind);
        }
        if discriminant(&self.keys) != discriminant(&next.keys) {
            kept.keep("keys.source", &self.keys, &mut next.keys);
        }
        if !has_store {
            kept.remove_daily(&mut next.limits);
        }
        kept.keep("cache.max_size", &self.cache.max_size, &mut next.cache.max_size);
        kept.keep_admin(&self.admin, &mut next.admin);
        kept.keep("log.level", &self.log.level, &mut log.level);
        kept.keep("log.format", &self.log.format, &mut log.format);
        kept.keep("log.access", &self.log.access, &mut log.access);
        kept.keep("log.decisions", &self.log.decisions, &mut log.decisions);
        kept.keep("log.decisions_max_size", &self.log.decisions_max_size, &mut log.decisions_max_size);
        kept.keep("log.audit", &self.log.audit, &mut log.audit);
        kept.keep("log.otlp", &self.log.otlp, &mut log.otlp);
        kept.keep("log.otlp_sample", &self.log.otlp_sample, &mut log.otlp_sample);
        kept.keep("cluster", &self.cluster, &mut next.cluster);
        // `keep` gave `admin`, `log` and `cluster` their values in force, and a hash is no value.
        let Config { server, answers, origin, keys, limits, cache, admin: _, log: _, cluster: _, hash: _ } = self;
        let sections = [
            ("server", *server != next.server),
            ("answers", *answers != next.answers),
            ("origin", *origin != next.origin),
            ("keys", *keys != next.keys),
            ("limits", *limits != next.limits),
            ("cache", *cache != next.cache),
        ];
        let changed = sections.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect();
        Reloaded { config: next, changed, after_restart: kept.0 }
    }
}

/// The names of the settings that keep the value in force.
struct Kept(Vec<String>);

impl Kept {
    fn keep<T: Clone + PartialEq>(&mut self, name: &str, running: &T, next: &mut T) {
        if running != next {
            next.clone_from(running);
            self.0.push(name.to_owned());
        }
    }

    /// The admin listener and its tokens are set up at the start. A token in a file has the same name in both.
    fn keep_admin(&mut self, running: &Admin, next: &mut Admin) {
        match (&running.listener, &mut next.listener) {
            (Some(running), Some(next)) => {
                self.keep("admin.listen", &running.address, &mut next.address);
                self.keep("admin.hosts", &running.hosts, &mut next.hosts);
                self.keep("admin.token", &running.token, &mut next.token);
                self.keep("admin.read_token", &running.read_token, &mut next.read_token);
                self.keep("admin.bot_token", &running.bot_token, &mut next.bot_token);
                self.keep("admin.tls", &running.tls, &mut next.tls);
            }
            (running, next) => self.keep("admin.listen", running, next),
        }
    }

    /// Removes the `daily` limits, which need a store.
    fn remove_daily(&mut self, limits: &mut Limits) {
        for tier in &mut limits.tiers {
            if tier.daily.is_none() {
                continue;
            }
            self.0.push(format!("limits.tiers.{}.daily", tier.name));
            let without = Arc::new(Tier { daily: None, ..(**tier).clone() });
            let with = replace(tier, without.clone());
            if Arc::ptr_eq(&limits.default_tier, &with) {
                limits.default_tier = without;
            }
        }
    }
}
