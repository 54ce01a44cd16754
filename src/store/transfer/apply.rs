//! Applies the staging file to an SQLite store, in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, DropBehavior, OptionalExtension, TransactionBehavior};

use super::fitting::{Version, choose};
use super::import::{BadLine, Mode, Progress};
use super::stage::Staged;
use crate::store::answers::{review_bytes, too_long, versions, warn_bytes};
use crate::store::change_set::ChangeSet;
use crate::store::refusals::{self, refused};
use crate::store::sqlite::{feed, file_failure, lineage, open};
use crate::store::{Change, SqliteStore, StoreError};

/// How long an import waits for the store's lock. A busy server frees it every few milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// How often it tries meanwhile. The server takes the lock again at once, so it has to be often.
const LOCK_POLL: Duration = Duration::from_millis(1);

/// SQLite's page cache while applying, in KiB. What does not fit is written to the WAL early.
const CACHE_KIB: i64 = 65_536;

/// How often progress is reported.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Maps the staged numbers of guilds to those of the store. The outer loop runs over guilds and the inner one along the
/// key of the staged table, so rows are in order and nothing is sorted.
macro_rules! staged {
    ($table:literal) => {
        concat!(
            "FROM stage.guild s CROSS JOIN main.guild g ON g.id = s.id CROSS JOIN stage.",
            $table,
            " t ON t.guild = s.no WHERE counted(t.guild) "
        )
    };
}

/// In this order, since each refers to rows of earlier ones. A warn or review whose id another member has moves to this
/// member, hence REPLACE; an unknown member is made and named by its id. `counted` is always true, and counts the rows
/// that were processed.
const STEPS: [&str; 6] = [
    "INSERT INTO main.guild (id, name) SELECT id, name FROM stage.guild WHERE name IS NOT NULL AND counted(no) \
     ORDER BY no ON CONFLICT (id) DO UPDATE SET name = excluded.name",
    concat!(
        "INSERT INTO main.member (guild, member, name, points) SELECT g.no, t.member, t.name, t.points ",
        staged!("member"),
        "ON CONFLICT (guild, member) DO UPDATE SET name = excluded.name, points = excluded.points"
    ),
    concat!(
        "INSERT INTO main.member (guild, member, name, points) SELECT g.no, t.member, CAST(t.member AS TEXT), 0 ",
        staged!("warn"),
        "ON CONFLICT (guild, member) DO NOTHING"
    ),
    concat!(
        "INSERT INTO main.member (guild, member, name, points) SELECT g.no, t.member, CAST(t.member AS TEXT), 0 ",
        staged!("review"),
        "ON CONFLICT (guild, member) DO NOTHING"
    ),
    concat!(
        "INSERT OR REPLACE INTO main.warn (guild, member, id, author, reason, expires) ",
        "SELECT g.no, t.member, t.id, t.author, t.reason, t.expires ",
        staged!("warn")
    ),
    concat!(
        "INSERT OR REPLACE INTO main.review (guild, member, id, author, rating, text) ",
        "SELECT g.no, t.member, t.id, t.author, t.rating, t.text ",
        staged!("review")
    ),
];

/// A guild that was in the store when its lines were read, and has been removed since.
const REMOVED: &str = "SELECT id FROM stage.guild WHERE stored AND name IS NULL \
    AND id NOT IN (SELECT id FROM main.guild) LIMIT 1";

/// For each kind of record: the statement that finds out whether an answer is too long, and that for the versions of the
/// records to choose among.
const TOO_LONG: [(&str, &str, &str); 2] = [
    (
        "warn",
        too_long!("warn", warn_bytes, "main.", "stage.", "expires > unixepoch()"),
        versions!("warn", warn_bytes, "main.", "stage.", "expires > unixepoch()"),
    ),
    (
        "review",
        too_long!("review", review_bytes, "main.", "stage.", "id >= 0"),
        versions!("review", review_bytes, "main.", "stage.", "id >= 0"),
    ),
];

/// The lines that would make an answer too long, and the connection in whose transaction all others were applied. There
/// is none if there is nothing to commit.
type Applied = (Vec<BadLine>, Option<Connection>);

