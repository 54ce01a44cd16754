//! What is told to the operator: one outcome a request, the record of decisions, and the process's
//! own log.

mod access;
mod bound;
pub mod decisions;
mod outcome;
mod panics;
mod setup;
mod spool;

pub use access::AccessLog;
pub use decisions::{Decision, DecisionLog};
pub use outcome::Outcome;
pub use panics::tell_of_panics;
pub use setup::{init, ready_as_json};
