//! The running process of `guildgate serve`, in three stages that are three types: `Startup` builds every part,
//! `Serving` waits for the reason to end, and `Draining` finishes what is under way. Reloads, file watching, signals,
//! systemd notification and the hand-over between two processes belong here. This module connects parts only: the rules
//! of a request are in `gateway`, and the network is in `edge`.

mod admin; // the admin listener
mod background; // the tasks without which a process cannot go on
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

use std::env::current_dir;
use std::future::pending;
use std::path::{PathBuf, absolute};
use std::sync::Arc;

use tokio::runtime::Builder;

use crate::config::{self, LoadError, Loaded};
use crate::keys::hide_keys;
use crate::store::StoreError;
use crate::telemetry::{self, CLOSE_TIMEOUT};

pub use loopback::LoopbackGateway;
pub use signals::HeldSignals;

use demo::Demo;
use serving::StopReason;
use signals::{ReloadSignals, StopSignals};
use startup::Startup;

/// Open files without which no server starts: those of the runtimes, listeners, store and logs, before any connection.
const LEAST_FILES: u64 = 256;

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
}

impl ProcessError {
    pub fn exit_code(&self) -> u8 {
        match self {
            ProcessError::Failed(_) => 1,
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

/// Runs the gateway until a signal or a hand-over ends it. `config_path`: the configuration file that the command line
/// gives, if it gives one. `held`: the signals that are held back since the process began.
///
/// # Errors
/// Why it could not start.
pub fn run(config_path: Option<PathBuf>, demo: bool, held: Option<HeldSignals>) -> Result<(), ProcessError> {
    let open_files = raise_file_limit()?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| ProcessError::Failed(format!("cannot start a runtime: {e}")))?;
    // Before all that takes time, and before there are other threads, which would hold the signals back as well.
    let reload_signals = runtime.block_on(async { ReloadSignals::register() })?;
    drop(held);
    // Looked at before it is read, so that no later change is missed.
    let mut looked = watch::look([reload::config_file(config_path.as_deref())]);
    let demo = demo.then(Demo::prepare).transpose()?.map(Arc::new);
    let (loaded, sockets) = match &demo {
        Some(demo) => demo.settings()?,
        None => (config::load(config_path.as_deref())?, Vec::new()),
    };
    let json = loaded.config.log.is_json();
    let log = Arc::new(
        telemetry::init(&loaded.config.log)
            .map_err(|e| ProcessError::Failed(format!("a thread could not be started: {e}")))?,
    );
    telemetry::log_panics();
    let result = runtime.block_on(async {
        log_start(&loaded, demo.is_some());
        looked.extend(reload::look_at_files(&loaded.config));
        let inputs = preflight::check(&loaded)?;
        let shadow = loaded.config.limits.shadow_warning().map(str::to_owned);
        let warnings = loaded.warnings.iter().map(ToString::to_string).chain(shadow);
        warnings.chain(inputs.warnings(&loaded.config)).for_each(|warning| tracing::warn!("{warning}"));
        let (demo, log) = (demo.clone(), log.clone());
        let startup = Startup { config_path, loaded, inputs, looked, demo, sockets, log, open_files };
        start_and_serve(startup, reload_signals).await
    });
    // Does not wait for the resolution of a name. The tasks that hold a demo's store end before its folder goes.
    runtime.shutdown_background();
    let result = result.map_err(|error| {
        if !json {
            return error;
        }
        tracing::error!("{}", hide_keys(&error.to_string()));
        ProcessError::Logged { exit_code: error.exit_code() }
    });
    log.close(CLOSE_TIMEOUT);
    result
}

/// Runs the three stages. Until the start is done, a stop signal ends the process at once.
async fn start_and_serve(startup: Startup, signals: ReloadSignals) -> Result<(), ProcessError> {
    let mut stop_signals = StopSignals::register()?;
    let built = tokio::select! {
        biased;
        () = stop_signals.recv() => return Ok(()),
        built = startup.run() => built?,
    };
    let (serving, reloader) = built.serve().await?;
    let ReloadSignals { sighup, sigusr1, .. } = signals;
    let reload = async {
        match reloader {
            Some(reloader) => reloader.run(sighup).await,
            None => pending().await,
        }
    };
    let reopen = serving.logs.clone().reopen_at(sigusr1);
    tokio::select! {
        () = async { serving.run(stop_signals).await.finish().await } => Ok(()),
        // Files are followed until the process ends: a key that is taken out of its file is refused however long a drain
        // takes. A file that cannot be read to its end delays no stop.
        never = reload => match never {},
        never = reopen => match never {},
    }
}

/// The first line of a start: what runs, and by which configuration.
fn log_start(loaded: &Loaded, is_demo: bool) {
    let config = match &loaded.path {
        Some(path) => absolute(path).unwrap_or_else(|_| path.clone()).display().to_string(),
        None if is_demo => "the demo's own settings".to_owned(),
        None => {
            let folder = current_dir().unwrap_or_default();
            format!("no {} in {}; using the defaults", config::DEFAULT_FILE, folder.display())
        }
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config, hash = %loaded.config.hash, "guildgate starts");
}

/// Lets the process open as many files as the system permits, and says how many those are.
fn raise_file_limit() -> Result<u64, ProcessError> {
    let limit = rlimit::increase_nofile_limit(u64::MAX);
    let limit = limit.map_err(|e| ProcessError::Failed(format!("cannot raise the limit of open files: {e}")))?;
    if limit < LEAST_FILES {
        return Err(ProcessError::Failed(format!(
            "the limit of open files is {limit}; raise it (ulimit -n, LimitNOFILE) to {LEAST_FILES} at least"
        )));
    }
    Ok(limit)
}
