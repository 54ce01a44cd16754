//! What all requests to the admin listener share: the gateway, the store, the tokens, the configuration.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::RwLock;
use serde::Serialize;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;

use super::audit::AuditLog;
use super::issues::Issues;
use super::problem::{Problem, ReloadFault};
use super::sessions::Sessions;
use super::tokens::Tokens;
use super::traffic::{INTERVAL, Sample, Traffic};
use crate::clock::{Tick, next_multiple_of};
use crate::cluster::ClusterStatus;
use crate::config::{Loaded, NO_STORE};
use crate::gateway::Gateway;
use crate::limits::Bucket;
use crate::records::Records;
use crate::store::Store;
use crate::telemetry::metrics::Metrics;

/// Reloads that are remembered. Of one file at most 100 faults are reported.
const MAX_RELOADS: usize = 20;

/// A request to reload all files, for the process to answer.
#[derive(Debug)]
pub struct ReloadRequest(pub oneshot::Sender<ReloadOutcome>);

/// What became of a reload.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ReloadOutcome {
    /// The sections and files that changed.
    pub changed: Vec<String>,
    /// The settings that take effect after a restart.
    pub after_restart: Vec<String>,
    /// The files that were rejected, each as a whole: `gateway.toml`, or the setting that names the file.
    #[serde(skip)]
    pub rejected: Vec<&'static str>,
    /// Their faults.
    #[serde(skip)]
    pub faults: Vec<ReloadFault>,
}

impl ReloadOutcome {
    /// This part changed, or nothing.
    pub fn changed(part: Option<&str>) -> Self {
        ReloadOutcome { changed: part.map(str::to_owned).into_iter().collect(), ..ReloadOutcome::default() }
    }

    /// A part was rejected as a whole.
    pub fn rejected(part: &'static str, faults: Vec<ReloadFault>) -> Self {
        ReloadOutcome { rejected: vec![part], faults, ..ReloadOutcome::default() }
    }

    /// Adds what became of another part.
    pub fn add(&mut self, other: ReloadOutcome) {
        self.changed.extend(other.changed);
        self.after_restart.extend(other.after_restart);
        self.rejected.extend(other.rejected);
        self.faults.extend(other.faults);
    }
}

/// What became of the reload of one file.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Reload {
    /// When it ended, in Unix seconds.
    pub(super) at: i64,
    /// `gateway.toml`, or the setting that names the file: `keys.file` or `server.tls`.
    pub(super) file: &'static str,
    /// What changed.
    pub(super) changed: Vec<String>,
    /// The settings that take effect after a restart.
    pub(super) after_restart: Vec<String>,
    /// Why the file was rejected as a whole; empty: it is in force.
    pub(super) faults: Vec<ReloadFault>,
}

/// The configuration in force.
#[derive(Clone, Debug)]
pub struct ConfigInForce {
    pub loaded: Arc<Loaded>,
    /// The settings whose value takes effect after a restart.
    pub after_restart: Vec<String>,
}

/// How many reloads of `gateway.toml` were put in force or rejected, since when the configuration in force is, and what
/// became of the last reloads of any file.
#[derive(Debug, Default)]
pub struct Reloads {
    pub accepted: AtomicU64,
    pub rejected: AtomicU64,
    /// Unix seconds.
    pub since: AtomicI64,
    last: parking_lot::Mutex<VecDeque<Reload>>,
    /// The files whose last reload was rejected, each with its first fault.
    rejected_files: parking_lot::Mutex<BTreeMap<&'static str, ReloadFault>>,
}

impl Reloads {
    /// A configuration is in force since `unix`.
    pub fn accept(&self, unix: i64) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.since.store(unix, Ordering::Relaxed);
    }

    /// Remembers what became of the reload of `file` at `unix`.
    pub fn record(&self, unix: i64, file: &'static str, outcome: &ReloadOutcome) {
        let mut last = self.last.lock();
        last.truncate(MAX_RELOADS - 1);
        let ReloadOutcome { changed, after_restart, faults, .. } = outcome.clone();
        last.push_front(Reload { at: unix, file, changed, after_restart, faults });
        match outcome.faults.first() {
            Some(fault) => drop(self.rejected_files.lock().insert(file, fault.clone())),
            None => self.replaced(file),
        }
    }

    /// What is in force of `file` was read from it, or from another file instead.
    pub fn replaced(&self, file: &str) {
        self.rejected_files.lock().remove(file);
    }

    /// The files whose last reload was rejected, each with its first fault.
    pub(super) fn rejected_files(&self) -> BTreeMap<&'static str, ReloadFault> {
        self.rejected_files.lock().clone()
    }

    /// The last reloads, the latest first.
    pub(super) fn last(&self) -> Vec<Reload> {
        self.last.lock().iter().cloned().collect()
    }
}

