//! From a database to a store that this binary can use, or to one line that says why not.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::column;
use super::connect::{Dialer, SCHEMA, Session};
use super::failure::{Trouble, line};
use super::feed::{self, Newest};
use super::pool::{batch, rows};
use super::transaction::CHANNEL;
use crate::store::{IfMissing, Standing, StoreError, refusals};

mod embedded {
    refinery::embed_migrations!("src/store/postgres/migrations");
}

/// How long a start waits for the server. Longer than a caller would: a server that has just been
/// started by the same hand may take its time.
const CONNECT: Duration = Duration::from_secs(5);

/// How long opening waits for another node that is opening or migrating the same store, and how long
/// a migration may take. A million rows take seconds; a minute says that something hangs.
const OPENING: Duration = Duration::from_secs(60);

/// Who migrates holds this lock; its number is "Ggat" in ASCII.
const LOCK: i64 = 0x4767_6174;

/// The oldest server that the tests are known to hold for.
const OLDEST: i32 = 13;

/// A store that can be used.
pub(super) struct Prepared {
    /// Hears notices.
    pub(super) ear: Session,
    /// The newest change there is.
    pub(super) newest: Option<Newest>,
    /// Whether there was no store before.
    pub(super) is_new: bool,
}

/// Brings the schema up to date, alone, or makes it if `if_missing` says so.
pub(super) async fn prepare(
    dialer: &Arc<Dialer>,
    noticed: Arc<Notify>,
    if_missing: IfMissing,
) -> Result<Prepared, StoreError> {
    let dialed = dialer.dial(Instant::now() + CONNECT, Some(noticed)).await;
    let mut client = dialed.map_err(|e| unreachable(e, dialer))?;
    let place = dialer.place();
    let until = Instant::now() + OPENING;
    let told = |trouble: Trouble| match trouble.is_lock() {
        true => StoreError::Busy(format!("another node has been opening {place} for a minute")),
        false => trouble.told(place),
    };
    let wait = OPENING.as_millis();
    let alone = format!("SET lock_timeout = {wait}; SET statement_timeout = {wait}; SELECT pg_advisory_lock({LOCK})");
    batch(&client, until + Duration::from_secs(1), &alone).await.map_err(told)?;
    refuse_unusable(&client, until, place).await?;
    let is_new = migrate(&mut client, until, place, if_missing).await?;
    // In this order: what is committed after the look is announced.
    let done =
        format!("SELECT pg_advisory_unlock({LOCK}); RESET lock_timeout; RESET statement_timeout; LISTEN {CHANNEL}");
    batch(&client, until, &done).await.map_err(told)?;
    let newest = feed::newest(&client, until).await.map_err(told)?;
    Ok(Prepared { ear: client, newest, is_new })
}

/// What is there of the store. Nothing is changed by looking.
pub(super) async fn look(dialer: &Arc<Dialer>) -> Result<Standing, StoreError> {
    let until = Instant::now() + CONNECT;
    let client = dialer.dial(until, None).await.map_err(|e| unreachable(e, dialer))?;
    refuse_unusable(&client, until, dialer.place()).await?;
    Ok(match found(&client, until, dialer.place()).await? {
        0 => Standing::Missing,
        version if version < newest() => Standing::Older,
        _ => Standing::Usable,
    })
}

fn unreachable(trouble: Trouble, dialer: &Dialer) -> StoreError {
    let cannot = "cannot connect to PostgreSQL at";
    match trouble.told(dialer.place()) {
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

async fn refuse_unusable(client: &ClientWrapper, until: Instant, place: &str) -> Result<(), StoreError> {
    let sql = "SELECT current_setting('server_encoding'), current_setting('fsync') = 'on', \
        current_setting('server_version_num')::int / 10000";
    let found = rows(client, until, sql, &[]).await.map_err(|e| e.told(place))?;
    let Some(row) = found.first() else { return Ok(()) };
    let (encoding, fsync, version): (&str, bool, i32) = (column(row, 0)?, column(row, 1)?, column(row, 2)?);
    if encoding != "UTF8" {
        return Err(StoreError::Failed(format!(
            "{place} has the encoding {encoding}, which not every name fits into; make a database with UTF8 (createdb -E UTF8)"
        )));
    }
    if version < OLDEST {
        return Err(StoreError::Failed(format!(
            "{place} is PostgreSQL {version}; the oldest that will do is {OLDEST}"
        )));
    }
    if !fsync {
        tracing::warn!(
            "{place} runs with fsync = off: a power failure there may lose writes that were answered with success"
        );
    }
    Ok(())
}

fn newest() -> i64 {
    let all = embedded::migrations::runner();
    all.get_migrations().iter().map(|m| i64::from(m.version())).max().unwrap_or(0)
}

/// The schema's version; 0 where there is none.
async fn found(client: &ClientWrapper, until: Instant, place: &str) -> Result<i64, StoreError> {
    let told = |e: Trouble| e.told(place);
    let there = format!("SELECT to_regclass('{SCHEMA}.refinery_schema_history') IS NOT NULL");
    let there = rows(client, until, &there, &[]).await.map_err(told)?;
    if !there.first().map_or(Ok(false), |row| column(row, 0))? {
        return Ok(0);
    }
    let sql = "SELECT coalesce(max(version), 0)::bigint FROM refinery_schema_history";
    let version = rows(client, until, sql, &[]).await.map_err(told)?;
    version.first().map_or(Ok(0), |row| column(row, 0))
}

/// Answers whether there was no store before.
async fn migrate(
    client: &mut ClientWrapper,
    until: Instant,
    place: &str,
    if_missing: IfMissing,
) -> Result<bool, StoreError> {
    let (found, newest) = (found(client, until, place).await?, newest());
    if found > newest {
        return Err(StoreError::Failed(format!(
            "{place} was written by a newer Guildgate (its schema is {found}, this one knows {newest}); run that \
             version or a later one"
        )));
    }
    if found == newest {
        return Ok(false);
    }
    if found == 0 && if_missing == IfMissing::Refuse {
        return Err(refusals::no_store(place));
    }
    let failed = |why: String| StoreError::Failed(format!("{place} could not be brought up to date: {why}"));
    // A schema that is there already need not be made, nor be the user's to make.
    let there = rows(client, until, "SELECT 1 FROM pg_namespace WHERE nspname = $1", &[&SCHEMA]).await;
    if there.map_err(|e| e.told(place))?.is_empty() {
        batch(client, until, &format!("CREATE SCHEMA {SCHEMA}")).await.map_err(|e| e.told(place))?;
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
