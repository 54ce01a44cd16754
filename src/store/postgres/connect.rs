//! New connections: TLS, deadlines, and what every session of ours has in force.

use std::future::{self, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{ClientWrapper, Connect};
use futures_util::future::poll_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::Trouble;
use super::{LIST, LOCK, tls};
use crate::config::PostgresAt;
use crate::store::StoreError;

/// The schema that everything of ours is in: a database of another program may be shared with it.
pub(super) const SCHEMA: &str = "guildgate";

/// For a connection to be made by TCP to one address, where the URL says nothing.
const CONNECT: Duration = Duration::from_millis(1500);

/// For which a peer may leave what was sent unacknowledged, before the kernel gives a connection up.
/// Every call has a deadline of its own; this one is for connections that wait for nothing.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);

/// A connection at rest is asked after so long, and then so often, whether it is still there: a
/// firewall may have forgotten it.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(3), 3);

/// A transaction that says nothing for so long is a node's that was cut off amid it. The server ends
/// it: it holds the lock that every other writer waits for.
const SILENCE: Duration = Duration::from_secs(2);

/// An acknowledged commit is on the server's disk, whatever the server's or the role's default is.
/// `remote_apply` is more than that, and stays.
const DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', false) \
    WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')";

/// Makes connections, which live on the store's own runtime.
pub(super) struct Dialer {
    config: Config,
    tls: MakeRustlsConnect,
    home: Handle,
    place: String,
}

impl Dialer {
    pub(super) fn new(at: &PostgresAt, home: Handle) -> Result<Self, StoreError> {
        let tls = tls::connector(&at.tls).map_err(|e| StoreError::Failed(format!("origin.store: {e}")))?;
        let mut config = at.server.clone();
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT);
        }
        let (idle, interval, retries) = KEEPALIVE;
        config.keepalives_idle(idle).keepalives_interval(interval).keepalives_retries(retries);
        config.tcp_user_timeout(UNACKNOWLEDGED);
        if config.get_application_name().is_none() {
            config.application_name("guildgate");
        }
        // The last of two settings of one name holds, so these do.
        let ours = format!(
            "{} -c search_path={SCHEMA} -c statement_timeout={} -c lock_timeout={} \
             -c idle_in_transaction_session_timeout={} -c client_min_messages=warning -c jit=off",
            config.get_options().unwrap_or_default(),
            LIST.as_millis(),
            LOCK.as_millis(),
            SILENCE.as_millis(),
        );
        config.options(ours.trim_start());
        Ok(Dialer { config, tls, home, place: at.to_string() })
    }

    /// The server, as an operator knows it.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn home(&self) -> &Handle {
        &self.home
    }

    /// A connection that is in no pool, ready by `until`.
    pub(super) async fn dial(&self, until: Instant, noticed: Option<Arc<Notify>>) -> Result<ClientWrapper, Trouble> {
        let dialed = timeout_at(until, self.start(noticed)).await;
        let (client, task) = dialed.map_err(|_| Trouble::Late)?.map_err(Trouble::Server)?;
        Ok(ClientWrapper::new(client, task))
    }

    /// Connects on the store's runtime. Dropped, it stops, and leaves nothing behind.
    async fn start(&self, noticed: Option<Arc<Notify>>) -> Result<(Client, JoinHandle<()>), Error> {
        let (config, tls) = (self.config.clone(), self.tls.clone());
        let dialing = self.home.spawn(async move {
            let (client, connection) = config.connect(tls).await?;
            let task = tokio::spawn(drive(connection, noticed));
            let guard = AbortOnDrop::of(&task);
            client.batch_execute(DURABLE).await?;
            guard.keep();
            Ok((client, task))
        });
        let _guard = AbortOnDrop::of(&dialing);
        match dialing.await {
            Ok(dialed) => dialed,
            // The store is being dropped, and nobody waits for it.
            Err(_) => future::pending().await,
        }
    }
}

/// Moves a connection on until it ends, passing over what the server remarks.
async fn drive<T>(mut connection: Connection<Socket, T>, noticed: Option<Arc<Notify>>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let (AsyncMessage::Notification(_), Some(noticed)) = (message, &noticed) {
            noticed.notify_one();
        }
    }
}

/// Ends a task with who waits for it, unless it is kept.
struct AbortOnDrop(Option<AbortHandle>);

impl AbortOnDrop {
    fn of<T>(task: &JoinHandle<T>) -> Self {
        AbortOnDrop(Some(task.abort_handle()))
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// The pool's way to a new connection.
pub(super) struct ForPool(pub(super) Arc<Dialer>);

impl Connect for ForPool {
    fn connect(
        &self,
        _: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + '_>> {
        Box::pin(self.0.start(None))
    }
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dialer({})", self.place)
    }
}