/// What the process tells the admin listener while it runs.
#[derive(Debug)]
pub struct ProcessState {
    pub(super) started: Instant,
    pub config: RwLock<ConfigInForce>,
    pub reloads: Reloads,
    is_draining: AtomicBool,
}

impl ProcessState {
    /// For a process that starts at `unix` (seconds).
    pub fn new(config: ConfigInForce, unix: i64) -> Arc<Self> {
        let reloads = Reloads { since: unix.into(), ..Reloads::default() };
        Arc::new(ProcessState {
            started: Instant::now(),
            config: RwLock::new(config),
            reloads,
            is_draining: AtomicBool::new(false),
        })
    }

    /// The process finishes what is under way, and ends.
    pub fn begin_drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }
}

/// What all requests share.
#[derive(Debug)]
pub struct Shared {
    pub gateway: Arc<Gateway>,
    pub process: Arc<ProcessState>,
    pub tokens: Tokens,
    pub metrics: Metrics,
    /// Those of callers' connections and of their certificate alone.
    pub connections: Metrics,
    pub audit: Option<Arc<AuditLog>>,
    /// `None`: a demo, which has nothing to reload.
    pub reload: Option<mpsc::Sender<ReloadRequest>>,
    /// The gateway's store, if it has one. The gateway hears of changes that are made here as of those of any other process.
    pub store: Option<Arc<Store>>,
    /// The addresses of callers, as URLs.
    pub urls: Vec<String>,
    /// When the certificate of this listener ends, in Unix seconds.
    pub certificate_ends: Option<i64>,
    pub own: Own,
}

/// What the listener itself keeps.
#[derive(Debug, Default)]
pub struct Own {
    /// Attempts with a wrong token.
    pub(super) attempts: Bucket,
    pub(super) sessions: Sessions,
    pub(super) traffic: Traffic,
    pub(super) issues: Issues,
    /// For one replay of recorded decisions at a time.
    pub(super) replays: Arc<Mutex<()>>,
    /// The changes under way, each of which goes on if its caller hangs up.
    pub(super) changes: TaskTracker,
}

impl Own {
    /// With a secret that logs in once.
    pub fn with_link(link: &str, now: Tick) -> Self {
        Own { sessions: Sessions::with_link(link, now), ..Own::default() }
    }
}

impl Shared {
    /// Reads the counts of requests, and what is wrong, for as long as it runs.
    pub(super) async fn sample(&self) {
        loop {
            self.own.traffic.add(Sample::now(&self.gateway));
            self.issues();
            next_multiple_of(INTERVAL).await;
        }
    }

    /// The records of guilds.
    pub(super) fn guilds(&self) -> Result<Records, Problem> {
        let store = self.store.clone().ok_or_else(|| Problem::conflict(NO_STORE))?;
        let (config, clock) = (self.gateway.state().config.clone(), self.gateway.clock().clone());
        Ok(Records { store, config, clock })
    }

    /// The records of keys.
    pub(super) fn keys(&self) -> Result<Records, Problem> {
        self.gateway.state().config.must_store_keys().map_err(Problem::conflict)?;
        self.guilds()
    }

    /// The records of members, warns and reviews.
    pub(super) fn members(&self) -> Result<Records, Problem> {
        self.gateway.state().config.must_store_members().map_err(Problem::conflict)?;
        self.guilds()
    }

    /// The nodes that share one Redis, if there is one, with what is wrong with Redis itself as the first warning.
    pub(super) fn cluster_status(&self) -> Option<ClusterStatus> {
        let mut status = self.gateway.shared_limits()?.status();
        status.warnings.splice(..0, self.gateway.redis_fault().map(str::to_owned));
        Some(status)
    }

    /// Why the gateway cannot answer as it should.
    pub(super) fn faults(&self) -> Vec<&'static str> {
        let is_draining = self.process.is_draining.load(Ordering::Acquire);
        let draining = is_draining.then_some("the process is draining: it finishes what is under way, and ends");
        draining.into_iter().chain(self.gateway.store_fault()).collect()
    }
}
