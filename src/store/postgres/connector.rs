//! Makes connections to the server that takes writes, on the store's own runtime. When a new connection leads
//! to another server than before (a fail-over), the connections to the server before are closed.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use deadpool_postgres::ClientWrapper as Client;
use futures_util::future::poll_fn;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::{AsyncMessage, CancelToken, Config, Connection, Error, SimpleQueryMessage, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;

use super::error::{CallError, lost_settings, transaction_mode};
use super::transaction::CHANNEL;
use super::{LIST, LOCK, tls};
use crate::config::PostgresAt;
use crate::store::StoreError;

/// The schema that holds all our tables: the database may be shared with another program.
pub(super) const SCHEMA: &str = "guildgate";

/// How long connecting to a host may take before the next one is tried, unless the URL has a `connect_timeout`:
/// TCP, TLS, the password and the first statements. A server that hangs may still accept connections.
const PER_HOST: Duration = Duration::from_millis(1500);

/// How long it may take at the last host.
const LAST_HOST: Duration = Duration::from_secs(5);

/// For which sent bytes may stay unacknowledged before the kernel closes the connection. Every call has a
/// deadline of its own; this one is for idle connections.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);

/// TCP keepalive of an idle connection, which a firewall may have forgotten: after this long, then at this
/// interval, so many times.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(3), 3);

/// After so long the server ends a transaction in which it gets no statement. Its node was cut off, and it
/// holds the lock that every other writer waits for.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(2);

/// How long a server may take to cancel a statement.
const CANCEL: Duration = Duration::from_secs(1);

/// How long the test for a pooler in transaction mode may take.
const PROBE: Duration = Duration::from_millis(500);

/// What each connection asks for as it begins and cannot do without, as the server shows it, times in ms. Under another
/// `search_path` our tables would be looked for, and made, among those of others.
fn settings() -> [(&'static str, String); 4] {
    let ms = |time: Duration| time.as_millis().to_string();
    [
        ("search_path", SCHEMA.to_owned()),
        ("statement_timeout", ms(LIST)),
        ("lock_timeout", ms(LOCK)),
        ("idle_in_transaction_session_timeout", ms(IDLE_IN_TRANSACTION)),
    ]
}

/// The first statements on each connection. An acknowledged commit is on the server's disk, whatever the
/// default of the server or the role is; `remote_apply` is stronger, and stays. The last one tells servers behind
/// one address apart (no two of them started in the same microsecond), and the server's processes; and it reads back
/// [`settings`], since a pooler in between may drop them.
fn first_statements() -> String {
    let asked = settings().map(|(name, value)| format!("('{name}', '{value}')")).join(", ");
    format!(
        "SELECT set_config('synchronous_commit', 'on', false) \
            WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply'); \
        SELECT extract(epoch FROM pg_postmaster_start_time())::text, pg_backend_pid()::text, \
            (SELECT string_agg(format('%s is %s instead of %s', asked.name, setting, value), ', ') \
            FROM pg_settings JOIN (VALUES {asked}) AS asked (name, value) USING (name) WHERE setting <> value)"
    )
}

/// Makes connections.
pub(super) struct Connector {
    /// How to connect to each host of the URL, in its order.
    hosts: Vec<Config>,
    per_host: Duration,
    /// `load_balance_hosts=random`: any server that takes writes is as good as another.
    any_server: bool,
    current: Mutex<Current>,
    pool_must_yield: AtomicBool,
    /// Whether it is known that no pooler in transaction mode is in between.
    is_probed: AtomicBool,
    tls: MakeRustlsConnect,
    runtime: Handle,
    location: String,
}

/// The server that new connections lead to.
#[derive(Debug, Default)]
struct Current {
    /// `None` before the first connection.
    server: Option<Server>,
    /// The connections to it, closed ones among them.
    connections: Vec<AbortHandle>,
}

#[derive(Clone, Debug, PartialEq)]
struct Server {
    /// The host by which it is reached, as its index in the URL.
    host: usize,
    /// See [`first_statements`].
    started: String,
}

/// What a new connection says of itself: see [`first_statements`].
struct Greeting {
    server: Server,
    /// The server's process that answers it.
    process: Option<String>,
    /// What was asked for and is not in force.
    lost: Option<String>,
}

impl Connector {
    pub(super) fn new(at: &PostgresAt, runtime: Handle) -> Result<Self, StoreError> {
        let server = &at.server;
        let tls = tls::connector(&at.tls).map_err(|e| StoreError::Failed(format!("origin.store: {e}")))?;
        let hosts = server.get_hosts().len().max(server.get_hostaddrs().len());
        Ok(Connector {
            hosts: (0..hosts).map(|host| config_of_host(server, host)).collect(),
            per_host: server.get_connect_timeout().copied().unwrap_or(PER_HOST),
            any_server: server.get_load_balance_hosts() == LoadBalanceHosts::Random,
            current: Mutex::default(),
            pool_must_yield: AtomicBool::new(false),
            is_probed: AtomicBool::new(false),
            tls,
            runtime,
            location: at.to_string(),
        })
    }

    /// The server as messages name it.
    pub(super) fn location(&self) -> &str {
        &self.location
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Whether the pool must leave the server's free connection slots to dedicated connections.
    pub(super) fn pool_must_yield(&self) -> bool {
        self.pool_must_yield.load(Ordering::SeqCst)
    }

    pub(super) fn set_pool_must_yield(&self, must_yield: bool) {
        self.pool_must_yield.store(must_yield, Ordering::SeqCst);
    }

    /// As [`Connector::try_hosts`], by `until`. Dropped, this leaves nothing behind.
    pub(super) async fn connect(
        self: &Arc<Self>,
        until: Instant,
        notices: Option<Arc<Notify>>,
    ) -> Result<Session, CallError> {
        let connector = self.clone();
        let task = self.runtime.spawn(async move { connector.try_hosts(notices).await });
        let connected = timeout_at(until, AbortOnDropHandle::new(task)).await.map_err(|_| CallError::Timeout)?;
        // The task is cancelled only while the store is dropped.
        connected.unwrap_or(Err(CallError::Timeout))
    }

    /// Connects to the first host that takes writes; the current one is tried first. `notices` is notified of
    /// commits. Runs on the store's runtime.
    pub(super) async fn try_hosts(&self, notices: Option<Arc<Notify>>) -> Result<Session, CallError> {
        let before = self.current.lock().server.clone();
        let mut hosts: VecDeque<usize> = (0..self.hosts.len()).collect();
        if self.any_server {
            fastrand::shuffle(hosts.make_contiguous());
        } else {
            hosts.rotate_left(before.as_ref().map_or(0, |server| server.host));
        }
        let (mut failed, mut silent) = (CallError::Timeout, Vec::new());
        while let Some(host) = hosts.pop_front() {
            let patience = if hosts.is_empty() { LAST_HOST.max(self.per_host) } else { self.per_host };
            match timeout(patience, self.try_host(host, notices.clone())).await {
                Ok(Ok((session, server))) => {
                    if self.is_accepted(&session, server, before.as_ref(), &silent) {
                        return Ok(session);
                    }
                }
                // This server takes writes, and cannot be used as it is reached.
                Ok(Err(error @ CallError::Store(_))) => return Err(error),
                // A server without a free slot takes writes; the others may not.
                Ok(Err(error)) if !failed.is_full() => failed = error,
                Ok(Err(_)) => {}
                Err(_) => silent.push(host_name(&self.hosts[host])),
            }
        }
        Err(failed)
    }

    /// Connects to one host; returns which server it is. Refuses a pooler in between that drops the settings, or that is in
    /// transaction mode: it would give one caller's locks, prepared statements and notices to another.
    async fn try_host(&self, host: usize, notices: Option<Arc<Notify>>) -> Result<(Session, Server), CallError> {
        let (session, greeting) = self.open(host, notices).await.map_err(CallError::Server)?;
        if !self.is_probed.load(Ordering::Relaxed)
            && let Ok(Ok((_other, of_other))) = timeout(PROBE, self.open(host, None)).await
        {
            // Two connections that are both open have the same process only if each has it for a transaction at a time.
            if (&of_other.server, &of_other.process) == (&greeting.server, &greeting.process) {
                return Err(transaction_mode(&self.location).into());
            }
            self.is_probed.store(greeting.lost.is_none(), Ordering::Relaxed);
        }
        match greeting.lost {
            Some(lost) => Err(lost_settings(&self.location, &lost).into()),
            None => Ok((session, greeting.server)),
        }
    }

    /// Connects to one host and sends the first statements.
    async fn open(&self, host: usize, notices: Option<Arc<Notify>>) -> Result<(Session, Greeting), Error> {
        let (client, connection) = self.hosts[host].connect(self.tls.clone()).await?;
        let listen = if notices.is_some() { format!("LISTEN {CHANNEL}; ") } else { String::new() };
        let task = tokio::spawn(drive(connection, notices));
        let ending = task.abort_handle();
        let session = Session { client: Client::new(client, task), ending, ended: false };
        let answers = session.simple_query(&format!("{listen}{}", first_statements())).await?;
        let last = answers.iter().rev().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let column = |at| last.and_then(|row| row.get(at)).map(str::to_owned);
        let server = Server { host, started: column(0).unwrap_or_default() };
        Ok((session, Greeting { server, process: column(1), lost: column(2) }))
    }

    /// Makes `server` the current one, and closes the connections to the one before: what that answers from
    /// now on must not count, since another server takes the writes. False where the current server has
    /// changed since it was `before`: nothing leads back to a server that was left.
    fn is_accepted(&self, session: &Session, server: Server, before: Option<&Server>, silent: &[String]) -> bool {
        if self.any_server {
            return true;
        }
        let mut current = self.current.lock();
        if current.server.as_ref() != Some(&server) {
            if current.server.as_ref() != before {
                return false;
            }
            current.connections.drain(..).for_each(|connection| connection.abort());
            if before.is_some() || !silent.is_empty() {
                let why = silent.iter().map(|host| format!("; {host} does not answer")).collect::<String>();
                tracing::warn!("now using the PostgreSQL server at {}{why}", host_name(&self.hosts[server.host]));
            }
            current.server = Some(server);
        }
        current.connections.retain(|connection| !connection.is_finished());
        current.connections.push(session.ending.clone());
        true
    }

    /// Cancels what the server runs on a connection. Blocks for [`CANCEL`] at most.
    pub(super) fn cancel(&self, statement: CancelToken) {
        let (done, cancelled) = mpsc::channel();
        let tls = self.tls.clone();
        self.runtime.spawn(async move {
            let _ = timeout(CANCEL, statement.cancel_query(tls)).await;
            let _ = done.send(());
        });
        let _ = cancelled.recv_timeout(CANCEL);
    }
}

/// A connection that is ready for statements.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    ending: AbortHandle,
    ended: bool,
}

impl Session {
    pub(super) fn is_usable(&self) -> bool {
        !self.ended && !self.client.is_closed()
    }

    /// Closes it at once, even during a transaction.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.ending.abort();
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// Moves a connection's bytes until it ends.
async fn drive<T>(mut connection: Connection<Socket, T>, notices: Option<Arc<Notify>>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let (AsyncMessage::Notification(_), Some(notices)) = (message, &notices) {
            notices.notify_one();
        }
    }
}

/// How to connect to one host of several, so that each has its own timeout: tokio-postgres bounds only the
/// TCP connect of each. A [`Config`]'s hosts cannot be removed from it.
fn config_of_host(server: &Config, host: usize) -> Config {
    let mut config = Config::new();
    match server.get_hosts().get(host) {
        Some(Host::Tcp(name)) => drop(config.host(name)),
        Some(Host::Unix(folder)) => drop(config.host_path(folder)),
        None => {}
    }
    server.get_hostaddrs().get(host).map(|ip| config.hostaddr(*ip));
    server.get_ports().get(host).or(server.get_ports().first()).map(|port| config.port(*port));
    server.get_user().map(|user| config.user(user));
    server.get_password().map(|password| config.password(password));
    server.get_dbname().map(|name| config.dbname(name));
    // The last of two settings of one name counts.
    let asked: String = settings().iter().map(|(name, value)| format!(" -c {name}={value}")).collect();
    let options =
        format!("{}{asked} -c client_min_messages=warning -c jit=off", server.get_options().unwrap_or_default());
    let (idle, interval, retries) = KEEPALIVE;
    config
        .options(options.trim_start())
        .application_name(server.get_application_name().unwrap_or("guildgate"))
        .ssl_mode(server.get_ssl_mode())
        .ssl_negotiation(server.get_ssl_negotiation())
        .channel_binding(server.get_channel_binding())
        .target_session_attrs(server.get_target_session_attrs())
        .keepalives(server.get_keepalives())
        .keepalives_idle(idle)
        .keepalives_interval(interval)
        .keepalives_retries(retries)
        .tcp_user_timeout(UNACKNOWLEDGED);
    config
}

/// A host as messages name it.
fn host_name(config: &Config) -> String {
    let port = config.get_ports().first().unwrap_or(&5432);
    match (config.get_hosts().first(), config.get_hostaddrs().first()) {
        (Some(Host::Tcp(name)), _) => format!("{name}:{port}"),
        (Some(Host::Unix(folder)), _) => format!("{}:{port}", folder.display()),
        (None, Some(ip)) => format!("{ip}:{port}"),
        (None, None) => format!("port {port}"),
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connector({})", self.location)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::postgres::runtime::StoreRuntime;
    use crate::store::postgres::tests::server::Postgres;

    fn connector(url: &str, runtime: &StoreRuntime) -> Arc<Connector> {
        let at = PostgresAt::parse(url, Path::new("/")).unwrap();
        Arc::new(Connector::new(&at, runtime.handle().clone()).unwrap())
    }

    #[tokio::test]
    async fn connecting_to_another_server_closes_the_connections_to_the_previous_one_for_good() {
        let (runtime, url) = (StoreRuntime::start().unwrap(), Postgres::shared().database().await);
        let connector = connector(&url, &runtime);
        let until = Instant::now() + Duration::from_secs(60);
        let session = connector.connect(until, None).await.unwrap();
        let before = connector.current.lock().server.clone();
        assert!(before.as_ref().is_some_and(|server| !server.started.is_empty()));
        let again = connector.connect(until, None).await.unwrap();
        assert_eq!(connector.current.lock().server, before, "it is the same server");
        let another = Server { host: 0, started: "later".to_owned() };
        let accepts = |server: &Server| connector.is_accepted(&again, server.clone(), before.as_ref(), &[]);
        assert!(accepts(&another));
        assert!(session.simple_query("SELECT 1").await.unwrap_err().is_closed());
        assert!(!accepts(before.as_ref().unwrap()), "it was left while this connection was made");
        assert!(accepts(&another));
    }

    #[test]
    fn each_host_has_its_own_settings_and_those_of_the_url() {
        let runtime = StoreRuntime::start().unwrap();
        let two = connector("postgres://me:hunter2@a:7,b:8/db?hostaddr=127.0.0.2,127.0.0.3", &runtime);
        let [a, b] = &two.hosts[..] else { panic!("{:?}", two.hosts) };
        assert_eq!((host_name(a), host_name(b)), ("a:7".into(), "b:8".into()));
        assert_eq!(b.get_hosts(), [Host::Tcp("b".into())], "the certificate must be for this name");
        assert_eq!((b.get_hostaddrs(), b.get_ports()), (&[[127, 0, 0, 3].into()][..], &[8][..]));
        assert_eq!((b.get_user(), b.get_password(), b.get_dbname()), (Some("me"), Some(&b"hunter2"[..]), Some("db")));
        let socket = connector("postgres://me@%2Frun%2Fpostgresql:8/db", &runtime);
        assert_eq!(socket.hosts[0].get_hosts(), [Host::Unix("/run/postgresql".into())]);
    }
}
