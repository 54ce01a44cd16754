//! What is told to the operator: one outcome a request, and the process's own log.

mod access;
mod outcome;
mod panics;
mod setup;

pub use access::AccessLog;
pub use outcome::Outcome;
pub use panics::tell_of_panics;
pub use setup::init;
