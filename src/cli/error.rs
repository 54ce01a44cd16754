//! What a command says when it fails. Bad usage is clap's, and exit 2.

use std::io;

use crate::store::StoreError;
use crate::store::transfer::{ExportError, ImportError};

/// A command that could not be done: its line goes to stderr, and the process exits with 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    pub message: String,
}

impl CommandError {
    pub fn new(message: impl Into<String>) -> Self {
        CommandError { message: message.into() }
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        CommandError::new(error.to_string())
    }
}

impl From<ExportError> for CommandError {
    fn from(error: ExportError) -> Self {
        CommandError::new(error.to_string())
    }
}

impl From<ImportError> for CommandError {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Bad(bad) => CommandError::new(format!(
                "{bad}\nnothing was imported; mend the lines above, or take the good ones with --partial"
            )),
            other => CommandError::new(other.to_string()),
        }
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        CommandError::new(format!("the output cannot be written: {error}"))
    }
}

impl From<serde_json::Error> for CommandError {
    fn from(error: serde_json::Error) -> Self {
        CommandError::from(io::Error::from(error))
    }
}
