//! The connection limiter: counts open connections in all and per client address (an IPv6 /64 is one), and refuses those
//! beyond `max_connections` or `max_connections_per_address` at accept. Dropping a permit releases it. The map by address
//! never holds more entries than there are connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::limits::network;

/// Counts the open connections and refuses those beyond the limits.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    max: usize,
    /// 0: any number.
    max_per_address: usize,
    open: Mutex<Open>,
    refused: AtomicU64,
    /// Connections that were closed because of their PROXY header.
    unproxied: AtomicU64,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    by_network: HashMap<u64, usize>,
}

/// The right to keep one connection open, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    network: Option<u64>,
}

impl ConnectionLimiter {
    pub(super) fn new(max: usize, max_per_address: usize) -> Self {
        ConnectionLimiter {
            max,
            max_per_address,
            open: Mutex::default(),
            refused: AtomicU64::new(0),
            unproxied: AtomicU64::new(0),
        }
    }

    /// A permit for a connection from `address` (`None`: over a Unix socket), if the limits allow one more.
    pub(super) fn acquire(self: &Arc<Self>, address: Option<IpAddr>) -> Option<ConnectionPermit> {
        let network = address.filter(|_| self.max_per_address > 0).map(network);
        let mut open = self.open.lock();
        let of_network = network.and_then(|network| open.by_network.get(&network).copied()).unwrap_or(0);
        let setting = match network {
            _ if open.all >= self.max => "server.max_connections",
            Some(_) if of_network >= self.max_per_address => "server.max_connections_per_address",
            _ => {
                open.all += 1;
                network.map(|network| open.by_network.insert(network, of_network + 1));
                return Some(ConnectionPermit { limiter: self.clone(), network });
            }
        };
        drop(open); // logging may take a while
        self.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(setting, "too many connections; closed a new one");
        None
    }

    /// The number of open connections.
    pub(super) fn open(&self) -> usize {
        self.open.lock().all
    }

    /// How many connections were closed at accept.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts one that is closed because of its PROXY header.
    pub(super) fn count_unproxied(&self) {
        self.unproxied.fetch_add(1, Ordering::Relaxed);
    }

    /// How many connections were closed because of their PROXY header.
    pub(super) fn unproxied(&self) -> u64 {
        self.unproxied.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.limiter.open.lock();
        open.all -= 1;
        if let Some(network) = self.network
            && let Some(count) = open.by_network.get_mut(&network)
        {
            *count -= 1;
            if *count == 0 {
                open.by_network.remove(&network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that takes a connection of each address.
    fn limiter(connections: usize) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter::new(connections, 1))
    }

    #[test]
    fn one_customers_ipv6_addresses_count_as_one() {
        let limiter = limiter(10);
        let acquire = |address: &str| limiter.acquire(Some(address.parse().unwrap()));
        let first = acquire("2001:db8::1");
        assert!(first.is_some() && acquire("2001:db8::2").is_none(), "a /64 is one");
        let (another, v4) = (acquire("2001:db8:0:1::1"), acquire("192.0.2.1"));
        assert!(
            another.is_some() && v4.is_some() && acquire("::ffff:192.0.2.1").is_none(),
            "a mapped IPv4 address is one"
        );
    }

    #[test]
    fn a_permit_that_is_dropped_frees_its_place() {
        let limiter = limiter(2);
        let (a, b) = (Some([127, 0, 0, 1].into()), Some([127, 0, 0, 2].into()));
        let first = limiter.acquire(a).unwrap();
        assert!(limiter.acquire(a).is_none(), "an address has one connection");
        let second = limiter.acquire(b).unwrap();
        assert!(limiter.acquire(None).is_none(), "there are two connections in all");
        drop((first, second));
        assert_eq!(limiter.open(), 0);
        assert!(limiter.open.lock().by_network.is_empty());
        assert!(limiter.acquire(a).is_some());
    }
}
