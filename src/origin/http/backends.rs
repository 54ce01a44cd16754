//! The list of all backends, and which of them are in use. Requests read an immutable list without a lock. Every change
//! of a backend's health is made under one lock, so that two failures at once never eject the last available backend.
//! It only records events; `HttpOrigin` and `background` send the requests and checks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::backend::{Backend, PreparedUpstream};
use super::balance::{MAX_BACKENDS, Tried, least_loaded};
use super::health::{HealthRecord, HealthState, Transition};
use crate::clock::Tick;
use crate::config::Health;
use crate::origin::UpstreamState;

/// All backends at one moment; a request keeps the list that it began with.
pub(super) type BackendList = Vec<Arc<Backend>>;

/// A backend for every address of every upstream.
#[derive(Debug)]
pub(super) struct Backends {
    upstreams: Vec<Arc<PreparedUpstream>>,
    list: ArcSwap<BackendList>,
    next_turn: AtomicUsize,
    checks: Option<Health>,
    /// Identifies these backends in `active`.
    id: Arc<()>,
    /// Those of the configuration in force, which alone change health: a reload shares backends, and a late failure of
    /// a request from before it must not eject the last backend of the new list. Locked for every change of health.
    active: Arc<Mutex<Arc<()>>>,
}

impl Backends {
    /// The backends of `upstreams`. A backend of the same upstream and address in `before` is used again, with its
    /// connections and its health, and so are the addresses of a name.
    pub(super) fn new(
        upstreams: Vec<Arc<PreparedUpstream>>,
        checks: Option<Health>,
        before: Option<&Backends>,
    ) -> Self {
        let there = before.map(Backends::list).unwrap_or_default();
        let max = MAX_BACKENDS / upstreams.len().max(1);
        let list = upstreams.iter().flat_map(|upstream| {
            let mut addresses = match upstream.settings.address() {
                Some(address) => vec![address],
                None => addresses_of(&there, upstream),
            };
            addresses.truncate(max);
            backends_of(&there, upstream, addresses)
        });
        let list = ArcSwap::from_pointee(list.collect());
        let id = Arc::new(());
        let active = before.map_or_else(|| Arc::new(Mutex::new(id.clone())), |before| before.active.clone());
        Backends { upstreams, list, next_turn: AtomicUsize::new(0), checks, id, active }
    }

    /// From here on these backends' requests and checks change health, and no longer those of `before`.
    pub(super) fn activate(&self) {
        let mut active = self.active.lock();
        *active = self.id.clone();
        self.keep_one_available();
    }

    pub(super) fn upstreams(&self) -> &[Arc<PreparedUpstream>] {
        &self.upstreams
    }

    pub(super) fn list(&self) -> Arc<BackendList> {
        self.list.load_full()
    }

    /// The next backend of `list` for a request; `None`: it has tried all of them.
    pub(super) fn choose(&self, list: &BackendList, tried: Tried) -> Option<usize> {
        let first = if list.len() > 1 { self.next_turn.fetch_add(1, Ordering::Relaxed) } else { 0 };
        least_loaded(list.iter().map(|b| (b.health(), b.in_flight())), first, tried)
    }

    pub(super) fn state(&self, backend: &Backend) -> UpstreamState {
        let record = backend.record();
        match record.state() {
            HealthState::Ejected => UpstreamState::Out,
            _ if record.is_failing(self.checks.as_ref()) => UpstreamState::Failing,
            HealthState::Healthy | HealthState::Probation => UpstreamState::Up,
        }
    }

    /// Whether an address of this upstream is known.
    pub(super) fn is_resolved(&self, upstream: &PreparedUpstream) -> bool {
        self.list.load().iter().any(|b| *b.upstream == *upstream)
    }

