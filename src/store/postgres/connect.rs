//! New connections: TLS, deadlines, and what every session of ours has in force.

use std::future;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use futures_util::future::poll_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::{AsyncMessage, CancelToken, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::Trouble;
use super::hosts::{Hosts, Way};
use super::line::{DIAL, Dialing};
use super::slots::{AGAIN, Slots};
use super::{LIST, LOCK, tls};
use crate::config::PostgresAt;
use crate::store::StoreError;

/// The schema that everything of ours is in: a database of another program may be shared with it.
pub(super) const SCHEMA: &str = "guildgate";

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

/// For a server to be told that nobody waits for what it does.
const CANCEL: Duration = Duration::from_secs(1);

/// Makes connections, which live on the store's own runtime.
pub(super) struct Dialer {
    hosts: Arc<Hosts>,
    slots: Slots,
    tls: MakeRustlsConnect,
    home: Handle,
    place: String,
}

impl Dialer {
    pub(super) fn new(at: &PostgresAt, home: Handle) -> Result<Self, StoreError> {
        let tls = tls::connector(&at.tls).map_err(|e| StoreError::Failed(format!("origin.store: {e}")))?;
        let mut config = at.server.clone();
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
        let hosts = Arc::new(Hosts::of(&config));
        Ok(Dialer { hosts, slots: Slots::default(), tls, home, place: at.to_string() })
    }

    /// The server, as an operator knows it.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(super) fn home(&self) -> &Handle {
        &self.home
    }

    /// A connection to the first host that takes writes, ready by `until`. It is made on the store's
    /// runtime; dropped, this stops and leaves nothing behind.
    pub(super) async fn dial(
        self: &Arc<Self>,
        until: Instant,
        noticed: Option<Arc<Notify>>,
    ) -> Result<Session, Trouble> {
        let dialer = self.clone();
        let dialing = self.home.spawn(async move { dialer.ask_all(until, noticed).await });
        let _guard = AbortOnDrop::of(&dialing);
        match dialing.await {
            Ok(dialed) => dialed,
            // The store is being dropped, and nobody waits for it.
            Err(_) => future::pending().await,
        }
    }

    /// A connection that the node cannot do without, made whether or not anybody waits for it.
    pub(super) fn dial_aside(self: &Arc<Self>) -> Dialing {
        let dialer = self.clone();
        self.home.spawn(async move { dialer.dial_first(Instant::now() + DIAL, None).await })
    }

    /// A connection that the node cannot do without: where the server has no slot left, the pool gives some up.
    pub(super) async fn dial_first(&self, until: Instant, noticed: Option<Arc<Notify>>) -> Result<Session, Trouble> {
        loop {
            match self.ask_all(until, noticed.clone()).await {
                Err(trouble) if trouble.is_full() && Instant::now() + AGAIN < until => {
                    self.slots.are_wanted();
                    sleep(AGAIN).await;
                }
                dialed => return dialed,
            }
        }
    }

    /// Asks the hosts in turn. One that is silent has its share of the time and no more.
    async fn ask_all(&self, until: Instant, noticed: Option<Arc<Notify>>) -> Result<Session, Trouble> {
        let mut last = Trouble::Late;
        let (hosts, good) = (self.hosts.in_order(), self.hosts.good());
        for (before, host) in hosts.iter().enumerate() {
            let began = Instant::now();
            let until = self.hosts.turn(began, until, hosts.len() - before);
            match timeout_at(until, self.hosts.ways(*host)).await {
                Ok(Ok(ways)) => match self.ask(&ways, good, until, noticed.as_ref()).await {
                    Ok(session) => return Ok(session),
                    Err(Trouble::Late) => self.hosts.was_silent(*host, began.elapsed()),
                    // That one takes writes, and the others may not.
                    Err(_) if last.is_full() => {}
                    Err(trouble) => last = trouble,
                },
                Ok(Err(_)) if last.is_full() => {}
                Ok(Err(error)) => {
                    let line = format!(
                        "{}: the host {} cannot be looked up: {error}; check its name in origin.store, and try again",
                        self.place,
                        self.hosts.named(*host)
                    );
                    last = Trouble::Own(StoreError::Busy(line));
                }
                Err(_) => self.hosts.was_silent(*host, began.elapsed()),
            }
        }
        Err(last)
    }

    /// Asks at a host's addresses in turn. `good` was the way of new connections when this dial began.
    async fn ask(
        &self,
        ways: &[Way],
        good: Option<Way>,
        until: Instant,
        noticed: Option<&Arc<Notify>>,
    ) -> Result<Session, Trouble> {
        let mut last = Trouble::Late;
        for (before, way) in ways.iter().enumerate() {
            let began = Instant::now();
            let until = self.hosts.turn(began, until, ways.len() - before);
            match timeout_at(until, self.connect(*way, noticed.cloned())).await {
                Ok(Ok(session)) if self.hosts.was_good(*way, good) => return Ok(session),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    self.hosts.answered(*way);
                    if !last.is_full() {
                        last = Trouble::Server(error);
                    }
                }
                Err(_) => self.hosts.was_silent(*way, began.elapsed()),
            }
        }
        Err(last)
    }

    /// A connection by this way, on which a first statement was answered.
    async fn connect(&self, way: Way, noticed: Option<Arc<Notify>>) -> Result<Session, Error> {
        let (client, connection) = self.hosts.config(way).connect(self.tls.clone()).await?;
        let task = tokio::spawn(drive(connection, noticed));
        // From here on the task ends with it.
        let end = task.abort_handle();
        let session =
            Session { client: ClientWrapper::new(client, task), end, ended: false, way, hosts: self.hosts.clone() };
        session.batch_execute(DURABLE).await?;
        Ok(session)
    }

    /// Ends a connection and what the server does on it. Blocks until the server was told, or could not
    /// be for a second.
    pub(super) fn cut(&self, connection: &AbortHandle, statement: &CancelToken) {
        // First, so that nothing is begun on it any more.
        connection.abort();
        let (told, heard) = mpsc::channel();
        let (tls, statement) = (self.tls.clone(), statement.clone());
        self.home.spawn(async move {
            let _ = timeout(CANCEL, statement.cancel_query(tls)).await;
            let _ = told.send(());
        });
        let _ = heard.recv_timeout(CANCEL);
    }
}

