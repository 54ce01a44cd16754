//! The audit log (`log.audit`): one JSON line for each change that was asked for through the API. A thread writes it,
//! and a request never waits for it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::telemetry::{BackgroundWriter, Batch};

/// Lines that wait for the writer. Each is some hundred bytes, at most [`MAX_CHANGE`] and the path.
const RING: usize = 1024;

/// The most of a request's body that a line repeats, in bytes. The largest key has a fraction of it.
pub(super) const MAX_CHANGE: usize = 4096;

/// A change, as it is written.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    /// RFC 3339.
    pub(super) time: String,
    pub(super) client: IpAddr,
    pub(super) role: &'static str,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) status: u16,
    /// What the request's body said. No request to the API has a secret in it.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) change: Value,
    /// The id of what was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) made: Option<String>,
}

/// The audit log.
#[derive(Debug)]
pub struct AuditLog(BackgroundWriter<Change>);

impl AuditLog {
    /// Opens the log, and starts the thread that writes it.
    ///
    /// # Errors
    /// Why the file cannot be opened, or the thread not started.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut lines = LineWriter { file: append(path)?, path: path.to_owned() };
        let write = move |batch: Batch<'_, Change>| lines.write(&batch);
        BackgroundWriter::start("the audit log", "audit-log", RING, write).map(AuditLog)
    }

    pub(super) fn record(&self, change: Change) {
        self.0.record(change);
    }

    /// Opens the file again, after a log rotation has moved it.
    pub fn reopen(&self) {
        self.0.reopen();
    }

    /// Writes what is queued and ends the thread.
    pub fn close(&self) {
        self.0.close();
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

struct LineWriter {
    file: File,
    path: PathBuf,
}

impl LineWriter {
    fn write(&mut self, batch: &Batch<'_, Change>) {
        if batch.reopen {
            match append(&self.path) {
                Ok(file) => self.file = file,
                Err(error) => tracing::error!(%error, path = %self.path.display(), "the audit log cannot be reopened"),
            }
        }
        let mut lines = Vec::new();
        for change in batch.records() {
            let _ = serde_json::to_writer(&mut lines, &change); // into memory
            lines.push(b'\n');
        }
        if !lines.is_empty()
            && let Err(error) = self.file.write_all(&lines)
        {
            tracing::error!(%error, path = %self.path.display(), "the audit log cannot be written; its lines are lost");
        }
    }
}
