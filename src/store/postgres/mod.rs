//! A PostgreSQL database as a store, in the schema `guildgate`: opening it, and connections to it. Each connection has a
//! runtime of its own, which runs only while a call waits; every call has a deadline. What a connection needs is set by
//! statements, and not by start-up parameters, which poolers drop.

mod error;
mod tls;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error as StdError;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use futures_util::TryStreamExt;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{timeout, timeout_at};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, Error, Statement};

use super::conn::{Access, Row};
use super::*;
use crate::config::PostgresAt;

pub use tls::any_certificate;

mod embedded {
    refinery::embed_migrations!("src/store/migrations/postgres");
}

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

/// For which sent bytes may stay unacknowledged before the kernel closes the connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);

/// TCP keepalive of an idle connection, which a firewall may have forgotten: after this long, then at this interval, so many
/// times.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(3), 3);

/// After so long the server ends a transaction in which it gets no statement: its node was cut off, and it holds locks that
/// every other writer waits for.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(2);

/// How long one statement of an import or export may take, and its commit.
const BULK: Duration = Duration::from_secs(30 * 60);

/// How long opening waits for another node that opens or migrates the same store, and how long a migration may take. Ten
/// million rows take minutes.
const OPENING: Duration = Duration::from_secs(10 * 60);

/// How long the server may still list a session that its client has ended, and how often that is looked at.
const SESSION_ENDS: Duration = Duration::from_secs(1);
const SESSION_POLL: Duration = Duration::from_millis(50);

/// Advisory locks: of a migration, and of the numbering of changes. The first is "Ggat" in ASCII.
const MIGRATION: i64 = 0x4767_6174;
const FEED: i64 = MIGRATION + 1;

/// The oldest version for which the tests have passed.
const OLDEST: i64 = 13;

/// Brings the schema up to date while no other node does, or makes it if `if_missing` says so. Returns whether it made the
/// store. Blocks.
pub(super) fn prepare(at: &PostgresAt, if_missing: IfMissing) -> Result<bool, StoreError> {
    let mut conn = connect_first(at)?;
    if version(&mut conn, at)? == newest() {
        return Ok(false);
    }
    conn.deadline = Instant::now() + OPENING;
    let wait = OPENING.as_millis();
    conn.batch(&format!("SET lock_timeout = {wait}"))?;
    conn.batch(&format!("SET statement_timeout = {wait}"))?;
    conn.rows("SELECT pg_advisory_lock($1)", values![MIGRATION])?;
    // Another node may have made or migrated it meanwhile.
    let found = version(&mut conn, at)?;
    if found == newest() {
        return Ok(false);
    }
    if found == 0 && if_missing == IfMissing::Refuse {
        return Err(refusals::no_store(at));
    }
    if found > 0 {
        refuse_beside_others(&mut conn, at)?;
    }
    // Where the schema exists, the user may lack the right to make one.
    let has_schema = conn.rows("SELECT 1 FROM pg_namespace WHERE nspname = $1", values![SCHEMA])?;
    if has_schema.is_empty() {
        conn.batch(&format!("CREATE SCHEMA {SCHEMA}"))?;
    }
    let runner = embedded::migrations::runner().set_grouped(true);
    let PgConn { runtime, client, .. } = &mut conn;
    runtime.block_on(runner.run_async(client)).map_err(|e| {
        let server = e.source().and_then(|source| source.downcast_ref::<Error>());
        let why = server.map_or_else(|| e.to_string(), error::line);
        StoreError::Failed(format!("{at} could not be brought up to date: {why}"))
    })?;
    Ok(found == 0)
}

/// The state of the store. Nothing is made or changed. Blocks.
pub(super) fn state(at: &PostgresAt) -> Result<StoreState, StoreError> {
    let mut conn = connect_first(at)?;
    Ok(match version(&mut conn, at)? {
        0 => StoreState::Missing,
        version if version < newest() => StoreState::Older,
        _ => StoreState::Current,
    })
}

/// The first connection. A second one beside it tells a pooler that shares connections, before anything is written.
fn connect_first(at: &PostgresAt) -> Result<PgConn, StoreError> {
    let mut conn = PgConn::connect(at, Access::Write).map_err(error::of_first_connection)?;
    PgConn::connect(at, Access::Read)?;
    conn.deadline = Instant::now() + CONNECT;
    refuse_unusable(&mut conn)?;
    Ok(conn)
}

