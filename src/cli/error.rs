//! What a command prints on stderr when it fails (exit code 1). Bad usage is reported by clap (exit code 2).

use std::io;

use crate::planning::ReadError;
use crate::store::StoreError;
use crate::store::{ExportError, ImportError};

/// Why a command failed: one message for stderr.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    pub message: String,
    is_broken_pipe: bool,
}

impl CommandError {
    pub fn new(message: impl Into<String>) -> Self {
        CommandError { message: message.into(), is_broken_pipe: false }
    }

    /// Whether the reader of stdout closed it, as `| head` does. That ends the command and is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        self.is_broken_pipe
    }
}

macro_rules! from_its_message {
    ($($error:ty),+) => {
        $(impl From<$error> for CommandError {
            fn from(error: $error) -> Self {
                CommandError::new(error.to_string())
            }
        })+
    };
}

from_its_message!(ReadError, StoreError);

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
                "{bad}\nnothing was imported; fix these lines (`guildgate import --help` shows two, such as \
                 {{\"guild\":\"81384788765712384\",\"name\":\"Night Watch\"}}), or import only the valid ones with --partial"
            )),
            other => CommandError::new(other.to_string()),
        }
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        let is_broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        CommandError { message: format!("the output cannot be written: {error}"), is_broken_pipe }
    }
}

impl From<serde_json::Error> for CommandError {
    fn from(error: serde_json::Error) -> Self {
        CommandError::from(io::Error::from(error))
    }
}
