//! Single-flight: of all callers that miss on one key at the same time, one (the leader) asks the origin and the others
//! (the followers) wait for its answer. A caller joins only a question that began under the current epoch or after the
//! caller came; the epoch is read under the shard's lock. A leader that is dropped without an answer releases its
//! followers, who try again. It knows neither the origin nor the cache, and holds no lock while it waits.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::sync::{Mutex, Notify, OnceLock};

/// Locks among which the flights are spread; held for a look-up, never across an await.
const SHARDS: usize = 64;

/// The questions that are being asked now, one flight for each `K` (guarantee 3). `E` is what a
/// flight began under: only callers under the same join it. `T` is what all aboard are told.
pub struct Flights<K, E, T> {
    shards: Box<[Shard<K, E, T>]>,
    hasher: RandomState,
}

type Shard<K, E, T> = Mutex<Flying<K, E, T>>;

struct Flying<K, E, T> {
    flights: HashMap<K, Arc<Flight<E, T>>>,
    /// Those who go along with the next flight for a key.
    expecting: Vec<(K, Begun<E, T>)>,
}

/// Hands a flight that begins to one who expects it.
type Begun<E, T> = oneshot::Sender<Arc<Flight<E, T>>>;

#[derive(Debug)]
struct Flight<E, T> {
    epoch: E,
    /// Empty while in the air; `None` where no answer came that its followers may be given.
    landed: OnceLock<Option<T>>,
    bell: Notify,
}

/// A caller's place in a flight.
pub enum Seat<'f, K: Copy + Eq + Hash, E, T> {
    /// Ask the origin, then [`Lead::land`].
    Lead(Lead<'f, K, E, T>),
    /// Wait for the answer of whoever asks already.
    Follow(Follow<E, T>),
}

/// The same, where whoever leads has what it needs for that.
pub enum ReadySeat<'f, K: Copy + Eq + Hash, E, T, R> {
    Lead(Lead<'f, K, E, T>, R),
    Follow(Follow<E, T>),
    /// Another flight has landed meanwhile: the answer is where answers are kept.
    Answered,
}

impl<K, E, T> Default for Flights<K, E, T> {
    fn default() -> Self {
        let shard = |_| Mutex::new(Flying { flights: HashMap::new(), expecting: Vec::new() });
        Flights { shards: (0..SHARDS).map(shard).collect(), hasher: RandomState::new() }
    }
}

impl<K: Eq + Hash, E: Eq, T> Flying<K, E, T> {
    fn join(&self, key: &K, epoch: impl Fn() -> E) -> Option<Follow<E, T>> {
        self.flights.get(key).filter(|flight| flight.epoch == epoch()).map(|flight| Follow(flight.clone()))
    }
}

impl<K: Copy + Eq + Hash, E: Copy + Eq, T: Clone> Flights<K, E, T> {
    /// Takes a seat in the flight for `key`. A flight that began under another epoch is not
    /// joined: what it brings may be older than a write that this caller knows to be done. It
    /// flies on for those aboard, and the next ones join the new flight.
    ///
    /// The epoch is read here, under the lock: a caller that read it earlier could put a flight
    /// of an older epoch into the place of a newer one, and two flights of one epoch would be in
    /// the air, of which the later to land may bring the older answer.
    pub fn board(&self, key: K, epoch: impl FnOnce() -> E) -> Seat<'_, K, E, T> {
        let shard = self.shard(&key);
        let mut flying = shard.lock();
        let epoch = epoch();
        let slot = flying.flights.entry(key);
        if let Slot::Occupied(there) = &slot
            && there.get().epoch == epoch
        {
            return Seat::Follow(Follow(there.get().clone()));
        }
        let flight = Arc::new(Flight { epoch, landed: OnceLock::new(), bell: Notify::new() });
        slot.insert_entry(flight.clone());
        let expecting: Vec<_> = flying.expecting.extract_if(.., |(expected, _)| *expected == key).collect();
        drop(flying);
        for (_, begun) in expecting {
            let _ = begun.send(flight.clone()); // it may have hung up
        }
        Seat::Lead(Lead { shard, key, flight })
    }

    /// Takes a seat once `ready` brings what the one who asks needs first. Whoever waits for that keeps nobody
    /// else waiting, and joins the flight that another caller begins meanwhile; `is_answered` says whether one has
    /// landed since this caller looked.
    ///
    /// # Errors
    /// Those of `ready`, which are this caller's alone.
    pub async fn board_ready<R, F>(
        &self,
        key: K,
        epoch: impl Fn() -> E,
        ready: impl Future<Output = Result<R, F>>,
        is_answered: impl Fn() -> bool,
    ) -> Result<ReadySeat<'_, K, E, T, R>, F> {
        if let Some(follow) = self.join(&key, &epoch) {
            return Ok(ReadySeat::Follow(follow));
        }
        let ready = tokio::select! {
            biased;
            ready = ready => ready?,
            follow = self.join_next(&key, &epoch) => return Ok(ReadySeat::Follow(follow)),
            // Looked at behind the one before, from which on no flight is missed.
            () = async { if !is_answered() { std::future::pending().await } } => return Ok(ReadySeat::Answered),
        };
        Ok(match self.board(key, epoch) {
            Seat::Lead(lead) => ReadySeat::Lead(lead, ready),
            Seat::Follow(follow) => ReadySeat::Follow(follow),
        })
    }

    /// A seat beside whoever asks for `key` now, under this epoch.
    fn join(&self, key: &K, epoch: impl Fn() -> E) -> Option<Follow<E, T>> {
        self.shard(key).lock().join(key, epoch)
    }

    /// A seat beside the next one who asks for `key`. Whatever epoch that is under, it asks after this was called.
    async fn join_next(&self, key: &K, epoch: impl Fn() -> E) -> Follow<E, T> {
        loop {
            let begins = {
                let mut flying = self.shard(key).lock();
                if let Some(follow) = flying.join(key, &epoch) {
                    return follow;
                }
                let (begun, begins) = oneshot::channel();
                flying.expecting.retain(|(_, begun)| !begun.is_closed());
                flying.expecting.push((*key, begun));
                begins
            };
            if let Ok(flight) = begins.await {
                return Follow(flight);
            }
        }
    }

    /// Whether `key` is being asked for, under whatever epoch.
    pub fn is_in_the_air(&self, key: &K) -> bool {
        self.shard(key).lock().flights.contains_key(key)
    }

    fn shard(&self, key: &K) -> &Shard<K, E, T> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }
}

