//! Import into PostgreSQL: staged in a local file, copied into temporary tables of the session, then applied
//! in one transaction.

use std::collections::HashSet;
use std::io::BufRead;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use rusqlite::{Connection, Row};
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};

use super::fitting::{Version, choose};
use super::import::{
    BadLine, ImportError, Mode, PROGRESS_EVERY, Phase, Progress, Transaction, UncommittedImport, read_lines,
};
use super::stage::{Rows, Staged, staging_file};
use crate::store::answers::{review_bytes, too_long, versions, warn_bytes};
use crate::store::postgres::{BulkSession, column};
use crate::store::sqlite::{file_failure, open};
use crate::store::{Directory, PostgresStore, StoreError, blocking, refusals};

/// How long an import waits for its turn among the writers.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// How long reading the staging file waits for a lock. No other process has it open.
const BUSY: Duration = Duration::from_secs(1);

/// Temporary tables of the session.
const STAGED: &str = "
    CREATE TEMPORARY TABLE staged_guild (no bigint PRIMARY KEY, id text, name text, stored bigint);
    CREATE TEMPORARY TABLE staged_member (guild bigint, member bigint, name text, points bigint);
    CREATE TEMPORARY TABLE staged_warn
        (guild bigint, id bigint, member bigint, author text, reason text, expires bigint, line bigint);
    CREATE TEMPORARY TABLE staged_review
        (guild bigint, id bigint, member bigint, author text, rating bigint, text text, line bigint);
    CREATE TEMPORARY TABLE staged_earlier_warn (LIKE staged_warn);
    CREATE TEMPORARY TABLE staged_earlier_review (LIKE staged_review);
";

/// A staged table: the rows of the staging file, and their columns.
struct Table {
    name: &'static str,
    rows: &'static str,
    columns: &'static [Type],
}

/// The columns of staged warns and reviews.
const WARN: &[Type] = &[Type::INT8, Type::INT8, Type::INT8, Type::TEXT, Type::TEXT, Type::INT8, Type::INT8];
const REVIEW: &[Type] = &[Type::INT8, Type::INT8, Type::INT8, Type::TEXT, Type::INT8, Type::TEXT, Type::INT8];

const TABLES: [Table; 6] = [
    Table {
        name: "staged_guild",
        rows: "SELECT no, id, name, stored FROM guild",
        columns: &[Type::INT8, Type::TEXT, Type::TEXT, Type::INT8],
    },
    Table {
        name: "staged_member",
        rows: "SELECT guild, member, name, points FROM member ORDER BY guild, member",
        columns: &[Type::INT8, Type::INT8, Type::TEXT, Type::INT8],
    },
    Table {
        name: "staged_warn",
        rows: "SELECT guild, id, member, author, reason, expires, line FROM warn",
        columns: WARN,
    },
    Table {
        name: "staged_earlier_warn",
        rows: "SELECT guild, id, member, author, reason, expires, line FROM earlier_warn",
        columns: WARN,
    },
    Table {
        name: "staged_review",
        rows: "SELECT guild, id, member, author, rating, text, line FROM review",
        columns: REVIEW,
    },
    Table {
        name: "staged_earlier_review",
        rows: "SELECT guild, id, member, author, rating, text, line FROM earlier_review",
        columns: REVIEW,
    },
];

/// A guild that was in the store when its lines were read, and has been removed since.
const REMOVED: &str = "SELECT s.id FROM staged_guild s LEFT JOIN guild g ON g.id = s.id \
    WHERE s.stored <> 0 AND s.name IS NULL AND g.id IS NULL LIMIT 1";

