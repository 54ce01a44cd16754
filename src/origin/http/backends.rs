//! The list of all upstream addresses, and which of them are in use. Requests read an immutable list without a lock.
//! Every change of the list or of an upstream's health is made under one lock, so that two failures at once never put
//! out the last upstream. It is told what happened and asks nobody itself: `HttpOrigin` and `upkeep` do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::backend::{Backend, Site};
use super::choice::{MAX_BACKENDS, Tried, choose};
use super::standing::{Change, Record, Standing};
use crate::clock::Tick;
use crate::config::Health;

/// All there are now; a request keeps the list it began with.
pub(super) type List = Vec<Arc<Backend>>;

/// Every address of every upstream, and who of them is asked.
#[derive(Debug)]
pub(super) struct Backends {
    sites: Vec<Arc<Site>>,
    list: ArcSwap<List>,
    turn: AtomicUsize,
    checks: Option<Health>,
    /// The addresses of each site. Held for every change of list or standing, so that two that
    /// fail at once are not both put out and nobody is left.
    addresses: Mutex<Vec<Vec<SocketAddr>>>,
}

impl Backends {
    /// Those of `sites`. What another list has of the same sites stays: its connections, how it
    /// stands, and the addresses its name had.
    pub(super) fn new(sites: Vec<Arc<Site>>, checks: Option<Health>, before: &List) -> Self {
        let addresses: Vec<Vec<SocketAddr>> = sites
            .iter()
            .map(|site| match site.upstream.address() {
                Some(address) => vec![address],
                None => before.iter().filter(|b| b.site == *site).map(|b| b.address).collect(),
            })
            .collect();
        let list = ArcSwap::from_pointee(made(&sites, &addresses, before));
        let backends = Backends { sites, list, turn: AtomicUsize::new(0), checks, addresses: Mutex::new(addresses) };
        backends.leave_one_in();
        backends
    }

    pub(super) fn sites(&self) -> &[Arc<Site>] {
        &self.sites
    }

    pub(super) fn list(&self) -> Arc<List> {
        self.list.load_full()
    }

    /// Whom of `list` to ask next; `None`: everyone was tried.
    pub(super) fn choose(&self, list: &List, tried: Tried) -> Option<usize> {
        let from = if list.len() > 1 { self.turn.fetch_add(1, Ordering::Relaxed) } else { 0 };
        choose(list.iter().map(|b| (b.standing(), b.in_flight())), from, tried)
    }

    /// Whether no address of this site is known.
    pub(super) fn is_unknown(&self, site: usize) -> bool {
        self.addresses.lock().get(site).is_some_and(Vec::is_empty)
    }

    /// The name of this site has these addresses now.
    pub(super) fn resolved(&self, site: usize, mut found: Vec<SocketAddr>) {
        // Name servers turn the order about; it means nothing.
        found.sort_unstable();
        found.dedup();
        let mut addresses = self.addresses.lock();
        let Some(known) = addresses.get_mut(site).filter(|known| **known != found) else { return };
        *known = found;
        let list = made(&self.sites, &addresses, &self.list());
        if addresses.iter().map(Vec::len).sum::<usize>() > list.len() {
            tracing::warn!(most = MAX_BACKENDS, "the upstreams' names have more addresses than are asked");
        }
        self.list.store(Arc::new(list));
        self.leave_one_in();
        if let Some(site) = self.sites.get(site) {
            let addresses: Vec<String> = addresses_of(&self.list(), site).iter().map(ToString::to_string).collect();
            tracing::info!(upstream = %site.upstream, addresses = addresses.join(","), "a name was resolved");
        }
    }

    /// The last upstream is never out, even where the others went away.
    fn leave_one_in(&self) {
        let list = self.list();
        if list.iter().all(|b| b.standing() == Standing::Out) {
            for backend in list.iter() {
                self.tell(backend, backend.change(Record::is_needed), "no other upstream is left");
            }
        }
    }

    /// A request was answered by `backend`.
    pub(super) fn answered(&self, backend: &Backend) {
        if !backend.is_clean() {
            let _changing = self.addresses.lock();
            let change = backend.change(|record| record.answered(self.checks.is_some()));
            self.tell(backend, change, "it answered");
        }
    }

    /// A request got nothing from `backend`.
    pub(super) fn failed(&self, backend: &Backend, now: Tick, why: &str) {
        let _changing = self.addresses.lock();
        let alone = self.is_alone(backend);
        self.tell(backend, backend.change(|record| record.failed(now, alone)), why);
    }

    /// A health check of `backend` went well, or why it did not.
    pub(super) fn checked(&self, backend: &Backend, now: Tick, checked: Result<(), String>) {
        let Some(rules) = &self.checks else { return };
        let _changing = self.addresses.lock();
        let alone = self.is_alone(backend);
        let change = backend.change(|record| record.checked(checked.is_ok(), rules, now, alone));
        match checked {
            Ok(()) => self.tell(backend, change, "its health checks pass"),
            Err(why) => self.tell(backend, change, &format!("its health checks fail: {why}")),
        }
    }

