//! Answers in memory, and what keeps them coherent with writes (guarantees 2 to 4): the fence,
//! whose epochs say whether an answer still stands, and the flights, by which one question is
//! asked once.

mod answers;
mod fence;
mod flights;
mod memory;
#[cfg(test)]
mod tests;

pub use answers::{Entry, EntryKey, Landed, Realm, Use};
pub use fence::{Epoch, Fence, Reach, Write};
pub use flights::{Flights, Lead, ReadySeat, Seat};
pub use memory::{Memory, Realms};
