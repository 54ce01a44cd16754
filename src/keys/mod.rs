//! Which keys there are, found by their digests, each with its own budget (contract section 2 "Key format", section 3
//! `[keys]`): the table of listed keys, the keys learned from the origin, and the form of a key itself.

mod file;
mod in_flight;
mod key;
mod learned;
mod secret;
mod table;

#[cfg(test)]
mod tests;

pub use file::{KeyFileError, read_key_file};
pub use in_flight::{InFlightGuard, InFlightSlot};
pub use key::{Key, ListedKey};
pub use learned::{FoundKey, LearnedKeyRules, LearnedKeys, Proof, Unproven};
pub use secret::{ApiKey, is_mistyped, random_token};
pub use table::KeyTable;
