//! From the staging file into the store, in one transaction.

use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use super::stage::StageFile;
use crate::store::marks::Marks;
use crate::store::sqlite::{feed, file_failure, open};
use crate::store::{Change, SqliteStore, StoreError};

/// How long an import waits for the store's lock. A busy server frees it every few milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// How often it asks meanwhile: often, since the server takes the lock again at once.
const LOCK_POLL: Duration = Duration::from_millis(1);

/// SQLite's page cache while applying, in KiB: what does not fit is written to the WAL early.
const CACHE_KIB: i64 = 65_536;

/// From the staged numbers of guilds to the store's. The outer loop runs over guilds and the inner
/// one along the key of the staged table, so rows come in order and nothing is sorted.
macro_rules! staged {
    ($table:literal) => {
        concat!(
            "FROM stage.guild s CROSS JOIN main.guild g ON g.id = s.id CROSS JOIN stage.",
            $table,
            " t ON t.guild = s.no "
        )
    };
}

/// In this order: each refers to what stands before it. A warn or review whose id exists under
/// another member moves, hence REPLACE; one for an unknown member makes it, named by its id.
const STEPS: [&str; 6] = [
    "INSERT INTO main.guild (id, name) SELECT id, name FROM stage.guild WHERE name IS NOT NULL ORDER BY no \
     ON CONFLICT (id) DO UPDATE SET name = excluded.name",
    concat!(
        "INSERT INTO main.member (guild, member, name, points) SELECT g.no, t.member, t.name, t.points ",
        staged!("member"),
        "WHERE true ON CONFLICT (guild, member) DO UPDATE SET name = excluded.name, points = excluded.points"
    ),
    concat!(
        "INSERT INTO main.member (guild, member, name, points) SELECT g.no, t.member, CAST(t.member AS TEXT), 0 ",
        staged!("warn"),
        "WHERE true ON CONFLICT (guild, member) DO NOTHING"
    ),
    concat!(
        "INSERT INTO main.member (guild, member, name, points) SELECT g.no, t.member, CAST(t.member AS TEXT), 0 ",
        staged!("review"),
        "WHERE true ON CONFLICT (guild, member) DO NOTHING"
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

/// Applies what was staged: all of it, or nothing.
pub(super) fn apply(store: &SqliteStore, stage: &StageFile) -> Result<(), StoreError> {
    let staged = stage.path().to_str().ok_or_else(|| {
        StoreError::Failed(format!("{} is not UTF-8; an import needs a path that is", stage.path().display()))
    })?;
    let run = || -> rusqlite::Result<()> {
        let mut conn = open::writable(store.path())?;
        conn.execute("ATTACH ?1 AS stage", [staged])?;
        conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
        wait_for_lock(&mut conn)?;
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        STEPS.iter().try_for_each(|step| tx.execute(step, []).map(drop))?;
        let mut marks = Marks::default();
        marks.add(&Change::Everything);
        feed::write(&marks, &tx, store.node(), store.feed_kept())?;
        tx.commit()
    };
    run().map_err(|e| file_failure(store.path(), &e))
}

fn wait_for_lock(conn: &mut Connection) -> rusqlite::Result<()> {
    let tries = i32::try_from(LOCK_WAIT.as_millis() / LOCK_POLL.as_millis()).unwrap_or(i32::MAX);
    conn.busy_handler(Some(move |tried: i32| {
        std::thread::sleep(LOCK_POLL);
        tried < tries
    }))
}