fn refuse_unusable(conn: &mut PgConn) -> Result<(), StoreError> {
    let sql = "SELECT current_setting('server_encoding'), current_setting('fsync') = 'on', \
        CAST(current_setting('server_version_num') AS bigint) / 10000";
    let Some(mut row) = conn.rows(sql, &[])?.pop() else { return Ok(()) };
    let (encoding, fsync, version): (String, bool, i64) = (row.take(0)?, row.take(1)?, row.take(2)?);
    let at = &conn.location;
    if encoding != "UTF8" {
        return Err(StoreError::Failed(format!(
            "{at} has the encoding {encoding}, which not every name fits into; make a database with UTF8 (createdb -E UTF8)"
        )));
    }
    if version < OLDEST {
        return Err(StoreError::Failed(format!("{at} is PostgreSQL {version}; the oldest that will do is {OLDEST}")));
    }
    if !fsync {
        tracing::warn!(
            "{at} runs with fsync = off: a power failure there may lose writes that were answered with success"
        );
    }
    Ok(())
}

/// The version of the schema in the database; 0 where there is none. A newer one is refused.
fn version(conn: &mut PgConn, at: &PostgresAt) -> Result<i64, StoreError> {
    let table = format!("{SCHEMA}.refinery_schema_history");
    let conn: &mut dyn Conn = conn;
    let (has_table, newest) = (conn.row("SELECT to_regclass($1) IS NOT NULL", values![&*table])?, newest());
    if !has_table.map_or(Ok(false), |mut row| row.take(0))? {
        return Ok(0);
    }
    let found = conn.row(&format!("SELECT CAST(max(version) AS bigint) FROM {table}"), &[])?;
    let found = found.map_or(Ok(None), |mut row| row.take(0))?.unwrap_or(0);
    if found > newest { Err(refusals::newer(at, found, newest)) } else { Ok(found) }
}

/// Refuses to migrate while other nodes have the store open: older ones would not know what they find.
fn refuse_beside_others(conn: &mut PgConn, at: &PostgresAt) -> Result<(), StoreError> {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user \
        AND pid <> pg_backend_pid() AND wait_event IS DISTINCT FROM 'advisory'";
    let until = Instant::now() + SESSION_ENDS;
    let others = loop {
        let others: i64 = conn.rows(sql, &[])?.pop().map_or(Ok(0), |mut row| row.take(0))?;
        if others == 0 {
            return Ok(());
        }
        if Instant::now() >= until {
            break others;
        }
        std::thread::sleep(SESSION_POLL);
    };
    Err(StoreError::Failed(format!(
        "{at} was written by an older Guildgate, and {others} connections of other nodes or commands have it open; stop them \
         and try again: the schema is brought up to date then"
    )))
}

/// The version of the schema that this binary knows.
pub(super) fn newest() -> i64 {
    newest_version(&embedded::migrations::runner())
}

/// A connection.
struct PgConn {
    client: Client,
    runtime: ConnRuntime,
    /// Statements stay prepared.
    statements: HashMap<String, Statement>,
    deadline: Instant,
    location: String,
    serial: u64,
    is_broken: bool,
}

/// The runtime of a connection. It may be dropped where nothing may block.
struct ConnRuntime(Option<Runtime>);

impl Deref for ConnRuntime {
    type Target = Runtime;

    #[expect(clippy::expect_used, reason = "only dropping takes it out")]
    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("the runtime is there")
    }
}

impl Drop for ConnRuntime {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Opens a connection. Blocks, for [`CONNECT`] at most.
pub(super) fn open(at: &PostgresAt, access: Access) -> Result<Box<dyn Conn>, StoreError> {
    Ok(Box::new(PgConn::connect(at, access)?))
}

impl PgConn {
    fn connect(at: &PostgresAt, access: Access) -> Result<Self, StoreError> {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let deadline = Instant::now() + CONNECT;
        let tls = tls::connector(&at.tls).map_err(|e| StoreError::Failed(format!("origin.store: {e}")))?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| StoreError::Failed(format!("cannot start a runtime for {at}: {e}")))?;
        let runtime = ConnRuntime(Some(runtime));
        let mut config = at.server.clone();
        let (idle, interval, retries) = KEEPALIVE;
        config
            .application_name(at.server.get_application_name().unwrap_or("guildgate"))
            .connect_timeout(at.server.get_connect_timeout().copied().unwrap_or(PER_HOST))
            .keepalives_idle(idle)
            .keepalives_interval(interval)
            .keepalives_retries(retries)
            .tcp_user_timeout(UNACKNOWLEDGED);
        let location = at.to_string();
        let connect = |config: &Config| {
            runtime.block_on(async { timeout_at(deadline.into(), config.connect(tls.clone())).await })
        };
        let mut connected = connect(&config);
        // Reads go on at a server that became read-only.
        let is_read_only = access == Access::Read && matches!(&connected, Ok(Err(e)) if error::is_read_only(e));
        if is_read_only {
            connected = connect(config.target_session_attrs(TargetSessionAttrs::Any));
        }
        let (client, connection) =
            connected.map_err(|_| error::timed_out(&location))?.map_err(|e| error::of(&e, &location))?;
        runtime.spawn(connection);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let mut conn =
            PgConn { client, runtime, statements: HashMap::new(), deadline, location, serial, is_broken: false };
        conn.set_up(access)?;
        // A standby may lack commits.
        if is_read_only && !conn.rows("SELECT 1 WHERE pg_is_in_recovery()", &[])?.is_empty() {
            return Err(StoreError::Unreachable(format!("{}: {}", conn.location, error::READ_ONLY)));
        }
        Ok(conn)
    }

