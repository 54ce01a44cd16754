//! The checker's own of what `src/sync.rs` takes from the system.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::OnceLock as StdOnceLock;
use std::task::{Context, Poll, Waker};

pub use shuttle::sync::atomic::{AtomicU64, Ordering};

/// As `parking_lot` has it, over the checker's.
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

/// A cell set once; looking at it and setting it are steps that others may come between.
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

/// A bell as tokio's: who listens when it rings is woken, and nobody later.
#[derive(Debug, Default)]
pub struct Notify(shuttle::sync::Mutex<Rings>);

#[derive(Debug, Default)]
struct Rings {
    count: u64,
    listening: Vec<Waker>,
}

pub struct Notified<'n> {
    bell: &'n Notify,
    heard_before: Option<u64>,
}

impl Notify {
    pub fn new() -> Self {
        Notify::default()
    }

    pub fn notified(&self) -> Notified<'_> {
        Notified { bell: self, heard_before: None }
    }

    pub fn notify_waiters(&self) {
        let listening = {
            let mut rings = self.0.lock().unwrap();
            rings.count += 1;
            std::mem::take(&mut rings.listening)
        };
        listening.into_iter().for_each(Waker::wake);
    }
}

impl Notified<'_> {
    /// Listens from now on.
    pub fn enable(mut self: Pin<&mut Self>) -> bool {
        let count = self.bell.0.lock().unwrap().count;
        self.heard_before.get_or_insert(count);
        false
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let bell = self.bell;
        let mut rings = bell.0.lock().unwrap();
        let before = *self.heard_before.get_or_insert(rings.count);
        if rings.count > before {
            return Poll::Ready(());
        }
        rings.listening.push(context.waker().clone());
        Poll::Pending
    }
}
