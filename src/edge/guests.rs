use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Counts the connections there are, overall and by address, and turns away what is too many.
#[derive(Debug)]
pub struct Guests {
    max: usize,
    max_per_address: Option<usize>,
    here: AtomicUsize,
    // Holds an entry only for an address that is here, so it is bounded by `max`.
    by_address: Mutex<HashMap<IpAddr, usize>>,
    turned_away: AtomicU64,
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub(super) struct Guest {
    guests: Arc<Guests>,
    address: Option<IpAddr>,
}

impl Guests {
    pub fn new(max: usize, max_per_address: Option<usize>) -> Self {
        Guests {
            max,
            max_per_address,
            here: AtomicUsize::new(0),
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
        Some(Guest { guests: self.clone(), address: counted })
    }

    /// How many connections there are.
    pub fn here(&self) -> usize {
        self.here.load(Ordering::Relaxed)
    }

    fn turn_away(&self, setting: &'static str) {
        let so_far = self.turned_away.fetch_add(1, Ordering::Relaxed) + 1;
        // Said at 1, 2, 4, 8, …: a flood of connections must not be a flood of log lines.
        if so_far.is_power_of_two() {
            tracing::warn!(setting, so_far, "a connection was closed at accept");
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(address) = self.address {
            let mut by_address = self.guests.by_address.lock();
            if let Some(count) = by_address.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    by_address.remove(&address);
                }
            }
        }
        self.guests.here.fetch_sub(1, Ordering::Relaxed);
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
}
