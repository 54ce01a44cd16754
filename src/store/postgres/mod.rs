//! A PostgreSQL database as a store, in the schema `guildgate`: opening it, and connections to it. Each connection has a
//! runtime of its own, which runs only while a call waits; every call has a deadline. What a connection needs is set by
//! statements, and not by start-up parameters, which poolers drop.

mod error;
mod tls;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout_at;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Error, SimpleQueryMessage, Statement};

use super::conn::Row;
use super::*;
use crate::config::PostgresAt;

/// Threads that read for callers, with as many connections at most; lists, the writer and the feed have one more each. A
/// query takes a fraction of a millisecond, so that sixteen do tens of thousands a second, and five nodes fit into the
/// hundred connections that a server usually allows.
pub(super) const READERS: usize = 16;

/// The schema that holds all our tables: the database may be shared with another program.
const SCHEMA: &str = "guildgate";

/// How long connecting may take, the first statements included, and how long connecting to one of several hosts unless the
/// URL says otherwise.
const CONNECT: Duration = Duration::from_secs(4);
const PER_HOST: Duration = Duration::from_millis(1500);

/// After so long the server ends a transaction in which it gets no statement: its node was cut off, and it holds locks that
/// every other writer waits for. One that may wait longer for its locks may be silent for as long: an import may have
/// millions of bad lines to skip.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(2);

/// How long opening waits for another node that opens or migrates the same store, and how long a migration may take. Ten
/// million rows take minutes.
const OPENING: Duration = Duration::from_secs(10 * 60);

/// Advisory locks: of a migration, and of the numbering of changes. The first is "Ggat" in ASCII.
const MIGRATION: i64 = 0x4767_6174;
const FEED: i64 = MIGRATION + 1;

/// Sessions that were there before this one, but for those that wait to open the store.
const OTHERS: &str = "SELECT 1 FROM pg_stat_activity other, pg_stat_activity own WHERE own.pid = pg_backend_pid() \
    AND other.backend_start < own.backend_start AND other.datname = own.datname AND other.usename = own.usename \
    AND other.wait_event IS DISTINCT FROM 'advisory'";

/// Brings the schema up to date while no other node does, or makes it if `if_missing` says so. Returns whether it made the
/// store. Blocks.
pub(super) fn prepare(at: &PostgresAt, if_missing: IfMissing) -> Result<bool, StoreError> {
    let mut conn = PgConn::connect(at, OPENING)?;
    if version(&mut conn, at)? == newest() {
        return Ok(false);
    }
    // Beside the first one it tells a pooler that shares connections, before anything is written.
    drop(PgConn::connect(at, OPENING)?);
    conn.deadline = Instant::now() + OPENING;
    conn.rows("SELECT pg_advisory_lock($1)", values![MIGRATION])?;
    // Another node may have made or migrated it meanwhile.
    let found = version(&mut conn, at)?;
    if found == newest() {
        return Ok(false);
    }
    if found == 0 && if_missing == IfMissing::Refuse {
        return Err(refusals::no_store(at));
    }
    if found > 0 && !conn.rows(OTHERS, &[])?.is_empty() {
        return Err(refusals::older_and_open(at));
    }
    // Where the schema exists, the user may lack the right to make one.
    let has_schema = conn.rows("SELECT 1 FROM pg_namespace WHERE nspname = $1", values![SCHEMA])?;
    if has_schema.is_empty() {
        conn.batch(&format!("CREATE SCHEMA {SCHEMA}"))?;
    }
    // Statements that are sent together are one transaction.
    conn.batch(&migrations::statements(migrations::POSTGRES, found))?;
    Ok(found == 0)
}

/// The state of the store. Nothing is made or changed. Blocks.
pub(super) fn state(at: &PostgresAt) -> Result<StoreState, StoreError> {
    let mut conn = PgConn::connect(at, LIST)?;
    Ok(match version(&mut conn, at)? {
        0 => StoreState::Missing,
        version if version < newest() => StoreState::Older,
        _ => StoreState::Current,
    })
}

