//! The places at an HTTP origin, `origin.max_in_flight` of them (guarantee 6): taken at once, or waited for in turn.

mod queue;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use queue::{FairQueue, Ticket};
use tokio::sync::oneshot;

use crate::limits::network;
use crate::model::KeyId;

/// Whose place it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A key, by whichever of its secrets.
    Key(KeyId),
    /// The network of a caller whose key is not proven (`keys.source = "origin"`).
    Address(u64),
}

impl Owner {
    pub fn of_address(address: IpAddr) -> Self {
        Owner::Address(network(address))
    }

    fn is_proven(&self) -> bool {
        matches!(self, Owner::Key(_))
    }
}

/// The places of one origin. A reload passes them on to the next one.
pub(super) struct Places {
    /// Held for some map look-ups; who is given a place is woken after it.
    queue: Mutex<FairQueue<oneshot::Sender<Place>>>,
}

/// A place at the origin, given back when dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    /// `None`: it was given back.
    owner: Option<Owner>,
}

impl Places {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Places { queue: Mutex::new(FairQueue::new(max)) })
    }

    /// A place, if `owner` may have one now.
    pub(super) fn try_take(self: &Arc<Self>, owner: Owner) -> Option<Place> {
        self.queue.lock().take(&owner).then(|| self.place(owner))
    }

    /// A place, now or when it is `owner`'s turn; `None` where that is not within `wait`, or too many wait.
    pub(super) async fn take(self: &Arc<Self>, owner: Owner, wait: Duration) -> Option<Place> {
        let ((ticket, dismissed), woken) = {
            let mut queue = self.queue.lock();
            if queue.take(&owner) {
                return Some(self.place(owner));
            }
            if wait.is_zero() {
                return None;
            }
            let (waker, woken) = oneshot::channel();
            (queue.wait(&owner, waker), woken)
        };
        let _waiting = Waiting { places: self, owner, ticket };
        drop(dismissed); // wakes it
        tokio::time::timeout(wait, woken).await.ok()?.ok()
    }

    /// There are so many from now on. Who has one keeps it.
    pub(super) fn resize(self: &Arc<Self>, max: usize) {
        let (dismissed, given) = {
            let mut queue = self.queue.lock();
            queue.resize(max);
            let dismissed: Vec<_> = std::iter::from_fn(|| queue.dismiss()).collect();
            (dismissed, given(&mut queue))
        };
        drop(dismissed); // wakes them
        self.hand_out(given);
    }

    fn place(self: &Arc<Self>, owner: Owner) -> Place {
        Place { places: self.clone(), owner: Some(owner) }
    }

    fn give_back(self: &Arc<Self>, owner: &Owner) {
        let given = {
            let mut queue = self.queue.lock();
            queue.give_back(owner);
            given(&mut queue)
        };
        self.hand_out(given);
    }

    /// Wakes those whose turn has come. Who has just hung up does not take its place: it goes to the next.
    fn hand_out(self: &Arc<Self>, mut given: Vec<Given>) {
        while let Some((owner, waker)) = given.pop() {
            if let Err(mut unwanted) = waker.send(self.place(owner))
                && let Some(owner) = unwanted.owner.take()
            {
                let mut queue = self.queue.lock();
                queue.give_back(&owner);
                given.extend(self::given(&mut queue));
            }
        }
    }
}

type Given = (Owner, oneshot::Sender<Place>);

fn given(queue: &mut FairQueue<oneshot::Sender<Place>>) -> Vec<Given> {
    std::iter::from_fn(|| queue.give()).collect()
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            self.places.give_back(&owner);
        }
    }
}

/// One who waits, until it is given a place, gives up, or hangs up.
struct Waiting<'p> {
    places: &'p Places,
    owner: Owner,
    ticket: Ticket,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let left = self.places.queue.lock().leave(&self.owner, self.ticket);
        drop(left); // once the lock is free
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Places").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
