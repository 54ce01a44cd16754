//! Single-flight: callers that miss on one entry at the same time share one question to the origin (guarantee 3). The
//! first of them, the leader, makes the question's future; it and the followers drive it together, so that whoever of
//! them hangs up harms no other, and a question that nobody waits for any more is dropped.
//!
//! A flight is one secret's: the origin may answer one of a guild's keys and refuse another. Under *Keep* it is joined for
//! as long as it runs and the epoch is the same. Under *Ask* it is joined only until it is sent: then it is asked after
//! each of its callers came, and older than no write that one of them knows of.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::time::timeout;

use super::entry::EntryKey;
use super::gate::GateState;
use crate::model::Digest;
use crate::sync::Mutex;

/// The question that callers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlightKey {
    pub secret: Digest,
    pub entry: EntryKey,
    pub gate: GateState,
    /// The question is to prove the key: whoever sends it may not be given the answer to one that was sent before.
    pub is_proof: bool,
}

/// The flights that callers may join. `T` is the result that all of them receive. The lock is held for a look-up, never
/// across an await.
#[derive(Debug)]
pub struct Flights<T: Clone>(Mutex<Open<T>>);

#[derive(Debug)]
struct Open<T: Clone> {
    /// The number of the last flight.
    last: u64,
    flights: HashMap<FlightKey, Flight<T>, RandomState>,
}

type Question<T> = Shared<BoxFuture<'static, T>>;

#[derive(Debug)]
struct Flight<T: Clone> {
    number: u64,
    question: WeakShared<BoxFuture<'static, T>>,
    /// Nobody may join it any more; the next question waits for it.
    is_closed: bool,
}

/// A flight that is under way until this is dropped. The question's future owns it.
#[derive(Debug)]
pub struct Joinable<T: Clone> {
    flights: Arc<Flights<T>>,
    key: FlightKey,
    number: u64,
    previous: Option<Question<T>>,
}

impl<T: Clone> Default for Flights<T> {
    fn default() -> Self {
        Flights(Mutex::new(Open { last: 0, flights: HashMap::default() }))
    }
}

impl<T: Clone> Flights<T> {
    /// The question for `key` to wait for: the one that is under way, or the one that `ask` makes; and whether it is the
    /// caller's own.
    pub fn join<F>(self: &Arc<Self>, key: FlightKey, ask: impl FnOnce(Joinable<T>) -> F) -> (Question<T>, bool)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut open = self.0.lock();
        let Open { last, flights } = &mut *open;
        let slot = flights.entry(key);
        let found = match &slot {
            Slot::Occupied(slot) => slot.get().question.upgrade().map(|question| (question, slot.get().is_closed)),
            Slot::Vacant(_) => None,
        };
        let previous = match found {
            Some((under_way, false)) => return (under_way, false),
            Some((sent, true)) => Some(sent),
            None => None,
        };
        *last += 1;
        let number = *last;
        let question = ask(Joinable { flights: self.clone(), key, number, previous }).boxed().shared();
        if let Some(weak) = question.downgrade() {
            slot.insert_entry(Flight { number, question: weak, is_closed: false });
        }
        (question, true)
    }

    /// The number of flights.
    pub fn count(&self) -> usize {
        self.0.lock().flights.len()
    }
}

impl<T: Clone> Joinable<T> {
    /// Waits until the question before this one is answered, at most so long: callers that come meanwhile join this one, so
    /// that however many miss under *Ask*, the origin has one question at a time.
    pub async fn wait_for_previous(&mut self, at_most: Duration) {
        if let Some(previous) = self.previous.take() {
            let _ = timeout(at_most, previous).await; // its answer is older than this one's callers
        }
    }

    /// The question is about to be sent: under *Ask* what it asks for may be older than what a caller that comes later was
    /// told.
    pub fn sent(&self) {
        if self.key.gate == GateState::Ask
            && let Some(flight) = self.flights.0.lock().flights.get_mut(&self.key)
            && flight.number == self.number
        {
            flight.is_closed = true;
        }
    }
}

impl<T: Clone> Drop for Joinable<T> {
    fn drop(&mut self) {
        if let Slot::Occupied(flight) = self.flights.0.lock().flights.entry(self.key)
            && flight.get().number == self.number
        {
            flight.remove();
        }
    }
}