    /// The name of this upstream now has these addresses.
    pub(super) fn resolved(&self, upstream: &Arc<PreparedUpstream>, mut found: Vec<SocketAddr>) {
        // The order of a name server's answer has no meaning.
        found.sort_unstable();
        found.dedup();
        let max = MAX_BACKENDS / self.upstreams.len().max(1);
        let left_out = found.len().saturating_sub(max);
        found.truncate(max);
        let active = self.active.lock();
        let before = self.list();
        if addresses_of(&before, upstream) == found {
            return;
        }
        let addresses = |other: &Arc<PreparedUpstream>| {
            if other == upstream { found.clone() } else { addresses_of(&before, other) }
        };
        let list = self.upstreams.iter().flat_map(|other| backends_of(&before, other, addresses(other)));
        self.list.store(Arc::new(list.collect()));
        if Arc::ptr_eq(&active, &self.id) {
            self.keep_one_available();
        }
        let addresses: Vec<String> = found.iter().map(ToString::to_string).collect();
        let (upstream, addresses) = (&upstream.settings, addresses.join(","));
        if left_out > 0 {
            tracing::warn!(%upstream, addresses, left_out, "a name has more addresses than are used");
        } else {
            tracing::info!(%upstream, addresses, "a name was resolved");
        }
    }

    /// The last backend is never ejected, even where the others were removed.
    fn keep_one_available(&self) {
        let list = self.list();
        if list.iter().all(|b| b.health() == HealthState::Ejected) {
            for backend in list.iter() {
                log(backend, backend.record().became_last(), "no other upstream is left");
            }
        }
    }

    /// A request was answered by `backend`.
    pub(super) fn request_answered(&self, backend: &Backend) {
        if !backend.record().has_no_failures() {
            self.change(backend, "it answered", |record, _| record.request_answered(self.checks.is_some()));
        }
    }

    /// A request was not answered by `backend`.
    pub(super) fn request_failed(&self, backend: &Backend, now: Tick, why: &str) {
        self.change(backend, why, |record, is_last| record.request_failed(now, is_last));
    }

    /// A health check of `backend` passed, or why it failed.
    pub(super) fn check_ended(&self, backend: &Backend, now: Tick, checked: Result<(), String>) {
        let Some(rules) = &self.checks else { return };
        let passed = checked.is_ok();
        let why = match checked {
            Ok(()) => "its health checks pass".to_owned(),
            Err(why) => format!("its health checks fail: {why}"),
        };
        self.change(backend, &why, |record, is_last| record.check_ended(passed, rules, now, is_last));
    }

    /// A probe of `backend` could or could not connect.
    pub(super) fn probed(&self, backend: &Backend, now: Tick, connected: bool) {
        self.change(backend, "it can be reached", |record, _| record.probed(connected, now));
    }

    /// Changes a backend's health, if these backends are active. The change gets whether no other backend is available.
    fn change(&self, backend: &Backend, why: &str, change: impl FnOnce(&mut HealthRecord, bool) -> Option<Transition>) {
        let active = self.active.lock();
        if Arc::ptr_eq(&active, &self.id) {
            let is_other = |other: &Arc<Backend>| !std::ptr::eq(&**other, backend);
            let is_last = !self.list.load().iter().any(|b| is_other(b) && b.health() != HealthState::Ejected);
            let transition = change(&mut backend.record(), is_last);
            log(backend, transition, why);
        }
    }
}

fn log(backend: &Backend, transition: Option<Transition>, why: &str) {
    match transition {
        Some(Transition::Ejected) => {
            backend.idle.clear();
            tracing::warn!(upstream = %backend, why, "an upstream is out; requests go to the others");
        }
        Some(Transition::Restored) => tracing::info!(upstream = %backend, why, "an upstream is back"),
        None => {}
    }
}

/// A backend for each address of an upstream; those that are there already are used again.
fn backends_of(there: &BackendList, upstream: &Arc<PreparedUpstream>, addresses: Vec<SocketAddr>) -> BackendList {
    let backend = |address| {
        let same = there.iter().find(|b| b.address == address && b.upstream == *upstream);
        same.cloned().unwrap_or_else(|| Arc::new(Backend::new(upstream.clone(), address)))
    };
    addresses.into_iter().map(backend).collect()
}

