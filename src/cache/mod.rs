//! Answers in memory, and what keeps them coherent with writes (guarantees 2 to 4). `gate` decides whether an answer may
//! be kept and shared, `flights` asks the origin once for all callers that wait, `answers` combines both with the
//! entries. `tests/model` compiles these files with a model checker's locks.

mod answers;
mod entry;
mod flights;
mod gate;
#[cfg(test)]
mod tests;

pub use answers::{Answers, CacheSize};
pub use entry::{Entry, EntryKey, EntryState, Realm};
pub use flights::{FlightKey, Joinable};
pub use gate::{Epoch, Gate, GateState, Realms, WriteGuard};
