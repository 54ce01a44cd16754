//! The running process of `guildgate serve`: `startup` builds every part, and `Serving` accepts, waits for the reason to
//! end, and finishes what is under way. Reloads, signals, systemd notification and the hand-over between two processes
//! belong here. This module connects parts only: the rules of a request are in `gateway`, and the network is in `edge`.

mod background; // the tasks without which a process cannot go on
mod demo; // serve --demo
pub mod handover; // one process takes over from another
mod logs; // the access log and the decision record
mod loopback; // a gateway of a command's own
mod metrics; // what /metrics shows of the process
pub mod preflight; // checks of what the configuration names on this machine
mod reload; // new files in force while serving
mod serving; // from the first connection to the last
mod signals; // SIGTERM, SIGINT, SIGHUP
mod startup; // from the configuration to the first connection
mod systemd; // sd_notify

use std::env::current_dir;
use std::path::{Path, PathBuf, absolute};
use std::time::Instant;

use tokio::runtime::Builder;
use tokio::signal::unix::SignalKind;

use crate::config::{self, Loaded};
use crate::model::hide_keys;
use crate::store::StoreError;
use crate::telemetry::{self, CLOSE_TIMEOUT};

pub use loopback::start_loopback;
pub use signals::HeldSignals;

use background::supervise;
use demo::Demo;
use signals::{listen, stopped};

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
    let in_runtime = runtime.enter();
    let [hangup, hangup_for_logs] = [listen(SignalKind::hangup())?, listen(SignalKind::hangup())?];
    let reopen = listen(SignalKind::user_defined1())?;
    // A write beyond `ulimit -f` fails from now on, as on a full disk. SIGUSR2, by which other servers replace their binary,
    // means nothing.
    let ignored = [listen(SignalKind::from_raw(nix::libc::SIGXFSZ))?, listen(SignalKind::user_defined2())?];
    drop((ignored, in_runtime, held));
    // Looked at before it is read, so that no later change is missed.
    let file = config_path.as_deref().unwrap_or(Path::new(config::DEFAULT_FILE)).to_owned();
    let before = reload::look([file.clone()]);
    let (loaded, demo) = match demo {
        true => runtime.block_on(Demo::prepare()).map(|(loaded, demo)| (loaded, Some(demo)))?,
        false => (config::load(config_path.as_deref()).map_err(|e| ProcessError::Unusable(e.to_string()))?, None),
    };
    let json = loaded.config.log.is_json();
    let log = telemetry::init(&loaded.config.log);
    let log = log.map_err(|e| ProcessError::Failed(format!("a thread could not be started: {e}")))?;
    telemetry::log_panics();
    let result = runtime.block_on(async {
        log_start(&loaded, demo.is_some());
        let mut looked = reload::look(reload::all_files(&file, &loaded.config));
        looked.extend(before);
        let inputs = preflight::check(&loaded)?;
        log_warnings(&loaded, &inputs.warnings(&loaded.config));
        // Until the start is done, a stop signal ends the process at once.
        let mut stop_signals =
            [listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?, listen(SignalKind::quit())?];
        let start = startup::start((file, looked), loaded, inputs, demo.is_some(), log.clone(), open_files);
        let (mut serving, urls, reloader) = tokio::select! {
            biased;
            () = stopped(&mut stop_signals) => return Ok(()),
            started = start => started?,
        };
        serving.accept(&urls, demo.as_ref());
        // Until the process ends: a key that is taken out of its file is refused however long a drain takes.
        if let Some(reloader) = reloader {
            supervise("the task that reloads files", &serving.logs, reloader.run(hangup));
        }
        let reopen = serving.logs.clone().reopen_at(hangup_for_logs, reopen);
        supervise("the task that reopens the logs", &serving.logs, reopen);
        serving.run(stop_signals).await;
        Ok(())
    });
    // Does not wait for the resolution of a name. The tasks that hold a demo's store end before its folder goes.
    runtime.shutdown_background();
    let result = result.map_err(|error: ProcessError| {
        if !json {
            return error;
        }
        tracing::error!("{}", hide_keys(&error.to_string()));
        ProcessError::Logged { exit_code: error.exit_code() }
    });
    log.close(Instant::now() + CLOSE_TIMEOUT);
    result
}

/// What the operator should know of a configuration, and need not change.
fn log_warnings(loaded: &Loaded, others: &[String]) {
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    loaded.config.limits.shadow_warning().inspect(|warning| tracing::warn!("{warning}"));
    others.iter().for_each(|warning| tracing::warn!("{warning}"));
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