fn addresses_of(list: &BackendList, upstream: &Arc<PreparedUpstream>) -> Vec<SocketAddr> {
    list.iter().filter(|b| b.upstream == *upstream).map(|b| b.address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Upstream;

    const NOW: Tick = Tick(1);

    fn upstream(name: &str) -> Arc<PreparedUpstream> {
        let (name, host) = (name.to_owned(), name.to_owned());
        let upstream = Upstream { name, port: 80, path: String::new(), host, server_name: None };
        Arc::new(PreparedUpstream::new(&upstream, None).unwrap())
    }

    fn backends(names: &[&str], before: Option<&Backends>) -> Backends {
        Backends::new(names.iter().map(|name| upstream(name)).collect(), None, before)
    }

    fn health(backends: &Backends) -> Vec<HealthState> {
        backends.list().iter().map(|b| b.health()).collect()
    }

    fn fail(backends: &Backends, at: usize) {
        for _ in 0..10 {
            backends.request_failed(&backends.list()[at], NOW, "a test");
        }
    }

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn of_several_that_fail_the_last_one_stays_available() {
        use HealthState::*;
        let backends = backends(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], None);
        fail(&backends, 2);
        fail(&backends, 0);
        fail(&backends, 1);
        assert_eq!(health(&backends), [Ejected, Healthy, Ejected]);
        assert_eq!(backends.choose(&backends.list(), Tried::default()), Some(1));
        // One that answers is back at once, and the one that only stayed because it was the last is ejected.
        backends.request_answered(&backends.list()[0]);
        fail(&backends, 1);
        assert_eq!(health(&backends), [Healthy, Ejected, Ejected]);
    }

    #[test]
    fn each_address_of_a_name_is_one_and_what_stays_keeps_its_record() {
        let backends = backends(&["10.0.0.1", "origin.example"], None);
        let name = upstream("origin.example");
        assert!(!backends.is_resolved(&name) && backends.is_resolved(&backends.upstreams()[0]));
        backends.resolved(&name, vec![at("10.1.0.2:80"), at("10.1.0.1:80"), at("10.1.0.2:80")]);
        assert_eq!(backends.list().len(), 3);
        fail(&backends, 1);
        backends.resolved(&name, vec![at("10.1.0.3:80"), at("10.1.0.1:80")]);
        let list = backends.list();
        let addresses: Vec<_> = list.iter().map(|b| b.address).collect();
        assert_eq!(addresses, ["10.0.0.1:80", "10.1.0.1:80", "10.1.0.3:80"].map(at));
        assert_eq!(health(&backends), [HealthState::Healthy, HealthState::Ejected, HealthState::Healthy]);
        assert_eq!(list[1].to_string(), "http://origin.example:80 (10.1.0.1:80)");
        assert_eq!(list[0].to_string(), "http://10.0.0.1:80");
    }

    #[test]
    fn where_only_ejected_ones_are_left_they_are_on_probation() {
        let backends = backends(&["origin.example"], None);
        backends.resolved(&upstream("origin.example"), vec![at("10.1.0.1:80"), at("10.1.0.2:80")]);
        fail(&backends, 0);
        backends.resolved(&upstream("origin.example"), vec![at("10.1.0.1:80")]);
        assert_eq!(health(&backends), [HealthState::Probation]);
    }

    #[test]
    fn other_settings_keep_what_stays_the_same() {
        let before = backends(&["10.0.0.1", "origin.example", "10.0.0.9"], None);
        before.resolved(&upstream("origin.example"), vec![at("10.1.0.1:80")]);
        let after = backends(&["origin.example", "10.0.0.1"], Some(&before));
        let (before, after) = (before.list(), after.list());
        assert!(Arc::ptr_eq(&after[0], &before[1]) && Arc::ptr_eq(&after[1], &before[0]));
    }

    #[test]
    fn a_late_failure_from_before_a_reload_does_not_eject_the_last_one_of_the_new_list() {
        let before = backends(&["10.0.0.1", "10.0.0.2"], None);
        let after = backends(&["10.0.0.1"], Some(&before));
        fail(&before, 0);
        assert_eq!(health(&before), [HealthState::Ejected, HealthState::Healthy], "the old list is in force so far");
        after.activate();
        assert_eq!(health(&after), [HealthState::Probation], "the last one is back");
        fail(&before, 0);
        after.request_answered(&after.list()[0]);
        fail(&before, 0);
        fail(&after, 0);
        assert_eq!(health(&after), [HealthState::Healthy]);
    }

    #[test]
    fn no_more_addresses_are_used_than_one_request_can_remember() {
        let backends = backends(&["origin.example"], None);
        backends.resolved(&upstream("origin.example"), (1..=100).map(|n| at(&format!("10.1.0.{n}:80"))).collect());
        assert_eq!(backends.list().len(), MAX_BACKENDS);
    }
}
