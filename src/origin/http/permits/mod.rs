//! The permits of an HTTP origin, `origin.max_in_flight` of them (guarantee 6): a request gets one at once, or waits for
//! its turn. `queue` decides who gets one; this module wakes the waiters. The contract calls a permit a place.

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

/// Whose requests share the limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A key, with either of its secrets.
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

/// A semaphore that is fair between owners. A reload shares it with the next origin.
pub(super) struct FairSemaphore {
    /// Locked for some map look-ups; waiters are woken after it is released.
    queue: Mutex<FairQueue<oneshot::Sender<Permit>>>,
}

/// Permission to send one request, released when dropped.
#[derive(Debug)]
pub struct Permit {
    semaphore: Arc<FairSemaphore>,
    /// `None`: it was released.
    owner: Option<Owner>,
}

impl FairSemaphore {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(FairSemaphore { queue: Mutex::new(FairQueue::new(max)) })
    }

    /// A permit, now or when it is `owner`'s turn; `None` if that takes longer than `timeout`, or too many wait.
    pub(super) async fn acquire(self: &Arc<Self>, owner: Owner, timeout: Duration) -> Option<Permit> {
        let ((ticket, evicted), granted) = {
            let mut queue = self.queue.lock();
            if queue.try_acquire(&owner) {
                return Some(self.permit(owner));
            }
            if timeout.is_zero() {
                return None;
            }
            let (waker, granted) = oneshot::channel();
            (queue.enqueue(&owner, waker), granted)
        };
        let _entry = QueueEntry { semaphore: self, owner, ticket };
        drop(evicted); // wakes it
        tokio::time::timeout(timeout, granted).await.ok()?.ok()
    }

    /// Changes the number of permits. Those that are held stay valid.
    pub(super) fn resize(self: &Arc<Self>, max: usize) {
        let (evicted, granted) = {
            let mut queue = self.queue.lock();
            queue.resize(max);
            let evicted: Vec<_> = std::iter::from_fn(|| queue.evict()).collect();
            (evicted, grant_all(&mut queue))
        };
        drop(evicted); // wakes them
        self.wake(granted);
    }

    /// How many permits are held, and how many requests wait for one.
    pub(super) fn counts(&self) -> (usize, usize) {
        self.queue.lock().counts()
    }

    fn permit(self: &Arc<Self>, owner: Owner) -> Permit {
        Permit { semaphore: self.clone(), owner: Some(owner) }
    }

    fn release(self: &Arc<Self>, owner: &Owner) {
        let granted = {
            let mut queue = self.queue.lock();
            queue.release(owner);
            grant_all(&mut queue)
        };
        self.wake(granted);
    }

    /// Wakes waiters that were granted a permit. One that has just given up does not take it: the next waiter gets it.
    fn wake(self: &Arc<Self>, mut granted: Vec<(Owner, oneshot::Sender<Permit>)>) {
        while let Some((owner, waker)) = granted.pop() {
            if let Err(mut permit) = waker.send(self.permit(owner))
                && let Some(owner) = permit.owner.take()
            {
                let mut queue = self.queue.lock();
                queue.release(&owner);
                granted.extend(grant_all(&mut queue));
            }
        }
    }
}

fn grant_all(queue: &mut FairQueue<oneshot::Sender<Permit>>) -> Vec<(Owner, oneshot::Sender<Permit>)> {
    std::iter::from_fn(|| queue.grant_next()).collect()
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            self.semaphore.release(&owner);
        }
    }
}

/// A waiting request's entry in the queue, removed when dropped.
struct QueueEntry<'s> {
    semaphore: &'s FairSemaphore,
    owner: Owner,
    ticket: Ticket,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let removed = self.semaphore.queue.lock().remove(&self.owner, self.ticket);
        drop(removed); // after the lock is released
    }
}

impl fmt::Debug for FairSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairSemaphore").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
