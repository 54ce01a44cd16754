//! What the process reports to its operator: the access log, the record of decisions, metrics, and the process log. A
//! request hands over plain data and never waits; threads write it. Nothing here decides anything.

mod access;
mod access_line;
pub mod decisions;
mod last_refusals;
mod line_output;
mod log_limit;
pub mod metrics;
mod observer;
mod panics;
mod process_log;
#[cfg(feature = "otlp")]
mod trace_export;
mod why;
mod writer;

pub use access::AccessLog;
pub use access_line::{AccessLine, CacheUse, UpstreamUse, printable};
pub use decisions::{Decision, DecisionLog};
pub use line_output::LineOutput;
pub use log_limit::UNLIMITED;
pub use observer::Observer;
pub use panics::log_panics;
pub use process_log::{ProcessLog, init, ready_as_json};
#[cfg(feature = "otlp")]
pub use trace_export::TraceExport;
pub use why::{Explanation, KeyLookup};
pub use writer::{BackgroundWriter, CLOSE_TIMEOUT};