/// The version of the schema in the database; 0 where there is none. A newer one is refused.
fn version(conn: &mut PgConn, at: &PostgresAt) -> Result<i64, StoreError> {
    let table = format!("{SCHEMA}.refinery_schema_history");
    let conn: &mut dyn Conn = conn;
    if conn.rows("SELECT 1 WHERE to_regclass($1) IS NOT NULL", values![&*table])?.is_empty() {
        return Ok(0);
    }
    let newest = newest();
    let found = conn.row(&format!("SELECT CAST(max(version) AS bigint) FROM {table}"), &[])?;
    let found = found.map_or(Ok(None), |mut row| row.take(0))?.unwrap_or(0);
    if found > newest { Err(refusals::newer(at, found, newest)) } else { Ok(found) }
}

/// The version of the schema that this binary knows.
pub(super) fn newest() -> i64 {
    migrations::newest(migrations::POSTGRES)
}

/// A connection.
struct PgConn {
    client: Client,
    runtime: Option<Runtime>,
    /// Statements stay prepared.
    statements: HashMap<String, Statement>,
    deadline: Instant,
    location: String,
    feed_position: Option<i64>,
    is_broken: bool,
}

/// Its runtime is ended without waiting, since it may be dropped where nothing may block.
impl Drop for PgConn {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Opens a connection, whose statements the server ends after `longest`. Blocks, for [`CONNECT`] at most.
pub(super) fn open(at: &PostgresAt, longest: Duration) -> Result<Box<dyn Conn>, StoreError> {
    Ok(Box::new(PgConn::connect(at, longest)?))
}

impl PgConn {
    fn connect(at: &PostgresAt, longest: Duration) -> Result<Self, StoreError> {
        let location = at.to_string();
        let deadline = Instant::now() + CONNECT;
        let tls = tls::connector(&at.tls).map_err(|e| StoreError::Failed(format!("origin.store: {e}")))?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| StoreError::Failed(format!("cannot start a runtime for {at}: {e}")))?;
        let mut config = at.server.clone();
        config
            .application_name(at.server.get_application_name().unwrap_or("guildgate"))
            .connect_timeout(at.server.get_connect_timeout().copied().unwrap_or(PER_HOST))
            // A firewall may have forgotten an idle connection.
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(3))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(5));
        let connected = runtime.block_on(async { timeout_at(deadline.into(), config.connect(tls)).await });
        let silent = |_| "it did not answer in time".to_owned();
        let connected = connected.map_err(silent).and_then(|connected| connected.map_err(|e| error::line(&e)));
        let (client, connection) = connected.map_err(|why| error::not_connected(&location, &why))?;
        runtime.spawn(connection);
        let (runtime, statements) = (Some(runtime), HashMap::new());
        let mut conn =
            PgConn { client, runtime, statements, deadline, location, feed_position: None, is_broken: false };
        conn.set_up(longest)?;
        conn.deadline = Instant::now() + CONNECT; // of the next statements, unless they have their own
        Ok(conn)
    }

    /// The first statements. A pooler that gives each transaction another connection of the server would put tables into
    /// another schema, and lose locks and time limits: such a connection was set up already for another of ours.
    fn set_up(&mut self, longest: Duration) -> Result<(), StoreError> {
        // An acknowledged commit is on the server's disk, whatever the default of the server or the role is.
        let sql = format!(
            "SELECT current_setting('guildgate.session', true); SET guildgate.session = 'open'; \
             SET search_path = {SCHEMA}; SET statement_timeout = {}; SET jit = off; SET synchronous_commit = on",
            longest.as_millis()
        );
        let said = self.call(async |client, _| client.simple_query(&sql).await)?;
        let is_ours = |said: &SimpleQueryMessage| match said {
            SimpleQueryMessage::Row(row) => row.get(0).is_some_and(|session| !session.is_empty()),
            _ => false,
        };
        if said.iter().any(is_ours) { Err(error::behind_pooler(&self.location)) } else { Ok(()) }
    }

    /// Waits for a call to the server, until the deadline.
    fn call<T>(
        &mut self,
        call: impl AsyncFnOnce(&mut Client, &mut HashMap<String, Statement>) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let PgConn { runtime, client, statements, deadline, .. } = self;
        let called = async { timeout_at((*deadline).into(), call(client, statements)).await };
        let Some(Ok(called)) = runtime.as_ref().map(|runtime| runtime.block_on(called)) else {
            self.is_broken = true;
            return Err(StoreError::Failed(format!("{} did not answer in time; try again", self.location)));
        };
        called.map_err(|e| {
            self.is_broken |= error::ends_session(&e);
            error::of(&e, &self.location)
        })
    }
}

