//! The model checker's versions of what `src/sync.rs` exports.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock as StdOnceLock;

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
