//! Who asks: the keys themselves, and the book in which they are looked up by digest
//! (contract section 2 "Key format", guarantees 7 and 9).

mod book;
mod file;
mod secret;

pub use book::{Book, Guild, Key, Listed, UnderWay};
pub use file::{KeyFileError, read_key_file};
pub use secret::{ApiKey, is_mistyped};
