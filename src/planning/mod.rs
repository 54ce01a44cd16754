//! Recorded decisions (`log.decisions`) made again under other limits: which keys would be refused, how often and when.
//! For `limits plan`, `limits suggest` and the dashboard alike. It reads the record's files and prints nothing.

mod intervals; // counts by the second, the minute, the day
mod plan; // who would be refused
mod record; // the files of a decision record as one stream
mod replay; // the recorded decisions under other limits
mod suggested_limits; // a [limits] section that would have refused nothing

pub use intervals::{BusiestInterval, Histogram, IntervalCounter};
pub use plan::{Plan, PlannedKey};
pub use record::{OnProgress, ReadError, RecordFiles, RecordSummary, RecordedDecision};
pub use replay::Replay;
pub use suggested_limits::{KeyRequests, count_requests, for_each, suggested_limits};
