//! The logs: the process log, and those that requests are written to: the access log, the record of decisions, the audit
//! log, and the export of traces.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::Signal;

use super::ProcessError;
use crate::admin::AuditLog;
use crate::clock::Clock;
use crate::config::Log;
#[cfg(feature = "otlp")]
use crate::telemetry::TraceExport;
use crate::telemetry::{AccessLog, DecisionLog, Observer, ProcessLog};

#[derive(Clone, Debug)]
pub(super) struct Logs {
    /// Open since before the others, and closed after them.
    pub(super) process: Arc<ProcessLog>,
    access: Option<Arc<AccessLog>>,
    pub(super) decisions: Option<Arc<DecisionLog>>,
    pub(super) audit: Option<Arc<AuditLog>>,
    #[cfg(feature = "otlp")]
    traces: Option<Arc<TraceExport>>,
}

impl Logs {
    /// Opens the logs that are configured.
    pub(super) fn open(process: Arc<ProcessLog>, config: &Log, clock: &Clock) -> Result<Self, ProcessError> {
        let access = AccessLog::open(&config.access, config.is_json()).map_err(cannot_open("access"))?;
        let open = |path: &Path| DecisionLog::open(path, config.decisions_max_size, clock.clone());
        let decisions = config.decisions.as_deref().map(open).transpose().map_err(cannot_open("decisions"))?;
        let audit = config.audit.as_deref().map(AuditLog::open).transpose().map_err(cannot_open("audit"))?;
        #[cfg(feature = "otlp")]
        let traces = config.otlp().as_ref().map(TraceExport::start).transpose();
        Ok(Logs {
            process,
            access: access.map(Arc::new),
            decisions: decisions.map(Arc::new),
            audit: audit.map(Arc::new),
            #[cfg(feature = "otlp")]
            traces: traces.map_err(|e| ProcessError::Failed(format!("log.otlp cannot be used: {e}")))?.map(Arc::new),
        })
    }

    /// Writes the end of each caller's request to all but the audit log.
    pub(super) fn observer(&self) -> Observer {
        Observer {
            access: self.access.clone(),
            decisions: self.decisions.clone(),
            #[cfg(feature = "otlp")]
            traces: self.traces.clone(),
            ..Observer::default()
        }
    }

    /// Opens new files where the old ones were moved away, at each of these signals, for ever.
    pub(super) async fn reopen_at(self, mut hangup: Signal, mut user_defined: Signal) {
        loop {
            tokio::select! {
                _ = hangup.recv() => {}
                _ = user_defined.recv() => {}
            }
            self.access.iter().for_each(|access| access.reopen());
            self.audit.iter().for_each(|audit| audit.reopen());
        }
    }

    /// Writes what is left to all but the process log, within this time: first the files, then the access log, which
    /// may go to a pipe that nobody reads, then what another machine takes.
    pub(super) fn close(&self, within: Duration) {
        let deadline = Instant::now() + within;
        self.decisions.iter().for_each(|decisions| decisions.writer.close(deadline));
        self.audit.iter().for_each(|audit| audit.close(deadline));
        self.access.iter().for_each(|access| access.close(deadline));
        #[cfg(feature = "otlp")]
        self.traces.iter().for_each(|traces| traces.writer.close(deadline));
    }
}

fn cannot_open<E: Display>(log: &str) -> impl FnOnce(E) -> ProcessError {
    move |error| ProcessError::Failed(format!("log.{log} cannot be opened: {error}"))
}
