//! The model checker's versions of what `src/sync.rs` exports.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::OnceLock as StdOnceLock;
use std::task::{Context, Poll, Waker};

pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub use shuttle::thread;

/// `parking_lot::Mutex` over the checker's mutex.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

pub struct Guard<'m, T>(shuttle::sync::MutexGuard<'m, T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> Guard<'_, T> {
        Guard(self.0.lock().unwrap())
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A cell set once. Other threads may run between reading and setting it.
#[derive(Debug)]
pub struct OnceLock<T>(StdOnceLock<T>);

impl<T> OnceLock<T> {
    pub fn new() -> Self {
        OnceLock(StdOnceLock::new())
    }

    pub fn get(&self) -> Option<&T> {
        shuttle::thread::yield_now();
        self.0.get()
    }

    pub fn set(&self, value: T) -> Result<(), T> {
        shuttle::thread::yield_now();
        self.0.set(value)
    }
}

/// As `tokio::sync::Notify`: those that wait when it notifies are woken, and nobody later.
#[derive(Debug, Default)]
pub struct Notify(shuttle::sync::Mutex<Notifications>);

#[derive(Debug, Default)]
struct Notifications {
    count: u64,
    waiting: Vec<Waker>,
}

pub struct Notified<'n> {
    notify: &'n Notify,
    count_before: Option<u64>,
}

impl Notify {
    pub fn new() -> Self {
        Notify::default()
    }

    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self, count_before: None }
    }

    pub fn notify_waiters(&self) {
        let waiting = {
            let mut notifications = self.0.lock().unwrap();
            notifications.count += 1;
            std::mem::take(&mut notifications.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Notified<'_> {
    /// Waits from now on.
    pub fn enable(mut self: Pin<&mut Self>) -> bool {
        let count = self.notify.0.lock().unwrap().count;
        self.count_before.get_or_insert(count);
        false
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let notify = self.notify;
        let mut notifications = notify.0.lock().unwrap();
        let before = *self.count_before.get_or_insert(notifications.count);
        if notifications.count > before {
            return Poll::Ready(());
        }
        notifications.waiting.push(context.waker().clone());
        Poll::Pending
    }
}
