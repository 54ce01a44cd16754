//! The listener for operators and admins (contract section 4): the API as JSON, its description, metrics,
//! health and readiness.
//! It runs on a thread of its own with a bound on everything, so that it can neither slow nor stop the data path. The gateway
//! hears of its changes to the store as of any other process's.

mod api; // the resources under /api/
mod audit; // log.audit
mod authorize; // whose token, what it may do, and what is recorded of it
mod extract; // ids, parameters and bodies of requests
mod issues; // what is wrong, and since when
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
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

pub use audit::AuditLog;
pub use problem::ReloadFault;
pub use shared::{ConfigInForce, Own, ProcessState, ReloadOutcome, ReloadRequest, Reloads, Shared};
pub use tokens::Tokens;

use pages::Hosts;

use crate::tls::Certificate;

/// How long a stop waits for the requests under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// The `nice` value of the thread: callers' requests get a core at once although admins keep one busy.
const NICE: i32 = 10;

/// The thread that serves.
#[derive(Debug)]
pub struct AdminThread {
    stop: CancellationToken,
    /// Its other end is dropped when the thread ends.
    ended: oneshot::Receiver<()>,
}

impl AdminThread {
    /// Starts the thread. `certificate`: `None` for plain HTTP; `hosts`: the names by which browsers may reach the dashboard.
    ///
    /// # Errors
    /// Where the thread cannot be started, or TLS cannot be set up.
    pub fn start(
        shared: Shared,
        listener: TcpListener,
        hosts: Vec<String>,
        certificate: Option<Certificate>,
    ) -> io::Result<AdminThread> {
        let (shared, tls) = (Arc::new(shared), certificate.map(acceptor).transpose()?);
        let address = listener.local_addr()?;
        let hosts = Hosts { address: address.ip(), names: hosts };
        let router = router::router(shared.clone(), hosts, tls.is_some());
        let scheme = if tls.is_some() { "https" } else { "http" };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let serve = async move {
            let sampled = shared.clone();
            tokio::spawn(async move { sampled.sample().await });
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tracing::info!(url = format!("{scheme}://{address}"), "admin listener ready");
            server::serve(listener, router, tls, stopped).await;
            // Changes whose callers have hung up.
            shared.own.changes.close();
            shared.own.changes.wait().await;
            io::Result::Ok(())
        };
        let stopped = stop.clone();
        let (ends, ended) = oneshot::channel::<()>();
        thread::Builder::new().name("admin".to_owned()).spawn(move || {
            // Of this thread, and of those that it starts for what blocks, where the system permits it.
            let _ = rustix::process::setpriority_process(None, NICE);
            let served = runtime.block_on(async {
                tokio::select! {
                    served = serve => served,
                    // The requests under way have had their time.
                    () = async { stopped.cancelled().await; sleep(STOP_TIMEOUT).await } => Ok(()),
                }
            });
            runtime.shutdown_background();
            if let Err(error) = served {
                tracing::error!(%error, "admin.listen cannot be listened on; this process has no admin listener");
            }
            drop(ends);
        })?;
        Ok(AdminThread { stop, ended })
    }

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

fn acceptor(certificate: Certificate) -> io::Result<TlsAcceptor> {
    let resolver = tokio_rustls::rustls::sign::SingleCertAndKey::from(certificate.key);
    let config = crate::tls::server_config(Arc::new(resolver), &[b"http/1.1"]).map_err(io::Error::other)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