/// A connection that is open, as far as is known, and where it leads.
#[derive(Debug)]
pub(super) struct Session {
    client: ClientWrapper,
    end: AbortHandle,
    ended: bool,
    way: Way,
    hosts: Arc<Hosts>,
}

impl Session {
    /// Whether it is open, and leads to where new connections do. Where it leads elsewhere there is a server that
    /// was given up: whatever it says now, another one has taken its place.
    pub(super) fn is_usable(&self) -> bool {
        !self.ended && !self.client.is_closed() && self.is_followed()
    }

    /// Whether it leads to where new connections do: what a server says that was given up meanwhile is not to be
    /// gone by.
    pub(super) fn is_followed(&self) -> bool {
        self.hosts.is_followed(self.way)
    }

    /// Until it leads to a server that was given up.
    pub(super) async fn left_behind(&self) {
        self.hosts.left(self.way).await;
    }

    /// Ends it now, whatever it is amid.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.end.abort();
    }

    /// What ends it, for another hand.
    pub(super) fn ending(&self) -> AbortHandle {
        self.end.clone()
    }
}

impl Deref for Session {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut ClientWrapper {
        &mut self.client
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

/// Ends a task with who waits for it.
#[derive(Debug)]
pub(super) struct AbortOnDrop(AbortHandle);

impl AbortOnDrop {
    pub(super) fn of<T>(task: &JoinHandle<T>) -> Self {
        AbortOnDrop(task.abort_handle())
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dialer({})", self.place)
    }
}
