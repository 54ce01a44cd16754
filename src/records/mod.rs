//! Guilds, keys, members and notes as people change them: what is typed, what is shown, and each change as one
//! transaction of the store. The commands read the inputs from flags and print the rows; the admin API reads and writes
//! both as JSON, and describes them.

pub mod guild;
pub mod key;
pub mod member;
pub mod note;
mod schema; // how the API describes ids and texts

use std::sync::Arc;

use crate::clock::Clock;
use crate::config::Config;
use crate::config::expires::Expires;
use crate::store::{Store, StoreError};

/// The store with what its records need to be changed.
#[derive(Clone, Debug)]
pub struct Records {
    pub store: Arc<Store>,
    pub config: Arc<Config>,
    pub clock: Clock,
}

impl Records {
    /// When `expires` is, in Unix seconds; `None`: never.
    fn end(&self, expires: Expires) -> Result<Option<i64>, StoreError> {
        expires.in_future(self.clock.unix()).map_err(|why| StoreError::Refused(format!("expires {why}")))
    }
}