    /// Without a request, `backend` was or was not connected to.
    pub(super) fn tried(&self, backend: &Backend, now: Tick, connected: bool) {
        let _changing = self.addresses.lock();
        self.tell(backend, backend.change(|record| record.tried(connected, now)), "it can be reached");
    }

    fn is_alone(&self, backend: &Backend) -> bool {
        self.list.load().iter().all(|other| std::ptr::eq(&**other, backend) || other.standing() == Standing::Out)
    }

    fn tell(&self, backend: &Backend, change: Option<Change>, why: &str) {
        match change {
            Some(Change::PutOut) => {
                backend.pool.clear();
                tracing::warn!(upstream = %backend, why, "an upstream is out; the others are asked");
            }
            Some(Change::Back) => tracing::info!(upstream = %backend, why, "an upstream is back"),
            None => {}
        }
    }
}

/// A backend for each address of each site; what is there already stays.
fn made(sites: &[Arc<Site>], addresses: &[Vec<SocketAddr>], there: &List) -> List {
    let all = sites.iter().zip(addresses).flat_map(|(site, list)| list.iter().map(move |address| (site, *address)));
    let made = all.map(|(site, address)| {
        let same = there.iter().find(|b| b.address == address && b.site == *site);
        same.cloned().unwrap_or_else(|| Arc::new(Backend::new(site.clone(), address)))
    });
    made.take(MAX_BACKENDS).collect()
}

fn addresses_of(list: &List, site: &Arc<Site>) -> Vec<SocketAddr> {
    list.iter().filter(|b| b.site == *site).map(|b| b.address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Upstream;

    const NOW: Tick = Tick(1);

    fn site(name: &str) -> Arc<Site> {
        let (name, host) = (name.to_owned(), name.to_owned());
        let upstream = Upstream { name, port: 80, path: String::new(), host, server_name: None };
        Arc::new(Site::new(&upstream, None).unwrap())
    }

    fn backends(names: &[&str]) -> Backends {
        Backends::new(names.iter().map(|name| site(name)).collect(), None, &Vec::new())
    }

    fn standings(backends: &Backends) -> Vec<Standing> {
        backends.list().iter().map(|b| b.standing()).collect()
    }

    fn fail(backends: &Backends, at: usize) {
        for _ in 0..10 {
            backends.failed(&backends.list()[at], NOW, "a test");
        }
    }

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn of_several_that_fail_the_last_one_stays_in() {
        use Standing::*;
        let backends = backends(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        fail(&backends, 2);
        fail(&backends, 0);
        fail(&backends, 1);
        assert_eq!(standings(&backends), [Out, In, Out]);
        assert_eq!(backends.choose(&backends.list(), Tried::default()), Some(1));
        // One that answers is back at once, and the one that only stayed for want of another goes.
        backends.answered(&backends.list()[0]);
        fail(&backends, 1);
        assert_eq!(standings(&backends), [In, Out, Out]);
    }

    #[test]
    fn each_address_of_a_name_is_one_and_what_stays_keeps_its_record() {
        let backends = backends(&["10.0.0.1", "origin.example"]);
        assert!(backends.is_unknown(1) && !backends.is_unknown(0));
        backends.resolved(1, vec![at("10.1.0.2:80"), at("10.1.0.1:80"), at("10.1.0.2:80")]);
        assert_eq!(backends.list().len(), 3);
        fail(&backends, 1);
        backends.resolved(1, vec![at("10.1.0.3:80"), at("10.1.0.1:80")]);
        let list = backends.list();
        let addresses: Vec<_> = list.iter().map(|b| b.address).collect();
        assert_eq!(addresses, ["10.0.0.1:80", "10.1.0.1:80", "10.1.0.3:80"].map(at));
        assert_eq!(standings(&backends), [Standing::In, Standing::Out, Standing::In]);
        assert_eq!(list[1].to_string(), "http://origin.example:80 (10.1.0.1:80)");
        assert_eq!(list[0].to_string(), "http://10.0.0.1:80");
    }

    #[test]
    fn where_only_those_that_are_out_are_left_they_are_on_trial() {
        let backends = backends(&["origin.example"]);
        backends.resolved(0, vec![at("10.1.0.1:80"), at("10.1.0.2:80")]);
        fail(&backends, 0);
        backends.resolved(0, vec![at("10.1.0.1:80")]);
        assert_eq!(standings(&backends), [Standing::Trial]);
    }

    #[test]
    fn other_settings_keep_what_stays_the_same() {
        let before = backends(&["10.0.0.1", "origin.example", "10.0.0.9"]);
        before.resolved(1, vec![at("10.1.0.1:80")]);
        let after = Backends::new(vec![site("origin.example"), site("10.0.0.1")], None, &before.list());
        let (before, after) = (before.list(), after.list());
        assert!(Arc::ptr_eq(&after[0], &before[1]) && Arc::ptr_eq(&after[1], &before[0]));
    }

    #[test]
    fn no_more_addresses_are_asked_than_one_request_can_remember() {
        let backends = backends(&["origin.example"]);
        backends.resolved(0, (1..=100).map(|n| at(&format!("10.1.0.{n}:80"))).collect());
        assert_eq!(backends.list().len(), MAX_BACKENDS);
    }
}
