//! The listener for operators and admins (contract section 4): the API as JSON, its description, metrics,
//! health and readiness.
//! It runs on a thread of its own with a bound on everything, so that it can neither slow nor stop the data path. The gateway
//! hears of its changes to the store as of any other process's.

mod api; // the resources under /api/
mod audit; // log.audit
mod authorize; // whose token, what it may do, and what is recorded of it
mod extract; // ids, parameters and bodies of requests
mod pages; // the dashboard
mod problem; // RFC 9457
mod router; // the paths and their description
mod server; // connections, under bounds
mod sessions; // of people who are logged in
mod shared; // what requests share
mod tokens; // admin.token, read_token, bot_token
mod traffic; // the requests of the last 15 minutes

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

pub use audit::AuditLog;
pub use problem::ReloadFault;
pub use shared::{ConfigText, ProcessState, ReloadOutcome, ReloadRequest, Reloads};
pub use tokens::Tokens;

use authorize::Attempts;
use pages::Hosts;
use sessions::Sessions;
use shared::Shared;
use traffic::Traffic;

use crate::gateway::Gateway;
use crate::store::Store;
use crate::telemetry::metrics::Metrics;
use crate::tls::Certificate;

/// How long a stop waits for the requests under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// The `nice` value of the thread: callers' requests get a core at once although admins keep one busy.
const NICE: i32 = 10;

const NOT_LISTENING: &str = "admin.listen cannot be listened on; this process has no admin listener";

/// Changes at once, those among them whose callers have hung up: as many as connections.
const MAX_CHANGES: usize = server::MAX_CONNECTIONS;

/// What the listener needs.
#[derive(Debug)]
pub struct Admin {
    pub gateway: Arc<Gateway>,
    pub process: Arc<ProcessState>,
    pub tokens: Tokens,
    pub audit: Option<Arc<AuditLog>>,
    /// Where reloads are answered; `None`: there is nothing to reload.
    pub reload: Option<mpsc::Sender<ReloadRequest>>,
    /// The gateway's store, if it has one.
    pub store: Option<Arc<Store>>,
    /// `None`: plain HTTP.
    pub certificate: Option<Certificate>,
    pub metrics: Metrics,
    /// Names by which browsers may reach the dashboard (`admin.hosts`).
    pub hosts: Vec<String>,
}

/// The thread that serves.
#[derive(Debug)]
pub struct AdminThread {
    stop: CancellationToken,
    /// Its other end is dropped when the thread ends.
    ended: oneshot::Receiver<()>,
}

impl Admin {
    /// Starts the thread.
    ///
    /// # Errors
    /// Where the thread or its runtime cannot be started, or TLS cannot be set up.
    pub fn start(self, listener: TcpListener) -> io::Result<AdminThread> {
        let Admin { gateway, process, tokens, audit, reload, store, certificate, metrics, hosts } = self;
        let tls = certificate.map(acceptor).transpose()?;
        let shared = Arc::new(Shared {
            gateway,
            process,
            tokens,
            attempts: Attempts::default(),
            metrics,
            audit,
            reload,
            started: Instant::now(),
            sessions: Sessions::default(),
            traffic: Traffic::default(),
            replays: Arc::new(Semaphore::new(1)),
            key_scans: Arc::new(Semaphore::new(1)),
            store,
            changes: Arc::new(Semaphore::new(MAX_CHANGES)),
            key_lock: Mutex::default(),
        });
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let run = async move {
            let sampled = shared.clone();
            tokio::spawn(async move { sampled.traffic.sample(&sampled.gateway).await });
            tokio::select! {
                () = serve(shared, listener, hosts, tls, stopped.clone()) => {}
                // The requests under way have had their time.
                () = async { stopped.cancelled().await; sleep(STOP_TIMEOUT).await } => {}
            }
        };
        let (ends, ended) = oneshot::channel::<()>();
        thread::Builder::new().name("admin".to_owned()).spawn(move || {
            // Of this thread, and of those that it starts for what blocks, where the system permits it.
            let _ = rustix::process::setpriority_process(None, NICE);
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    runtime.block_on(run);
                    runtime.shutdown_background();
                }
                Err(error) => tracing::error!(%error, "{NOT_LISTENING}"),
            }
            drop(ends);
        })?;
        Ok(AdminThread { stop, ended })
    }
}

async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    hosts: Vec<String>,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
) {
    let listens = || {
        listener.set_nonblocking(true)?;
        let hosts = Hosts { address: listener.local_addr()?.ip(), names: hosts };
        Ok::<_, io::Error>((tokio::net::TcpListener::from_std(listener)?, hosts))
    };
    match listens() {
        Ok((listener, hosts)) => {
            let router = router::router(shared.clone(), hosts, tls.is_some());
            server::serve(listener, router, tls, stop).await;
            // Changes whose callers have hung up.
            let _ = shared.changes.acquire_many(MAX_CHANGES as u32).await;
        }
        Err(error) => tracing::error!(%error, "{NOT_LISTENING}"),
    }
}

fn acceptor(certificate: Certificate) -> io::Result<TlsAcceptor> {
    let resolver = tokio_rustls::rustls::sign::SingleCertAndKey::from(certificate.key);
    let config = crate::tls::server_config(Arc::new(resolver), &[b"http/1.1"]).map_err(io::Error::other)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

impl AdminThread {
    /// Closes the listener at once. The requests under way end within a second.
    pub fn close(&self) {
        self.stop.cancel();
    }

    /// Closes the listener and waits for the requests under way.
    pub async fn stop(self) {
        self.close();
        let _ = timeout(2 * STOP_TIMEOUT, self.ended).await; // an error is its end
    }
}
