//! Export of a PostgreSQL store: one snapshot, streamed in the order of an SQLite store's export.

use std::io::Write;
use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;

use super::export::{COUNT, ExportError, RECORDS, RecordWriter, record};
use super::import::Progress;
use super::record::Record;
use crate::model::{GuildId, MemberId};
use crate::store::postgres::{BulkSession, column, member_id, parsed};
use crate::store::{PostgresStore, StoreError};

/// How long the server may take for the next rows. It sorts a guild's rows before it sends the first one.
const ROW_TIMEOUT: Duration = Duration::from_secs(60);

/// Guilds in memory at a time. There may be a million, and a round trip for a thousand costs nothing.
const GUILDS_AT_ONCE: i64 = 1000;

/// The guilds after a given one. All come after the empty text, since no id is empty.
const GUILDS: &str = "SELECT no, id, name FROM guild WHERE id > $1 ORDER BY id LIMIT $2";

impl PostgresStore {
    /// Writes everything as JSON Lines: see [`SqliteStore::export`](crate::store::SqliteStore::export).
    pub async fn export(&self, to: &mut dyn Write, progress: &mut dyn FnMut(Progress)) -> Result<u64, ExportError> {
        let session = self.bulk_session().await?;
        let mut writer = RecordWriter::new(to, progress);
        write_all(&session, &mut writer).await?;
        Ok(writer.finish()?)
    }
}

async fn write_all(session: &BulkSession<'_>, writer: &mut RecordWriter<'_>) -> Result<(), ExportError> {
    session.check(session.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await)?;
    let records: i64 = column(&session.check(session.query_one(COUNT, &[]).await)?, 0)?;
    writer.set_total(records.unsigned_abs());
    let mut last = String::new();
    loop {
        let guilds = session.check(session.query(GUILDS, &[&last, &GUILDS_AT_ONCE]).await)?;
        for row in &guilds {
            let (no, guild): (i64, GuildId) = (column(row, 0)?, parsed(row, 1)?);
            writer.write(&Record::Guild { guild: guild.clone(), name: column(row, 2)? })?;
            write_records(session, no, &guild, writer).await?;
            last.clear();
            last.push_str(guild.as_str());
        }
        if guilds.is_empty() {
            return Ok(());
        }
    }
}

async fn write_records(
    session: &BulkSession<'_>,
    no: i64,
    guild: &GuildId,
    writer: &mut RecordWriter<'_>,
) -> Result<(), ExportError> {
    let no: [&(dyn ToSql + Sync); 1] = [&no];
    let mut rows = pin!(session.check(session.query_raw(RECORDS, no).await)?);
    loop {
        let next = timeout(ROW_TIMEOUT, rows.try_next()).await;
        let next =
            next.map_err(|_| StoreError::Busy(format!("the server sent no more rows for {ROW_TIMEOUT:?}; try again")))?;
        let Some(row) = session.check(next)? else { return Ok(()) };
        let (guild, member): (GuildId, MemberId) = (guild.clone(), member_id(&row, 0)?);
        let (kind, id, number): (i32, i64, i64) = (column(&row, 1)?, column(&row, 2)?, column(&row, 5)?);
        let (name, text): (String, String) = (column(&row, 3)?, column(&row, 4)?);
        writer.write(&record(guild, member, kind, id, name, text, number)?)?;
    }
}
