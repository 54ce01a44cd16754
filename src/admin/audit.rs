//! The audit log (`log.audit`): one JSON line for each change that was asked for through the API, and for each log-in and
//! log-out on the dashboard. A thread writes it, and a request never waits for it.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::telemetry::{BackgroundWriter, LineOutput};

/// Lines that wait for the writer. Each is some hundred bytes, at most [`MAX_CHANGE`] and the path.
const RING: usize = 1024;

/// The most of a request's body that a line repeats, in bytes. The largest key has a fraction of it.
pub(super) const MAX_CHANGE: usize = 4096;

/// A change, a log-in or a log-out, as it is written.
#[derive(Debug, Serialize)]
pub struct Change {
    /// RFC 3339.
    pub(super) time: String,
    pub(super) client: IpAddr,
    /// Whose token it was; `none`: a wrong one.
    pub(super) role: &'static str,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) status: u16,
    /// What the request's body said. No request to the API has a secret in it.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) change: Value,
    /// The id of what was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) made: Option<String>,
}

/// The audit log.
pub type AuditLog = BackgroundWriter<Change>;

impl AuditLog {
    /// Opens the log, and starts the thread that writes it.
    ///
    /// # Errors
    /// Why the file cannot be opened, or the thread not started.
    pub fn open(path: &Path) -> io::Result<Self> {
        let write_line = |change: &Change, lines: &mut String| {
            *lines += &serde_json::to_string(change).unwrap_or_default(); // texts and numbers can be written as JSON
            lines.push('\n');
        };
        BackgroundWriter::of_lines("the audit log", "audit-log", RING, LineOutput::file(path)?, write_line)
    }
}
