//! Opens a database as a store: checks the server, and brings the schema up to date or says why it cannot.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::ClientWrapper as Client;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::column;
use super::connector::{Connector, SCHEMA, Session};
use super::error::{CallError, line};
use super::feed::{self, Newest};
use super::pool::{batch, rows};
use crate::store::{IfMissing, StoreError, StoreState, refusals};

mod embedded {
    refinery::embed_migrations!("src/store/postgres/migrations");
}

/// How long opening waits for the server, which may have been started just before.
const CONNECT: Duration = Duration::from_secs(5);

/// How long opening waits for another node that opens or migrates the same store, and how long a migration may
/// take. A million rows take seconds; after a minute something hangs.
const OPENING: Duration = Duration::from_secs(60);

/// The advisory lock that a migration holds; its number is "Ggat" in ASCII.
const LOCK: i64 = 0x4767_6174;

/// The oldest version for which the tests have passed.
const OLDEST: i32 = 13;

/// A store that can be used.
pub(super) struct Prepared {
    /// It notifies of commits.
    pub(super) session: Session,
    /// The newest change in the store.
    pub(super) newest: Option<Newest>,
    /// Whether this made the store.
    pub(super) is_new: bool,
}

/// Brings the schema up to date while no other node does, or makes it if `if_missing` says so.
pub(super) async fn prepare(
    connector: &Arc<Connector>,
    notices: Arc<Notify>,
    if_missing: IfMissing,
) -> Result<Prepared, StoreError> {
    let location = connector.location();
    let connected = connector.connect(Instant::now() + CONNECT, Some(notices)).await;
    let mut session = connected.map_err(|e| connect_error(e, location))?;
    let until = Instant::now() + OPENING;
    let failed = |error: CallError| match error.is_lock_timeout() {
        true => StoreError::Busy(format!("another node has been opening {location} for a minute")),
        false => error.into_store_error(location),
    };
    let wait = OPENING.as_millis();
    let alone = format!("SET lock_timeout = {wait}; SET statement_timeout = {wait}; SELECT pg_advisory_lock({LOCK})");
    batch(&session, until + Duration::from_secs(1), &alone).await.map_err(failed)?;
    refuse_unusable(&session, until, location).await?;
    let is_new = migrate(&mut session, until, location, if_missing).await?;
    let done = format!("SELECT pg_advisory_unlock({LOCK}); RESET lock_timeout; RESET statement_timeout");
    batch(&session, until, &done).await.map_err(failed)?;
    let newest = feed::newest(&session, until).await.map_err(failed)?;
    Ok(Prepared { session, newest, is_new })
}

/// The state of the store. It changes nothing.
pub(super) async fn state(connector: &Arc<Connector>) -> Result<StoreState, StoreError> {
    let (until, location) = (Instant::now() + CONNECT, connector.location());
    let session = connector.connect(until, None).await.map_err(|e| connect_error(e, location))?;
    refuse_unusable(&session, until, location).await?;
    Ok(match version(&session, until, location).await? {
        0 => StoreState::Missing,
        version if version < newest_version() => StoreState::Older,
        _ => StoreState::Current,
    })
}

fn connect_error(error: CallError, location: &str) -> StoreError {
    let cannot = "cannot connect to PostgreSQL at";
    match error.into_store_error(location) {
        StoreError::Unreachable(line) if line.contains("server does not support TLS") => StoreError::Failed(format!(
            "{cannot} {}; switch it on there (ssl = on), or do without it (sslmode=prefer in origin.store)",
            line.trim_end_matches("; try again")
        )),
        StoreError::Unreachable(line) => StoreError::Unreachable(format!(
            "{cannot} {}; is the server running, and does origin.store name its host and port?",
            line.trim_end_matches("; try again")
        )),
        StoreError::Busy(line) | StoreError::Failed(line) => StoreError::Failed(format!("{cannot} {line}")),
        other => other,
    }
}

async fn refuse_unusable(client: &Client, until: Instant, location: &str) -> Result<(), StoreError> {
    let sql = "SELECT current_setting('server_encoding'), current_setting('fsync') = 'on', \
        current_setting('server_version_num')::int / 10000";
    let found = rows(client, until, sql, &[]).await.map_err(|e| e.into_store_error(location))?;
    let Some(row) = found.first() else { return Ok(()) };
    let (encoding, fsync, version): (&str, bool, i32) = (column(row, 0)?, column(row, 1)?, column(row, 2)?);
    if encoding != "UTF8" {
        return Err(StoreError::Failed(format!(
            "{location} has the encoding {encoding}, which not every name fits into; make a database with UTF8 (createdb -E UTF8)"
        )));
    }
    if version < OLDEST {
        return Err(StoreError::Failed(format!(
            "{location} is PostgreSQL {version}; the oldest that will do is {OLDEST}"
        )));
    }
    if !fsync {
        tracing::warn!(
            "{location} runs with fsync = off: a power failure there may lose writes that were answered with success"
        );
    }
    Ok(())
}

/// The version of the schema that this binary knows.
fn newest_version() -> i64 {
    let all = embedded::migrations::runner();
    all.get_migrations().iter().map(|m| i64::from(m.version())).max().unwrap_or(0)
}

/// The version of the schema in the database; 0 where there is none.
async fn version(client: &Client, until: Instant, location: &str) -> Result<i64, StoreError> {
    let failed = |e: CallError| e.into_store_error(location);
    let exists = format!("SELECT to_regclass('{SCHEMA}.refinery_schema_history') IS NOT NULL");
    let exists = rows(client, until, &exists, &[]).await.map_err(failed)?;
    if !exists.first().map_or(Ok(false), |row| column(row, 0))? {
        return Ok(0);
    }
    let sql = "SELECT coalesce(max(version), 0)::bigint FROM refinery_schema_history";
    let version = rows(client, until, sql, &[]).await.map_err(failed)?;
    version.first().map_or(Ok(0), |row| column(row, 0))
}

/// Returns whether it made the store.
async fn migrate(
    client: &mut Client,
    until: Instant,
    location: &str,
    if_missing: IfMissing,
) -> Result<bool, StoreError> {
    let (found, newest) = (version(client, until, location).await?, newest_version());
    if found > newest {
        return Err(StoreError::Failed(format!(
            "{location} was written by a newer Guildgate (its schema is {found}, this one knows {newest}); run that \
             version or a later one"
        )));
    }
    if found == newest {
        return Ok(false);
    }
    if found == 0 && if_missing == IfMissing::Refuse {
        return Err(refusals::no_store(location));
    }
    let failed = |why: String| StoreError::Failed(format!("{location} could not be brought up to date: {why}"));
    // Where the schema exists, the user may lack the right to make one.
    let exists = rows(client, until, "SELECT 1 FROM pg_namespace WHERE nspname = $1", &[&SCHEMA]).await;
    if exists.map_err(|e| e.into_store_error(location))?.is_empty() {
        batch(client, until, &format!("CREATE SCHEMA {SCHEMA}")).await.map_err(|e| e.into_store_error(location))?;
    }
    let runner = embedded::migrations::runner().set_grouped(true);
    let run = tokio::time::timeout_at(until, runner.run_async(&mut **client)).await;
    let run = run.map_err(|_| failed("it took more than a minute".to_owned()))?;
    run.map(|_| found == 0).map_err(|e| {
        use std::error::Error as _;
        let server = e.source().and_then(|source| source.downcast_ref::<tokio_postgres::Error>());
        failed(server.map_or_else(|| e.to_string(), line))
    })
}