/// The statement, prepared once on each connection.
async fn prepared<'s>(
    client: &Client,
    statements: &'s mut HashMap<String, Statement>,
    sql: &str,
) -> Result<&'s Statement, Error> {
    if !statements.contains_key(sql) {
        statements.insert(sql.to_owned(), client.prepare(sql).await?);
    }
    Ok(&statements[sql])
}

fn as_params<'v>(values: &'v [Value<'_>]) -> Vec<&'v (dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

impl Conn for PgConn {
    fn rows(&mut self, sql: &str, params: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
        self.call(async |client, statements| {
            let found = client.query(prepared(client, statements, sql).await?, &as_params(params)).await?;
            found.iter().map(row_of).collect()
        })
    }

    fn execute(&mut self, sql: &str, params: &[Value<'_>]) -> Result<u64, StoreError> {
        self.call(async |client, statements| {
            client.execute(prepared(client, statements, sql).await?, &as_params(params)).await
        })
    }

    fn batch(&mut self, sql: &str) -> Result<(), StoreError> {
        self.call(async |client, _| client.batch_execute(sql).await)
    }

    /// Under another level, which may be the default of the server, a transaction that has waited for a lock would fail.
    fn begin(&mut self, wait: Duration) -> Result<(), StoreError> {
        let lock = wait.as_millis().max(1);
        let idle = wait.max(IDLE_IN_TRANSACTION).as_millis();
        self.batch(&format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {lock}; \
             SET LOCAL idle_in_transaction_session_timeout = {idle}"
        ))
    }

    fn begin_snapshot(&mut self) -> Result<(), StoreError> {
        self.batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        self.batch("COMMIT").map_err(|error| {
            self.is_broken = true;
            StoreError::Unknown(format!("a commit was sent and not confirmed, so that it may have happened ({error})"))
        })
    }

    fn lock_feed(&mut self) -> Result<(), StoreError> {
        self.rows("SELECT pg_advisory_xact_lock($1)", values![FEED]).map(drop)
    }

    fn is_read_only(&mut self) -> bool {
        let found = self.rows("SELECT 1 WHERE current_setting('transaction_read_only') = 'on'", &[]);
        found.is_ok_and(|found| !found.is_empty())
    }

    fn like(&self) -> &'static str {
        "ILIKE"
    }

    fn for_update(&self) -> &'static str {
        " FOR UPDATE"
    }

    fn feed_position(&mut self) -> &mut Option<i64> {
        &mut self.feed_position
    }

    fn set_deadline(&mut self, until: Instant) {
        self.deadline = until;
    }

    fn is_usable(&self) -> bool {
        !self.is_broken && !self.client.is_closed()
    }
}

fn row_of(row: &tokio_postgres::Row) -> Result<Row, Error> {
    let value = |at: usize, kind: &Type| {
        Ok(match *kind {
            Type::INT4 => row.try_get::<_, Option<i32>>(at)?.map(i64::from).into(),
            Type::INT8 => row.try_get::<_, Option<i64>>(at)?.into(),
            Type::BYTEA => {
                row.try_get::<_, Option<Vec<u8>>>(at)?.map_or(Value::Null, |bytes| Value::Blob(bytes.into()))
            }
            Type::VOID => Value::Null,
            _ => row.try_get::<_, Option<String>>(at)?.into(),
        })
    };
    row.columns().iter().enumerate().map(|(at, column)| value(at, column.type_())).collect::<Result<_, _>>().map(Row)
}

impl ToSql for Value<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self {
            Value::Null => return Ok(IsNull::Yes),
            Value::Int(number) if *kind == Type::INT4 => out.extend_from_slice(&i32::try_from(*number)?.to_be_bytes()),
            Value::Int(number) => out.extend_from_slice(&number.to_be_bytes()),
            Value::Text(text) => out.extend_from_slice(text.as_bytes()),
            Value::Blob(bytes) => out.extend_from_slice(bytes),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true // the server checks lengths and texts
    }

    to_sql_checked!();
}