    /// The first statements. They are read back: a pooler that gives each transaction another connection of the server would
    /// put tables into another schema, and lose locks and time limits.
    fn set_up(&mut self, access: Access) -> Result<(), StoreError> {
        let of_others = "SELECT coalesce(current_setting('guildgate.session', true), '')";
        let of_others = self.text(of_others)?;
        let (statement, idle) = if access == Access::Bulk { (BULK, BULK) } else { (LIST, IDLE_IN_TRANSACTION) };
        let session = format!("{:016x}", fastrand::u64(..));
        // An acknowledged commit is on the server's disk, whatever the default of the server or the role is; `remote_apply`
        // is stronger, and stays.
        self.batch(&format!(
            "SET search_path = {SCHEMA}; SET statement_timeout = {}; SET idle_in_transaction_session_timeout = {}; \
             SET client_min_messages = warning; SET jit = off; SET guildgate.session = '{session}'; \
             SELECT set_config('synchronous_commit', 'on', false) \
             WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')",
            statement.as_millis(),
            idle.as_millis(),
        ))?;
        let sql = "SELECT current_setting('search_path') || ' ' || current_setting('guildgate.session', true)";
        if of_others.is_empty() && self.text(sql)? == format!("{SCHEMA} {session}") {
            return Ok(());
        }
        Err(error::behind_pooler(&self.location))
    }

    /// The text that a statement finds.
    fn text(&mut self, sql: &str) -> Result<String, StoreError> {
        self.rows(sql, &[])?.pop().map_or_else(|| Ok(String::new()), |mut row| row.take(0))
    }

    /// Waits for a call to the server, until the deadline.
    fn call<T>(
        &mut self,
        call: impl AsyncFnOnce(&Client, &mut HashMap<String, Statement>) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let PgConn { runtime, client, statements, deadline, .. } = self;
        let called = runtime.block_on(async { timeout_at((*deadline).into(), call(client, statements)).await });
        let Ok(called) = called else {
            self.is_broken = true;
            return Err(error::timed_out(&self.location));
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
    match statements.entry(sql.to_owned()) {
        Entry::Occupied(statement) => Ok(statement.into_mut()),
        Entry::Vacant(free) => Ok(free.insert(client.prepare(sql).await?)),
    }
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

    fn each_row(
        &mut self,
        sql: &str,
        params: &[Value<'_>],
        each: &mut dyn FnMut(Row) -> bool,
    ) -> Result<(), StoreError> {
        let PgConn { runtime, client, location, .. } = self;
        let failed = |e: &Error| error::of(e, location);
        runtime.block_on(async {
            let rows = timeout(BULK, client.query_raw(sql, as_params(params))).await;
            let mut rows = pin!(rows.map_err(|_| error::timed_out(location))?.map_err(|e| failed(&e))?);
            loop {
                let next = timeout(CONNECT, rows.try_next()).await.map_err(|_| error::timed_out(location))?;
                match next.map_err(|e| failed(&e))? {
                    Some(row) if each(row_of(&row).map_err(|e| failed(&e))?) => {}
                    _ => return Ok(()),
                }
            }
        })
    }

    fn batch(&mut self, sql: &str) -> Result<(), StoreError> {
        self.call(async |client, _| client.batch_execute(sql).await)
    }

    /// Under another level, which may be the default of the server, a transaction that has waited for a lock would fail.
    fn begin(&mut self, wait: Duration) -> Result<(), StoreError> {
        let wait = wait.as_millis().max(1);
        let idle = IDLE_IN_TRANSACTION.as_millis();
        self.batch(&format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {wait}; \
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

    fn for_update(&self) -> &'static str {
        " FOR UPDATE"
    }

    fn serial(&self) -> u64 {
        self.serial
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
            Type::BOOL => row.try_get::<_, Option<bool>>(at)?.into(),
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
