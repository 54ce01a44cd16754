//! Answers in memory, and what keeps them coherent with writes (guarantees 2 to 4). `epochs` decides whether an answer
//! is still current, `single_flight` asks the origin once for all callers that wait, `answer_cache` combines both
//! with the entries. `tests/model` compiles these files with a model checker's locks.

mod answer_cache;
mod entry;
mod epochs;
mod index;
mod single_flight;
#[cfg(test)]
mod tests;

pub use answer_cache::{AnswerCache, CacheSize};
pub use entry::{Entry, EntryKey, EntryState, FetchError, FetchResult, FlightKey, Realm};
pub use epochs::{Epoch, Epochs, FlightEpoch, Realms, WriteGuard};
pub use single_flight::{Joined, Leader, Role, SingleFlight};
