//! The running process of `guildgate serve`, in three stages that are three types: `Startup` builds every part,
//! `Serving` waits for the reason to end, and `Draining` finishes what is under way. Reloads, file watching, signals,
//! systemd notification and the hand-over between two processes belong here. This module connects parts only: the rules
//! of a request are in `gateway`, and the network is in `edge`.

mod admin; // the admin listener
mod background; // the gateway's background tasks
mod demo; // serve --demo
mod draining; // from the reason to end to the process's end
pub mod handover; // one process takes over from another
mod logs; // the access log and the decision record
mod loopback; // a gateway of a command's own
mod metrics; // what /metrics shows of the process
pub mod preflight; // checks of what the configuration names on this machine
mod reload; // new files in force while serving
mod serving; // from the ready lines to the reason to end
mod signals; // SIGTERM, SIGINT, SIGHUP
mod startup; // from the arguments to the ready lines
mod systemd; // sd_notify
mod watch; // changes of files

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{self, LoadError};
use crate::keys::hide_keys;
use crate::runtime;
use crate::store::StoreError;
use crate::telemetry::{self, CLOSE_TIMEOUT};

pub use loopback::LoopbackGateway;
pub use signals::HeldSignals;

use demo::Demo;
use serving::StopReason;
use startup::Startup;
use watch::FileWatch;

/// Threads besides those of `server.threads`, which are as many for requests and for handshakes: of the logs, the store and
/// its copy for admins, the follower, the admin listener and the runtimes 30 at most.
const OTHER_THREADS: usize = 32;

/// Those of them that write the process log and close it.
const LOG_THREADS: usize = 3;

/// Open files without which no server starts: those of the runtimes, listeners, store and logs, before any connection.
const LEAST_FILES: u64 = 256;

/// How long the process log may take to be written after a defect.
const LOG_AFTER_DEFECT: Duration = Duration::from_millis(250);

/// Why the process ends with another exit code than 0.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// Exit code 1.
    #[error("{0}")]
    Failed(String),
    /// Exit code 2: the configuration cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The process log names the reason already.
    #[error("the log names the reason")]
    Logged { exit_code: u8 },
    /// The process log names a defect, because of which the process ends within a second. Exit code 1.
    #[error("the log names a defect")]
    Defect,
}

impl ProcessError {
    pub fn exit_code(&self) -> u8 {
        match self {
            ProcessError::Failed(_) | ProcessError::Defect => 1,
            ProcessError::Unusable(_) => 2,
            ProcessError::Logged { exit_code } => *exit_code,
        }
    }
}

impl From<LoadError> for ProcessError {
    fn from(error: LoadError) -> Self {
        ProcessError::Unusable(error.to_string())
    }
}

impl From<StoreError> for ProcessError {
    fn from(error: StoreError) -> Self {
        ProcessError::Failed(error.to_string())
    }
}

/// Runs the gateway until a signal, a hand-over or a defect ends it. `config_path`: the configuration file that the
/// command line gives, if it gives one. `held`: the signals that are held back since the process began.
///
/// # Errors
/// Why it could not start, or had to end.
pub fn run(config_path: Option<PathBuf>, demo: bool, held: Option<HeldSignals>) -> Result<(), ProcessError> {
    can_open_files()?;
    let runtime =
        runtime::single_threaded().map_err(|e| ProcessError::Failed(format!("cannot start a runtime: {e}")))?;
    // Before all that takes time, and before there are other threads, which would hold the signals back as well.
    let (sighup, sigusr1, _file_too_long) = runtime
        .block_on(async { Ok::<_, ProcessError>((signals::sighup()?, signals::sigusr1()?, signals::sigxfsz()?)) })?;
    drop(held);
    // Watched before it is read, so that no later change is missed.
    let config_watch = FileWatch::new([reload::config_file(config_path.as_deref())]);
    let mut loaded = config::load(config_path.as_deref())?;
    let can_start = |threads| runtime::can_start_threads(threads).map_err(|e| ProcessError::Failed(e.to_string()));
    // Parts of the process panic where they find none. Without those of the log, its format is that of no error.
    let has_threads = can_start(2 * loaded.config.server.threads + OTHER_THREADS);
    can_start(LOG_THREADS)?;
    let (json, log_writer) = (loaded.config.log.json, telemetry::init(&loaded.config.log));
    telemetry::log_panics();
    let demo = has_threads.and_then(|()| if demo { Demo::prepare(&mut loaded).map(Some) } else { Ok(None) });
    let result = demo.and_then(|demo| {
        let result = runtime.block_on(async {
            let startup = Startup { config_path, loaded, config_watch, demo: demo.as_ref() };
            let Some((serving, reloader)) = startup.run().await? else { return Ok(()) };
            let reload = async {
                match reloader {
                    Some(reloader) => reloader.run(sighup).await,
                    None => std::future::pending().await,
                }
            };
            let reopen = serving.logs.clone().reopen_at(sigusr1);
            tokio::select! {
                result = async { serving.run().await.finish().await } => result,
                // Files are followed until the process ends: a key that is taken out of its file is refused however
                // long a drain takes. A file that cannot be read to its end delays no stop.
                never = reload => match never {},
                never = reopen => match never {},
            }
        });
        // Does not wait for the resolution of a name. The tasks that hold a demo's store end before its folder goes.
        runtime.shutdown_background();
        result
    });
    let result = result.map_err(|error| {
        if !json || matches!(error, ProcessError::Logged { .. } | ProcessError::Defect) {
            return error;
        }
        tracing::error!("{}", hide_keys(&error.to_string()));
        ProcessError::Logged { exit_code: error.exit_code() }
    });
    log_writer.close(if let Err(ProcessError::Defect) = result { LOG_AFTER_DEFECT } else { CLOSE_TIMEOUT });
    result
}

/// Reports an error where the system lets this process open too few files, of which its parts report many others.
fn can_open_files() -> Result<(), ProcessError> {
    match rlimit::increase_nofile_limit(LEAST_FILES) {
        Ok(limit) if limit < LEAST_FILES => Err(ProcessError::Failed(format!(
            "the limit of open files is {limit}; raise it (ulimit -n, LimitNOFILE) to {LEAST_FILES} at least"
        ))),
        _ => Ok(()), // whether it is enough for the connections is told later
    }
}
