//! Export of a PostgreSQL store: one snapshot, streamed in the order of an SQLite store's export.

use std::io::Write;
use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;

use super::export::{COUNT, ExportError, Sink};
use super::import::Progress;
use super::record::Record;
use crate::model::{GuildId, MemberId};
use crate::store::postgres::{Errand, column, member_id, parsed};
use crate::store::{PostgresStore, StoreError};

/// How long the server may take for the next rows. It sorts a guild's before the first one.
const NEXT: Duration = Duration::from_secs(60);

/// Guilds held at a time: a round trip for so many is nothing, and there may be a million.
const GUILDS_AT_ONCE: i64 = 1000;

/// The guilds after one. No id is empty, so all come after the empty text.
const GUILDS: &str = "SELECT no, id, name FROM guild WHERE id > $1 ORDER BY id LIMIT $2";

const MEMBER: i32 = 0;
const WARN: i32 = 1;

/// A guild's records: each member, then its warns, then its reviews.
const RECORDS: &str = "SELECT member, 0 AS kind, 0::bigint AS id, name AS one, '' AS two, points AS number \
        FROM member WHERE guild = $1 \
    UNION ALL SELECT member, 1, id, author, reason, expires FROM warn WHERE guild = $1 \
    UNION ALL SELECT member, 2, id, author, text, rating FROM review WHERE guild = $1 \
    ORDER BY member, kind, id";

impl PostgresStore {
    /// Writes everything as JSON Lines: see [`SqliteStore::export`](crate::store::SqliteStore::export).
    pub async fn export(&self, to: &mut dyn Write, progress: &mut dyn FnMut(Progress)) -> Result<u64, ExportError> {
        let errand = self.errand().await?;
        let mut sink = Sink::new(to, progress);
        write_all(&errand, &mut sink).await?;
        Ok(sink.finish()?)
    }
}

async fn write_all(errand: &Errand<'_>, sink: &mut Sink<'_>) -> Result<(), ExportError> {
    errand.check(errand.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await)?;
    let records: i64 = column(&errand.check(errand.query_one(COUNT, &[]).await)?, 0)?;
    sink.expect(records.unsigned_abs());
    let mut last = String::new();
    loop {
        let guilds = errand.check(errand.query(GUILDS, &[&last, &GUILDS_AT_ONCE]).await)?;
        for row in &guilds {
            let (no, guild): (i64, GuildId) = (column(row, 0)?, parsed(row, 1)?);
            sink.put(&Record::Guild { guild: guild.clone(), name: column(row, 2)? })?;
            write_records(errand, no, &guild, sink).await?;
            last.clear();
            last.push_str(guild.as_str());
        }
        if guilds.is_empty() {
            return Ok(());
        }
    }
}

async fn write_records(errand: &Errand<'_>, no: i64, guild: &GuildId, sink: &mut Sink<'_>) -> Result<(), ExportError> {
    let no: [&(dyn ToSql + Sync); 1] = [&no];
    let mut rows = pin!(errand.check(errand.query_raw(RECORDS, no).await)?);
    loop {
        let next = timeout(NEXT, rows.try_next()).await;
        let next =
            next.map_err(|_| StoreError::Busy(format!("the server sent no more rows for {NEXT:?}; try again")))?;
        let Some(row) = errand.check(next)? else { return Ok(()) };
        let (guild, member): (GuildId, MemberId) = (guild.clone(), member_id(&row, 0)?);
        let (kind, id, number): (i32, i64, i64) = (column(&row, 1)?, column(&row, 2)?, column(&row, 5)?);
        let (one, two): (String, String) = (column(&row, 3)?, column(&row, 4)?);
        sink.put(&match kind {
            MEMBER => Record::Member { guild, member, name: one, points: number },
            WARN => Record::Warn { guild, member, warn: id, author: one, reason: two, expires: number },
            _ => {
                let rating = u8::try_from(number).unwrap_or_default(); // the table keeps it at 1 to 5
                Record::Review { guild, member, review: id, author: one, rating, text: two }
            }
        })?;
    }
}
