//! What the process reports to its operator: the access log, the record of decisions, metrics, and the process log. A
//! request hands over plain data and never waits; threads write it. Nothing here decides anything.

mod access;
mod access_line;
mod background_writer;
pub mod decisions;
mod explanation;
mod last_refusals;
mod line_writer;
mod log_rate_limit;
pub mod metrics;
mod observer;
mod outcome;
mod panics;
mod setup;
#[cfg(feature = "otlp")]
mod trace_export;
mod wakeup;

pub use access::AccessLog;
pub use access_line::{AccessLine, printable};
pub use background_writer::{BackgroundWriter, CLOSE_TIMEOUT};
pub use decisions::{Decision, DecisionLog};
pub use explanation::{Explanation, KeyLookup};
pub use line_writer::LineOutput;
pub use observer::Observer;
pub use outcome::{CacheUse, Outcome, UpstreamUse};
pub use panics::log_panics;
pub use setup::{ProcessLog, init, ready_as_json};
#[cfg(feature = "otlp")]
pub use trace_export::TraceExport;
