//! Single-flight: of all callers that miss on one key at the same time, one (the leader) asks the origin and the others
//! (the followers) wait for its answer. A caller joins only a flight of the current epoch, or one that begins after the
//! caller came; the epoch is read under the shard's lock. A leader that is dropped without a result releases its
//! followers, who try again. No lock is held while anything is waited for.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use ahash::RandomState;
use tokio::sync::oneshot;

use crate::sync::{Mutex, Notify, OnceLock};

/// Locks over which the keys are spread; each is held for a look-up, never across an await.
const SHARDS: usize = 64;

/// The flights that callers may join, one for each `K` (guarantee 3). `E` is the epoch under which a flight began: only
/// callers under the same epoch join it. `T` is the result that the leader and its followers receive.
#[derive(Debug)]
pub struct SingleFlight<K, E, T> {
    shards: Box<[Mutex<Shard<K, E, T>>]>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Shard<K, E, T> {
    flights: HashMap<K, Arc<Flight<E, T>>, RandomState>,
    /// Callers that wait for the next flight for a key to begin.
    waiting: Vec<(K, FlightSender<E, T>)>,
}

type FlightSender<E, T> = oneshot::Sender<Arc<Flight<E, T>>>;

#[derive(Debug)]
struct Flight<E, T> {
    epoch: E,
    /// Empty until the flight ends; `None` if the followers cannot use the result.
    result: OnceLock<Option<T>>,
    ended: Notify,
}

/// What one caller is to do.
#[derive(Debug)]
pub enum Role<'f, K: Copy + Eq + Hash, E, T> {
    /// Ask the origin, then call [`Leader::complete`].
    Leader(Leader<'f, K, E, T>),
    /// Wait for the leader's result.
    Follower(Follower<E, T>),
}

/// As [`Role`], for a caller that first waited for something else.
#[derive(Debug)]
pub enum Joined<'f, K: Copy + Eq + Hash, E, T, R> {
    Leader(Leader<'f, K, E, T>, R),
    Follower(Follower<E, T>),
    /// Another flight has ended meanwhile, and its result is stored.
    Stored,
}

impl<K, E, T> Default for SingleFlight<K, E, T> {
    fn default() -> Self {
        let shard = |_| Mutex::new(Shard { flights: HashMap::default(), waiting: Vec::new() });
        SingleFlight { shards: (0..SHARDS).map(shard).collect(), hasher: RandomState::new() }
    }
}

impl<K: Eq + Hash, E: Eq, T> Shard<K, E, T> {
    /// Joins the flight for `key` as a follower, if there is one of this epoch.
    fn join_current(&self, key: &K, epoch: impl Fn() -> E) -> Option<Follower<E, T>> {
        self.flights.get(key).filter(|flight| flight.epoch == epoch()).map(|flight| Follower(flight.clone()))
    }
}

impl<K: Copy + Eq + Hash, E: Copy + Eq, T: Clone> SingleFlight<K, E, T> {
    /// Joins the flight for `key`, or begins one. A flight of another epoch is not joined: its result may be older than
    /// a write that this caller knows to be done. It goes on for its own followers, and later callers join the new one.
    ///
    /// The epoch is read under the lock. A caller that had read it earlier could replace a flight of a newer epoch by
    /// one of an older epoch; then two flights of one epoch would exist, and the later result could be the older one.
    pub fn join(&self, key: K, epoch: impl FnOnce() -> E) -> Role<'_, K, E, T> {
        let lock = self.shard(&key);
        let mut shard = lock.lock();
        let epoch = epoch();
        let slot = shard.flights.entry(key);
        if let Slot::Occupied(there) = &slot
            && there.get().epoch == epoch
        {
            return Role::Follower(Follower(there.get().clone()));
        }
        let flight = Arc::new(Flight { epoch, result: OnceLock::new(), ended: Notify::new() });
        slot.insert_entry(flight.clone());
        let waiting: Vec<_> = shard.waiting.extract_if(.., |(awaited, _)| *awaited == key).collect();
        drop(shard);
        for (_, begun) in waiting {
            let _ = begun.send(flight.clone()); // the caller may be gone
        }
        Role::Leader(Leader { shard: lock, key, flight })
    }