/// Applies what was staged, without the commit. Lines that would make an answer too long are left out with
/// [`Mode::Partial`]; otherwise nothing is applied because of them.
pub(super) fn apply(
    store: &SqliteStore,
    stage: &Staged,
    mode: Mode,
    progress: &mut dyn FnMut(Progress),
) -> Result<Applied, StoreError> {
    let passed = Arc::new(AtomicU64::new(0));
    // A statement may take minutes, so it runs on a thread of its own, and this one reports.
    std::thread::scope(|scope| {
        let (running, ended) = mpsc::channel::<()>();
        let count = passed.clone();
        let applying = scope.spawn(move || {
            let _running = running;
            run(store, stage, mode, count)
        });
        loop {
            progress(stage.rows.applied(passed.load(Ordering::Relaxed)));
            if ended.recv_timeout(REPORT_EVERY) != Err(RecvTimeoutError::Timeout) {
                return applying.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        }
    })
}

fn run(store: &SqliteStore, stage: &Staged, mode: Mode, passed: Arc<AtomicU64>) -> Result<Applied, StoreError> {
    let staged = stage.path.to_str().ok_or_else(|| {
        StoreError::Failed(format!("{} is not UTF-8; an import needs a path that is", stage.path.display()))
    })?;
    let failed = |e| file_failure(store.path(), &e);
    let mut conn = open::writable(store.path()).map_err(failed)?;
    wait_for_lock(&mut conn).map_err(failed)?;
    store.ensure_checkpointed(&conn)?;
    // The inner error is a guild that was removed meanwhile.
    let steps = move || -> rusqlite::Result<Result<Applied, String>> {
        conn.execute("ATTACH ?1 AS stage", [staged])?;
        // No journal is left if the process is killed.
        conn.pragma_update(Some("stage"), "journal_mode", "OFF")?;
        conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
        conn.create_scalar_function("counted", 1, FunctionFlags::SQLITE_UTF8, move |_| {
            passed.fetch_add(1, Ordering::Relaxed);
            Ok(true)
        })?;
        let mut left_out = Vec::new();
        // Again without the lines that are left out; once, unless the store is changed in between.
        let mut tx = loop {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            if let Some(removed) = tx.query_row(REMOVED, [], |row| row.get(0)).optional()? {
                return Ok(Err(removed));
            }
            STEPS.iter().try_for_each(|step| tx.execute(step, []).map(drop))?;
            let found = |(_, too_long, _): &(_, &str, _)| tx.prepare(too_long)?.exists([]);
            let is_too_long = TOO_LONG.iter().map(found).collect::<rusqlite::Result<Vec<_>>>()?;
            if !is_too_long.contains(&true) {
                break tx;
            }
            tx.rollback()?;
            for (kind, _, versions) in TOO_LONG {
                left_out.extend(leave_out(&conn, kind, versions)?);
            }
            if mode == Mode::AllOrNothing && !left_out.is_empty() {
                return Ok(Ok((left_out, None)));
            }
        };
        let mut changes = ChangeSet::default();
        changes.add(&Change::Everything);
        feed::write(&changes, &tx, store.node(), store.feed_kept())?;
        lineage::advance(&tx)?;
        tx.set_drop_behavior(DropBehavior::Ignore);
        drop(tx);
        Ok(Ok((left_out, Some(conn))))
    };
    steps().map_err(failed)?.map_err(|guild| refused(refusals::removed_meanwhile(&guild)))
}

/// Leaves out the lines that make an answer too long.
fn leave_out(conn: &Connection, kind: &str, versions: &str) -> rusqlite::Result<Vec<BadLine>> {
    let mut statement = conn.prepare(versions)?;
    let found = statement.query_map([], |row| {
        let (guild, id, line, member) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        Ok(Version { guild, id, line, member, bytes: row.get(4)?, others: row.get(5)? })
    })?;
    let versions = found.collect::<rusqlite::Result<Vec<_>>>()?;
    let choice = choose(&versions);
    for (change, lines) in choice.statements("stage.", kind, "IN (SELECT value FROM json_each(?1))") {
        conn.execute(&change, [format!("{lines:?}")])?;
    }
    Ok(choice.bad_lines(kind))
}

fn wait_for_lock(conn: &mut Connection) -> rusqlite::Result<()> {
    let tries = i32::try_from(LOCK_WAIT.as_millis() / LOCK_POLL.as_millis()).unwrap_or(i32::MAX);
    conn.busy_handler(Some(move |tried: i32| {
        std::thread::sleep(LOCK_POLL);
        tried < tries
    }))
}
