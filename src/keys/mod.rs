//! Who may ask: keys by their digests, each with its own buckets (contract section 2 "Key
//! format", section 3 `[keys]`).

mod book;
mod file;
mod in_flight;
mod learned;
mod proof;
mod secret;

pub use book::{Book, Guild, Key, Listed};
pub use file::{KeyFileError, read_key_file};
pub use in_flight::{InFlight, InFlightPlace};
pub use learned::{Learned, Rules, Standing, Taught, Told};
pub use proof::Proof;
pub use secret::{ApiKey, hide_keys, is_mistyped};
