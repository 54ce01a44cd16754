//! The locks and atomics of the code that is model-checked. `tests/model` compiles the same files with the
//! checker's versions in their place.

pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use parking_lot::Mutex;
