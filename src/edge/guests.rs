//! The connection limiter: counts connections in all and per client address, and refuses those beyond `max_connections`
//! or `max_connections_per_address` at accept. A place is returned by a guard. Requests that go on after their caller
//! hung up are counted too and bounded by a number of their own; one beyond that keeps the connection's place until it
//! ends. The map by address is never larger than the number of connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Requests that go on although their caller has hung up, and so hold no place any more. What asks an
/// origin is bounded there too; this bounds what the requests themselves hold, some 16 KiB each. One
/// more keeps its connection's place until it ends.
const MAX_DETACHED: usize = 1024;

/// Counts the connections there are, overall and by address, and turns away what is too many.
#[derive(Debug)]
pub struct Guests {
    max: usize,
    max_per_address: Option<usize>,
    here: AtomicUsize,
    /// Requests that go on without a connection's place.
    detached: AtomicUsize,
    // Holds an entry only for an address that is here, so it is bounded by `max`.
    by_address: Mutex<HashMap<IpAddr, usize>>,
    turned_away: AtomicU64,
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub(super) struct Guest {
    guests: Arc<Guests>,
    address: Option<IpAddr>,
    /// Requests that go on without this place, which was given back then.
    detached: usize,
}

impl Guests {
    pub fn new(max: usize, max_per_address: Option<usize>) -> Self {
        Guests {
            max,
            max_per_address,
            here: AtomicUsize::new(0),
            detached: AtomicUsize::new(0),
            by_address: Mutex::default(),
            turned_away: AtomicU64::new(0),
        }
    }

    /// A place for a connection from `address` (`None`: over a Unix socket).
    pub(super) fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Guest> {
        if self.here.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.here.fetch_sub(1, Ordering::Relaxed);
            self.turn_away("server.max_connections");
            return None;
        }
        let counted = address.filter(|_| self.max_per_address.is_some());
        if let (Some(address), Some(most)) = (counted, self.max_per_address) {
            let mut by_address = self.by_address.lock();
            let count = by_address.entry(address).or_insert(0);
            if *count >= most {
                drop(by_address);
                self.here.fetch_sub(1, Ordering::Relaxed);
                self.turn_away("server.max_connections_per_address");
                return None;
            }
            *count += 1;
        }
        Some(Guest { guests: self.clone(), address: counted, detached: 0 })
    }

    /// How many connections there are, and requests that go on although their connection is gone.
    pub fn here(&self) -> usize {
        self.here.load(Ordering::Relaxed) + self.detached.load(Ordering::Relaxed)
    }

    fn leave(&self, address: Option<IpAddr>) {
        if let Some(address) = address {
            let mut by_address = self.by_address.lock();
            if let Some(count) = by_address.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    by_address.remove(&address);
                }
            }
        }
        self.here.fetch_sub(1, Ordering::Relaxed);
    }

    fn turn_away(&self, setting: &'static str) {
        let so_far = self.turned_away.fetch_add(1, Ordering::Relaxed) + 1;
        // Said at 1, 2, 4, 8, …: a flood of connections must not be a flood of log lines.
        if so_far.is_power_of_two() {
            tracing::warn!(setting, so_far, "a connection was closed at accept");
        }
    }
}

impl Guest {
    /// The caller has hung up, while so many of its requests go on: the place is given back now. If
    /// too many go on already, it is given back when this is dropped.
    pub(super) fn detach(&mut self, requests: usize) {
        if self.detached > 0 || requests == 0 {
            return;
        }
        let before = self.guests.detached.fetch_add(requests, Ordering::Relaxed);
        if before + requests > MAX_DETACHED {
            self.guests.detached.fetch_sub(requests, Ordering::Relaxed);
            return;
        }
        self.detached = requests;
        self.guests.leave(self.address);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if self.detached > 0 {
            self.guests.detached.fetch_sub(self.detached, Ordering::Relaxed);
        } else {
            self.guests.leave(self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back_when_its_guest_goes() {
        let guests = Arc::new(Guests::new(2, Some(1)));
        let (a, b) = (Some([127, 0, 0, 1].into()), Some([127, 0, 0, 2].into()));
        let first = guests.enter(a).unwrap();
        assert!(guests.enter(a).is_none(), "one address has one place");
        let second = guests.enter(b).unwrap();
        assert!(guests.enter(None).is_none(), "the house is full");
        drop((first, second));
        assert_eq!(guests.here(), 0);
        assert!(guests.by_address.lock().is_empty());
        assert!(guests.enter(a).is_some());
    }

    #[test]
    fn whoever_hung_up_gives_its_place_back_at_once_unless_too_many_requests_go_on() {
        let guests = Arc::new(Guests::new(2, Some(1)));
        let a = Some([127, 0, 0, 1].into());
        let mut gone = guests.enter(a).unwrap();
        gone.detach(MAX_DETACHED);
        let mut second = guests.enter(a).expect("its place is free");
        second.detach(1);
        assert!(guests.enter(a).is_none(), "one more than may go on keeps its place");
        drop(gone);
        assert_eq!(guests.here(), 1);
        second.detach(1);
        second.detach(1);
        assert_eq!(guests.here(), 1);
        let third = guests.enter(a).unwrap();
        drop((second, third));
        assert_eq!(guests.here(), 0);
        assert!(guests.by_address.lock().is_empty());
    }
}
