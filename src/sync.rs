//! The locks, atomics and bells of what is model-checked (`tests/model.rs`), which compiles the same
//! files with those of the checker in their place.

pub use std::sync::OnceLock;
pub use std::sync::atomic::{AtomicU64, Ordering};

pub use parking_lot::Mutex;
pub use tokio::sync::Notify;