/// In this order, since each refers to rows of earlier ones. A warn or review whose id another member has moves to this
/// member; an unknown member is made and named by its id.
const STEPS: [&str; 6] = [
    "INSERT INTO guild (id, name) SELECT id, name FROM staged_guild WHERE name IS NOT NULL ORDER BY no \
     ON CONFLICT (id) DO UPDATE SET name = excluded.name",
    "INSERT INTO member (guild, member, name, points) SELECT g.no, t.member, t.name, t.points \
     FROM staged_guild s JOIN guild g ON g.id = s.id JOIN staged_member t ON t.guild = s.no \
     ON CONFLICT (guild, member) DO UPDATE SET name = excluded.name, points = excluded.points",
    "INSERT INTO member (guild, member, name, points) SELECT DISTINCT g.no, t.member, t.member::text, 0 \
     FROM staged_guild s JOIN guild g ON g.id = s.id JOIN staged_warn t ON t.guild = s.no \
     ON CONFLICT (guild, member) DO NOTHING",
    "INSERT INTO member (guild, member, name, points) SELECT DISTINCT g.no, t.member, t.member::text, 0 \
     FROM staged_guild s JOIN guild g ON g.id = s.id JOIN staged_review t ON t.guild = s.no \
     ON CONFLICT (guild, member) DO NOTHING",
    "INSERT INTO warn (guild, member, id, author, reason, expires) \
     SELECT g.no, t.member, t.id, t.author, t.reason, t.expires \
     FROM staged_guild s JOIN guild g ON g.id = s.id JOIN staged_warn t ON t.guild = s.no \
     ON CONFLICT (guild, id) DO UPDATE SET member = excluded.member, author = excluded.author, \
        reason = excluded.reason, expires = excluded.expires",
    "INSERT INTO review (guild, member, id, author, rating, text) \
     SELECT g.no, t.member, t.id, t.author, t.rating, t.text \
     FROM staged_guild s JOIN guild g ON g.id = s.id JOIN staged_review t ON t.guild = s.no \
     ON CONFLICT (guild, id) DO UPDATE SET member = excluded.member, author = excluded.author, \
        rating = excluded.rating, text = excluded.text",
];

/// For each kind of record: the statement that finds out whether an answer is too long, and that for the versions of the
/// records to choose among.
const TOO_LONG: [(&str, &str, &str); 2] = [
    (
        "warn",
        too_long!("warn", warn_bytes, "", "staged_", "expires > extract(epoch FROM now())::bigint"),
        versions!("warn", warn_bytes, "", "staged_", "expires > extract(epoch FROM now())::bigint"),
    ),
    (
        "review",
        too_long!("review", review_bytes, "", "staged_", "id >= 0"),
        versions!("review", review_bytes, "", "staged_", "id >= 0"),
    ),
];

impl PostgresStore {
    /// Imports JSON Lines, without the commit: see [`SqliteStore::import`](crate::store::SqliteStore::import).
    pub async fn import(
        &self,
        source: impl BufRead + Send + 'static,
        mode: Mode,
        mut progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<UncommittedImport<'_>, ImportError> {
        // A guild that is removed meanwhile is found when the lines are applied.
        let existing: HashSet<_> = self.guilds().await?.into_iter().map(|guild| guild.id).collect();
        let file = staging_file(&staging_place())?;
        let path = file.path().to_owned();
        let read = move || {
            let staged = read_lines(&path, source, mode, &mut progress, |guild| Ok(existing.contains(guild)))?;
            Ok::<_, ImportError>((staged, progress))
        };
        let ((imported, staged), mut progress) = blocking(read).await?;
        let Some(staged) = staged else {
            return Ok(UncommittedImport { imported, transaction: Transaction::None, _file: file });
        };
        let session = self.bulk_session().await?;
        let copied = copy(&session, &staged, &mut progress).await?;
        session.check(copied)?;
        let rows = staged.rows;
        progress(rows.applied(0));
        let Rows { guilds, members, warns, reviews } = rows;
        let of_steps = [guilds, members, warns, reviews, warns, reviews];
        let mut done = |step| progress(rows.applied(of_steps.iter().take(step + 1).sum()));
        let obstacle: (&str, fn(&str) -> String) = (REMOVED, refusals::removed_meanwhile);
        let mut left_out = Vec::new();
        let too_long = TOO_LONG.map(|(_, too_long, _)| too_long);
        // Again without the lines that are left out; once, unless the store is changed in between.
        while !session.apply(LOCK_WAIT, obstacle, &STEPS, &too_long, &mut done).await? {
            for (kind, _, versions) in TOO_LONG {
                left_out.extend(leave_out(&session, kind, versions).await?);
            }
            if mode == Mode::AllOrNothing && !left_out.is_empty() {
                break;
            }
        }
        let imported = imported.without(left_out, mode)?;
        Ok(UncommittedImport { imported, transaction: Transaction::Postgres(session), _file: file })
    }
}

