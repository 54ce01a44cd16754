//! The audit log (`log.audit`): one JSON line for each change that was asked for through the API, and for each log-in and
//! log-out on the dashboard. A thread writes it, and a request never waits for it.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::Value;

use super::server::Peer;
use super::shared::Shared;
use crate::model::{date_of, hide_keys};
use crate::telemetry::{BackgroundWriter, LineOutput};

/// Lines that wait for the writer. Each is some hundred bytes, at most [`MAX_CHANGE`] and the path.
const QUEUE: usize = 1024;

/// The most of a request's body that a line repeats, in bytes. The largest key has a fraction of it.
pub(super) const MAX_CHANGE: usize = 4096;

/// A change, a log-in or a log-out, as it is written.
#[derive(Debug, Serialize)]
pub struct Change {
    /// RFC 3339.
    time: String,
    client: IpAddr,
    /// Whose token it was; `none`: a wrong one.
    role: &'static str,
    method: String,
    path: String,
    status: u16,
    /// What the request's body said. No request to the API has a secret in it.
    #[serde(skip_serializing_if = "Value::is_null")]
    change: Value,
    /// The id of what was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    made: Option<String>,
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
        BackgroundWriter::of_lines(
            "the audit log",
            "audit-log",
            (QUEUE, Duration::ZERO),
            LineOutput::file(path)?,
            write_line,
        )
    }
}

impl Shared {
    /// Writes the line of a change, a log-in or a log-out. `role`: whose token it was.
    #[expect(clippy::too_many_arguments, reason = "each is a field of the line")]
    pub(super) fn audit(
        &self,
        peer: Option<Peer>,
        role: &'static str,
        method: &Method,
        path: &str,
        status: StatusCode,
        change: Value,
        made: Option<String>,
    ) {
        let (Some(audit), Some(Peer(client))) = (&self.audit, peer) else { return };
        audit.record(Change {
            time: date_of(self.gateway.clock().unix()),
            client: client.ip(),
            role,
            method: method.to_string(),
            path: hide_keys(&percent_decode_str(path).decode_utf8_lossy()),
            status: status.as_u16(),
            change,
            made,
        });
    }
}
