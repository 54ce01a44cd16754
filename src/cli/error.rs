//! Why a command does not exit with 0: one message for stderr, and the exit code. Bad usage is reported by clap (exit code
//! 2).

use std::io;

use crate::config::{LoadError, Loaded, SettingFault};
use crate::planning::ReadError;
use crate::process::ProcessError;
use crate::store::StoreError;

#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// Exit 1.
    #[error("{0}")]
    Failed(String),
    /// Exit 2: bad usage or bad configuration.
    #[error("{0}")]
    Unusable(String),
    /// Exit 3: `limits plan` found requests that were accepted and would be refused.
    #[error("{0}")]
    WouldRefuse(String),
    #[error(transparent)]
    Config(#[from] LoadError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Record(#[from] ReadError),
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
    #[error("the output cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

impl CommandError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        CommandError::Failed(message.into())
    }

    /// A setting cannot be used.
    pub(super) fn of_setting(loaded: &Loaded, setting: &str, why: String) -> Self {
        CommandError::Config(loaded.faults(&[SettingFault::new(setting, why)]).into())
    }

    /// The process's exit code.
    pub(super) fn code(&self) -> u8 {
        match self {
            CommandError::Unusable(_) | CommandError::Config(_) => 2,
            CommandError::WouldRefuse(_) => 3,
            CommandError::Process(error) => error.exit_code(),
            _ => 1,
        }
    }
}
