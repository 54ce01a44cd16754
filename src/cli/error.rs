//! What a command says when it fails. Bad usage is clap's, and exit 2.

use std::io;

use crate::store::StoreError;
use crate::store::transfer::{ExportError, ImportError};

/// A command that could not be done: its line goes to stderr, and the process exits with 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    pub message: String,
    /// Whoever read the output has read enough, as `| head` has: this ends the command, and is no failure.
    enough_read: bool,
}

impl CommandError {
    pub fn new(message: impl Into<String>) -> Self {
        CommandError { message: message.into(), enough_read: false }
    }

    /// Whether it is no failure: its output was closed by its reader.
    pub fn is_enough_read(&self) -> bool {
        self.enough_read
    }
}

/// What became of printing something, where a reader that has closed the output is no failure. For what is printed
/// last, or where the exit code says something about what was printed.
pub fn unless_enough_read(printed: io::Result<()>) -> io::Result<()> {
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        CommandError::new(error.to_string())
    }
}

impl From<ExportError> for CommandError {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Write(error) if error.kind() == io::ErrorKind::BrokenPipe => error.into(),
            error => CommandError::new(error.to_string()),
        }
    }
}

impl From<ImportError> for CommandError {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Bad(bad) => CommandError::new(format!(
                "{bad}\nnothing was imported; fix these lines, or import only the valid ones with --partial"
            )),
            other => CommandError::new(other.to_string()),
        }
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        let enough_read = error.kind() == io::ErrorKind::BrokenPipe;
        CommandError { enough_read, ..CommandError::new(format!("the output cannot be written: {error}")) }
    }
}

impl From<serde_json::Error> for CommandError {
    fn from(error: serde_json::Error) -> Self {
        CommandError::from(io::Error::from(error))
    }
}
