//! `guildgate serve`: runs the process and maps its error to an exit code.

use std::path::PathBuf;

use super::Failure;
use super::error::CommandError;
use crate::process::{self, ProcessError};

/// Runs the gateway until SIGTERM or SIGINT.
pub(super) fn run(config_path: Option<PathBuf>, demo: bool) -> Result<(), Failure> {
    Ok(process::run(config_path, demo)?)
}

impl From<ProcessError> for Failure {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::Failed(message) => CommandError::new(message).into(),
            ProcessError::Unusable(message) => Failure::Unusable(message),
            ProcessError::Logged { exit_code } => Failure::Logged { code: exit_code },
        }
    }
}
