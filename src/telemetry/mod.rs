//! What is told to the operator: one outcome a request, and the process's own log.

mod access;
mod outcome;
mod setup;

pub use access::AccessLog;
pub use outcome::Outcome;
pub use setup::init;
