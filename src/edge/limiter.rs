//! The connection limiter: counts open connections in all and per client address (an IPv6 /64 is one), and refuses those
//! beyond `max_connections` or `max_connections_per_address` at accept. Dropping a permit releases it. Requests that go on
//! after their caller has hung up are counted too, and bounded by a number of their own. The map by address never holds
//! more entries than there are connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::network;

/// The most requests that go on without a connection's permit because their caller has hung up. Each holds some 16 KiB.
/// A request beyond that number keeps its connection's permit until it ends.
const MAX_DETACHED: usize = 1024;

/// How many files callers may keep open.
#[derive(Clone, Copy, Debug)]
pub struct CallerFiles {
    /// For connections.
    pub connections: usize,
    /// For requests that go on after their connection was closed, each with its socket.
    pub detached: usize,
}

impl CallerFiles {
    /// So many connections, where files may be opened without a bound.
    pub fn of(connections: usize) -> Self {
        CallerFiles { connections, detached: MAX_DETACHED }
    }
}

/// Counts the open connections and refuses those beyond the limits.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    most: CallerFiles,
    max_per_address: Option<usize>,
    /// One permit for each connection that may still be opened.
    free: Arc<Semaphore>,
    /// One permit for each request that may still go on without a connection's permit.
    free_detached: Arc<Semaphore>,
    by_network: Arc<Mutex<HashMap<u64, usize>>>,
    refused: AtomicU64,
}

/// The right to keep one connection open, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    connection: Option<(OwnedSemaphorePermit, Option<NetworkCount>)>,
    free_detached: Arc<Semaphore>,
    /// For the requests that go on after the connection's permit was released.
    detached: Option<OwnedSemaphorePermit>,
}

/// One connection in the count of its network, until it is dropped.
#[derive(Debug)]
struct NetworkCount {
    by_network: Arc<Mutex<HashMap<u64, usize>>>,
    network: u64,
}

impl ConnectionLimiter {
    pub(super) fn new(most: CallerFiles, max_per_address: Option<usize>) -> Self {
        let most = CallerFiles { connections: most.connections.min(Semaphore::MAX_PERMITS), ..most };
        ConnectionLimiter {
            most,
            max_per_address,
            free: Arc::new(Semaphore::new(most.connections)),
            free_detached: Arc::new(Semaphore::new(most.detached)),
            by_network: Arc::default(),
            refused: AtomicU64::new(0),
        }
    }

    /// A permit for a connection from `address` (`None`: over a Unix socket), if the limits allow one more.
    pub(super) fn acquire(&self, address: Option<IpAddr>) -> Option<ConnectionPermit> {
        let Ok(permit) = self.free.clone().try_acquire_owned() else { return self.refuse("server.max_connections") };
        let count = match (address, self.max_per_address) {
            (Some(address), Some(max)) => {
                let network = network(address);
                let mut by_network = self.by_network.lock();
                let count = by_network.entry(network).or_insert(0);
                if *count >= max {
                    return self.refuse("server.max_connections_per_address");
                }
                *count += 1;
                Some(NetworkCount { by_network: self.by_network.clone(), network })
            }
            _ => None,
        };
        let connection = Some((permit, count));
        Some(ConnectionPermit { connection, free_detached: self.free_detached.clone(), detached: None })
    }

    /// The number of open connections, and of requests that go on after their connection was closed.
    pub(super) fn open(&self) -> usize {
        let CallerFiles { connections, detached } = self.most;
        connections - self.free.available_permits() + detached - self.free_detached.available_permits()
    }

    /// How many connections were closed at accept.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn refuse(&self, setting: &'static str) -> Option<ConnectionPermit> {
        self.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(setting, "too many connections; closed a new one");
        None
    }
}

impl ConnectionPermit {
    /// Releases the connection's permit now, because the caller has hung up while this many of its requests go on.
    /// Where too many requests go on already, the permit is kept until this is dropped.
    pub(super) fn detach(&mut self, requests: usize) {
        if self.detached.is_none() && requests > 0 {
            let requests = u32::try_from(requests).unwrap_or(u32::MAX);
            self.detached = self.free_detached.clone().try_acquire_many_owned(requests).ok();
            self.connection.take_if(|_| self.detached.is_some());
        }
    }
}

impl Drop for NetworkCount {
    fn drop(&mut self) {
        let mut by_network = self.by_network.lock();
        if let Some(count) = by_network.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                by_network.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that takes a connection of each address.
    fn limiter(connections: usize) -> ConnectionLimiter {
        ConnectionLimiter::new(CallerFiles::of(connections), Some(1))
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
        let limiter = Arc::new(limiter(2));
        let (a, b) = (Some([127, 0, 0, 1].into()), Some([127, 0, 0, 2].into()));
        let first = limiter.acquire(a).unwrap();
        assert!(limiter.acquire(a).is_none(), "an address has one connection");
        let second = limiter.acquire(b).unwrap();
        assert!(limiter.acquire(None).is_none(), "there are two connections in all");
        drop((first, second));
        assert_eq!(limiter.open(), 0);
        assert!(limiter.by_network.lock().is_empty());
        assert!(limiter.acquire(a).is_some());
    }

    #[test]
    fn a_caller_that_hung_up_frees_its_place_at_once_unless_too_many_requests_go_on() {
        let limiter = Arc::new(limiter(2));
        let a = Some([127, 0, 0, 1].into());
        let mut first = limiter.acquire(a).unwrap();
        first.detach(MAX_DETACHED);
        let mut second = limiter.acquire(a).expect("the first permit was released");
        second.detach(1);
        assert!(limiter.acquire(a).is_none(), "one request too many goes on, so the permit is kept");
        drop(first);
        assert_eq!(limiter.open(), 1);
        second.detach(1);
        second.detach(1);
        assert_eq!(limiter.open(), 1);
        let third = limiter.acquire(a).unwrap();
        drop((second, third));
        assert_eq!(limiter.open(), 0);
        assert!(limiter.by_network.lock().is_empty());
    }
}