/// Leaves out the lines that make an answer too long.
async fn leave_out(session: &BulkSession<'_>, kind: &str, versions: &str) -> Result<Vec<BadLine>, StoreError> {
    let version = |row: &tokio_postgres::Row| {
        let (guild, id, line, member) = (column(row, 0)?, column(row, 1)?, column(row, 2)?, column(row, 3)?);
        Ok(Version { guild, id, line, member, bytes: column(row, 4)?, others: column(row, 5)? })
    };
    let found = session.check(session.query(versions, &[]).await)?;
    let versions = found.iter().map(version).collect::<Result<Vec<_>, StoreError>>()?;
    let choice = choose(&versions);
    for (change, lines) in choice.statements("staged_", kind, "= ANY($1)") {
        session.check(session.execute(&change, &[&lines]).await)?;
    }
    Ok(choice.bad_lines(kind))
}

/// A server has no local folder, so the staging file is in the folder for temporary files.
fn staging_place() -> PathBuf {
    std::env::temp_dir().join("guildgate-postgres")
}

/// Copies the staging file's tables. The outer error is the file's, the inner one the server's.
async fn copy(
    client: &ClientWrapper,
    staged: &Staged,
    progress: &mut dyn FnMut(Progress),
) -> Result<Result<(), tokio_postgres::Error>, StoreError> {
    let failed = |e: rusqlite::Error| file_failure(&staged.path, &e);
    let file = open::readable(&staged.path, BUSY).map_err(failed)?;
    if let Err(error) = client.batch_execute(STAGED).await {
        return Ok(Err(error));
    }
    let mut so_far = Progress { phase: Phase::Sending, of: Some(staged.rows.all()), ..Progress::default() };
    for table in &TABLES {
        let mut sent = || {
            so_far.records += 1;
            if so_far.records.is_multiple_of(PROGRESS_EVERY) {
                progress(so_far);
            }
        };
        match copy_table(client, &file, table, &mut sent).await.map_err(failed)? {
            Ok(()) => {}
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(client.batch_execute(&format!("ANALYZE {}", TABLES.map(|table| table.name).join(", "))).await)
}

async fn copy_table(
    client: &ClientWrapper,
    file: &Connection,
    table: &Table,
    sent: &mut dyn FnMut(),
) -> rusqlite::Result<Result<(), tokio_postgres::Error>> {
    let sink = match client.copy_in(&format!("COPY {} FROM STDIN BINARY", table.name)).await {
        Ok(sink) => sink,
        Err(error) => return Ok(Err(error)),
    };
    let mut writer = pin!(BinaryCopyInWriter::new(sink, table.columns));
    let mut statement = file.prepare(table.rows)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let values = table.columns.iter().enumerate().map(|(at, kind)| value(row, at, kind));
        let values = values.collect::<rusqlite::Result<Vec<_>>>()?;
        let values = values.iter().map(|value| &**value as &(dyn ToSql + Sync));
        if let Err(error) = writer.as_mut().write_raw(values).await {
            return Ok(Err(error));
        }
        sent();
    }
    Ok(writer.finish().await.map(drop))
}

fn value(row: &Row<'_>, at: usize, kind: &Type) -> rusqlite::Result<Box<dyn ToSql + Sync>> {
    Ok(if *kind == Type::TEXT { Box::new(row.get::<_, Option<String>>(at)?) } else { Box::new(row.get::<_, i64>(at)?) })
}
