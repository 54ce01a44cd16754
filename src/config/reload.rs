//! Which settings of a new configuration take effect while running, and which after a restart (contract section 3, the
//! last paragraph). Pure: it reads no file and changes nothing.

use std::mem::discriminant;

use super::Config;

/// A configuration that can replace the one in force without a restart.
#[derive(Debug)]
pub struct Reloaded {
    /// The new configuration, with the values in force where a change needs a restart.
    pub config: Config,
    /// The sections that differ from those in force.
    pub changed: Vec<&'static str>,
    /// The names of the settings and sections that take effect after a restart.
    pub after_restart: Vec<String>,
}

impl Config {
    /// What replaces this configuration when `next` is loaded. `has_store`: whether the server has opened a store.
    pub fn reloaded(&self, mut next: Config, has_store: bool) -> Reloaded {
        let mut kept = Kept(Vec::new());
        let (own, server) = (&self.server, &mut next.server);
        kept.keep("server.listen", &own.listen, &mut server.listen);
        kept.keep("server.handover", &own.handover, &mut server.handover);
        kept.keep("server.threads", &own.threads, &mut server.threads);
        kept.keep("server.max_connections", &own.max_connections, &mut server.max_connections);
        let per_address = &mut server.max_connections_per_address;
        kept.keep("server.max_connections_per_address", &own.max_connections_per_address, per_address);
        if own.tls.is_some() != server.tls.is_some() {
            kept.keep("server.tls", &own.tls, &mut server.tls);
        }
        kept.keep("origin.store", &self.origin.store, &mut next.origin.store);
        if discriminant(&self.origin.kind) != discriminant(&next.origin.kind) {
            kept.keep("origin.kind", &self.origin.kind, &mut next.origin.kind);
            next.pass.clone_from(&self.pass); // it was judged with that kind
        }
        if discriminant(&self.keys) != discriminant(&next.keys) {
            kept.keep("keys.source", &self.keys, &mut next.keys);
            next.pass.clone_from(&self.pass); // it was judged with that source
        }
        if next.limits.counts_days() && !has_store {
            kept.keep("limits", &self.limits, &mut next.limits);
        }
        kept.keep("cache.max_size", &self.cache.max_size, &mut next.cache.max_size);
        kept.keep("admin", &self.admin, &mut next.admin);
        // The record of decisions begins and ends while the process runs.
        let record = (next.log.decisions.take(), next.log.decisions_max_size);
        (next.log.decisions, next.log.decisions_max_size) = (self.log.decisions.clone(), self.log.decisions_max_size);
        kept.keep("log", &self.log, &mut next.log);
        (next.log.decisions, next.log.decisions_max_size) = record;
        kept.keep("cluster", &self.cluster, &mut next.cluster);
        // `keep` gave `admin` and `cluster` their values in force, and a hash is no value.
        let Config { server, answers, origin, pass, keys, limits, cache, admin: _, log, cluster: _, hash: _ } = self;
        let sections = [
            ("server", *server != next.server),
            ("answers", *answers != next.answers),
            ("origin", *origin != next.origin),
            ("pass", *pass != next.pass),
            ("keys", *keys != next.keys),
            ("limits", *limits != next.limits),
            ("cache", *cache != next.cache),
            ("log", *log != next.log),
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
}