impl<K, E, T> Flights<K, E, T> {
    /// How many questions are in the air.
    pub fn in_the_air(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().flights.len()).sum()
    }
}

/// The one who asks. Dropped without landing (cancelled, panicked, or what came back is outdated),
/// it lets its followers know that they are to board again.
pub struct Lead<'f, K: Copy + Eq + Hash, E, T> {
    shard: &'f Shard<K, E, T>,
    key: K,
    flight: Arc<Flight<E, T>>,
}

impl<K: Copy + Eq + Hash, E: Copy, T> Lead<'_, K, E, T> {
    /// The epoch that the answer will belong to.
    pub fn epoch(&self) -> E {
        self.flight.epoch
    }
}

impl<K: Copy + Eq + Hash, E, T> Lead<'_, K, E, T> {
    /// Tells every follower what came back. What is to be kept must be in the cache before this,
    /// so that nobody falls between the flight and the cache.
    pub fn land(self, landed: T) {
        self.finish(Some(landed));
    }

    fn finish(&self, landed: Option<T>) {
        if self.flight.landed.set(landed).is_err() {
            return; // landed before: this is the guard's own drop
        }
        let mut flying = self.shard.lock();
        if let Slot::Occupied(there) = flying.flights.entry(self.key)
            && Arc::ptr_eq(there.get(), &self.flight)
        {
            there.remove();
        }
        drop(flying);
        self.flight.bell.notify_waiters();
    }
}

impl<K: Copy + Eq + Hash, E, T> Drop for Lead<'_, K, E, T> {
    fn drop(&mut self) {
        self.finish(None);
    }
}

/// One who waits.
#[derive(Debug)]
pub struct Follow<E, T>(Arc<Flight<E, T>>);

impl<E, T: Clone> Follow<E, T> {
    /// The leader's answer; `None` if there is none to be had from it, and this caller is to
    /// board again.
    pub async fn landed(self) -> Option<T> {
        let bell = self.0.bell.notified();
        tokio::pin!(bell);
        // Listen first, look second: a landing between the two rings a bell that is heard.
        bell.as_mut().enable();
        if let Some(landed) = self.0.landed.get() {
            return landed.clone();
        }
        bell.await;
        self.0.landed.get().cloned().flatten()
    }
}

impl<K, E, T> fmt::Debug for Flights<K, E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").field("in_the_air", &self.in_the_air()).finish()
    }
}

impl<K: Copy + Eq + Hash + fmt::Debug, E, T> fmt::Debug for Lead<'_, K, E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lead").field("key", &self.key).finish()
    }
}

impl<K: Copy + Eq + Hash + fmt::Debug, E: fmt::Debug, T: fmt::Debug> fmt::Debug for Seat<'_, K, E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seat::Lead(lead) => lead.fmt(f),
            Seat::Follow(follow) => follow.fmt(f),
        }
    }
}

impl<K: Copy + Eq + Hash + fmt::Debug, E: fmt::Debug, T: fmt::Debug, R> fmt::Debug for ReadySeat<'_, K, E, T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadySeat::Lead(lead, _) => lead.fmt(f),
            ReadySeat::Follow(follow) => follow.fmt(f),
            ReadySeat::Answered => f.write_str("Answered"),
        }
    }
}