    /// As [`SingleFlight::join`], once `ready` has what a leader needs. A caller that waits for `ready` delays
    /// nobody else, and joins a flight that another caller begins meanwhile. `is_stored` tells whether a result was
    /// stored since this caller looked.
    ///
    /// # Errors
    /// Those of `ready`, which concern this caller only.
    pub async fn join_when_ready<R, F>(
        &self,
        key: K,
        epoch: impl Fn() -> E,
        ready: impl Future<Output = Result<R, F>>,
        is_stored: impl Fn() -> bool,
    ) -> Result<Joined<'_, K, E, T, R>, F> {
        let current = self.shard(&key).lock().join_current(&key, &epoch);
        if let Some(follower) = current {
            return Ok(Joined::Follower(follower));
        }
        let ready = tokio::select! {
            biased;
            ready = ready => match ready {
                Err(_) if is_stored() => return Ok(Joined::Stored), // by a flight for another key
                ready => ready?,
            },
            follower = self.follow_next(&key, &epoch) => return Ok(Joined::Follower(follower)),
            // Polled after `follow_next`, from whose first poll on no flight is missed.
            () = async { if !is_stored() { std::future::pending().await } } => return Ok(Joined::Stored),
        };
        Ok(match self.join(key, epoch) {
            Role::Leader(leader) => Joined::Leader(leader, ready),
            Role::Follower(follower) => Joined::Follower(follower),
        })
    }

    /// Waits for the next flight for `key` to begin. Its epoch does not matter: its leader asks after this was called.
    async fn follow_next(&self, key: &K, epoch: impl Fn() -> E) -> Follower<E, T> {
        loop {
            let begins = {
                let mut shard = self.shard(key).lock();
                if let Some(follower) = shard.join_current(key, &epoch) {
                    return follower;
                }
                let (begun, begins) = oneshot::channel();
                shard.waiting.retain(|(_, begun)| !begun.is_closed());
                shard.waiting.push((*key, begun));
                begins
            };
            if let Ok(flight) = begins.await {
                return Follower(flight);
            }
        }
    }

    /// Whether there is a flight for `key`, of whatever epoch.
    pub fn is_in_flight(&self, key: &K) -> bool {
        self.shard(key).lock().flights.contains_key(key)
    }

    fn shard(&self, key: &K) -> &Mutex<Shard<K, E, T>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }
}

impl<K, E, T> SingleFlight<K, E, T> {
    /// The number of flights.
    pub fn in_flight(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().flights.len()).sum()
    }
}

/// The caller that asks. If it is dropped without [`Leader::complete`] (it was cancelled, it panicked, or the result is
/// outdated), its followers try again.
#[derive(Debug)]
pub struct Leader<'f, K: Copy + Eq + Hash, E, T> {
    shard: &'f Mutex<Shard<K, E, T>>,
    key: K,
    flight: Arc<Flight<E, T>>,
}

impl<K: Copy + Eq + Hash, E: Copy, T> Leader<'_, K, E, T> {
    /// The epoch of the result.
    pub fn epoch(&self) -> E {
        self.flight.epoch
    }
}

impl<K: Copy + Eq + Hash, E, T> Leader<'_, K, E, T> {
    /// Gives the result to every follower. It must be in the cache before, so that a caller that finds no flight any
    /// more finds the entry.
    pub fn complete(self, result: T) {
        self.end(Some(result));
    }

    fn end(&self, result: Option<T>) {
        if self.flight.result.set(result).is_err() {
            return; // it was completed, and this is the drop
        }
        let mut shard = self.shard.lock();
        if let Slot::Occupied(there) = shard.flights.entry(self.key)
            && Arc::ptr_eq(there.get(), &self.flight)
        {
            there.remove();
        }
        drop(shard);
        self.flight.ended.notify_waiters();
    }
}

impl<K: Copy + Eq + Hash, E, T> Drop for Leader<'_, K, E, T> {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// A caller that waits for the leader's result.
#[derive(Debug)]
pub struct Follower<E, T>(Arc<Flight<E, T>>);

impl<E, T: Clone> Follower<E, T> {
    /// The leader's result; `None` if there is none for this caller, which is to join again.
    pub async fn wait(self) -> Option<T> {
        let ended = self.0.ended.notified();
        tokio::pin!(ended);
        // Enabled before the result is read: a flight that ends in between still wakes this caller.
        ended.as_mut().enable();
        if let Some(result) = self.0.result.get() {
            return result.clone();
        }
        ended.await;
        self.0.result.get().cloned().flatten()
    }
}
