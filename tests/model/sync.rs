//! The model checker's versions of what `src/sync.rs` exports.

use std::ops::{Deref, DerefMut};

pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
