//! A single change: it waits for its turn among all writers, gets its number in the change feed, and is committed
//! as a whole or not at all.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Row;

use super::pool::{Params, PooledConnection};
use super::{LOCK, PostgresStore, READ};
use crate::store::change_set::{ChangeSet, PRUNE_EVERY};
use crate::store::{Change, StoreError};

/// The channel that commits are announced on. What was changed is read from the table `change`.
pub(super) const CHANNEL: &str = "guildgate";

/// Adds a change with the next number, and prunes old ones now and then. Its parameters: node, kind, members, how
/// many are kept, how often they are pruned. The transaction holds the lock that [`begin`] takes.
pub(super) const NUMBER: &str = "WITH n AS (UPDATE feed SET seq = seq + 1 RETURNING seq), \
    pruned AS (DELETE FROM change WHERE (SELECT seq FROM n) % least($4::bigint, $5::bigint) = 0 \
        AND seq <= (SELECT seq FROM n) - $4::bigint) \
    INSERT INTO change (seq, node, kind, members) SELECT seq, $1::bigint, $2::smallint, $3::bytea FROM n";

/// How long a commit may take: the server's disk may be slow.
pub(super) const COMMIT: Duration = Duration::from_secs(2);

/// Begins a transaction, which waits for its turn for so long. The lock is the single row of `feed`. Under another level, which
/// may be the default of the server, the database or the role, a transaction that has waited would fail.
pub(super) fn begin(wait: Duration) -> String {
    let wait = wait.as_millis().max(1);
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {wait}; NOTIFY {CHANNEL}; SELECT FROM feed FOR UPDATE"
    )
}

/// What a transaction changed, as parameters of [`NUMBER`].
pub(super) fn change_rows(changes: &ChangeSet) -> Vec<(i16, Option<Vec<u8>>)> {
    changes.rows().map(|(kind, members)| (kind as i16, members)).collect()
}

/// A transaction. Dropped, it is undone.
#[derive(Debug)]
pub(super) struct Transaction<'s> {
    connection: PooledConnection<'s>,
    store: &'s PostgresStore,
}

impl PostgresStore {
    /// Begins a change; waits for its turn for [`LOCK`].
    pub(super) async fn begin(&self) -> Result<Transaction<'_>, StoreError> {
        let location = self.pool.location();
        let mut connection = self.pool.get(Instant::now() + READ).await.map_err(|e| e.into_store_error(location))?;
        connection.set_deadline(Instant::now() + LOCK + READ);
        connection.set_reusable(false);
        connection.batch(&begin(LOCK)).await.map_err(|e| e.into_store_error(location))?;
        Ok(Transaction { connection, store: self })
    }
}

impl Transaction<'_> {
    /// Lets the statements that follow take so long in all.
    pub(super) async fn extend_deadline(&mut self, time: Duration) -> Result<(), StoreError> {
        self.connection.set_deadline(Instant::now() + time);
        let set = self.connection.batch(&format!("SET LOCAL statement_timeout = {}", time.as_millis())).await;
        set.map_err(|e| e.into_store_error(self.connection.location()))
    }

    pub(super) async fn rows(&mut self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let rows = self.connection.rows(sql, params).await;
        rows.map_err(|e| e.into_store_error(self.connection.location()))
    }

    /// The number of rows that a statement with a RETURNING clause changed.
    pub(super) async fn count(&mut self, sql: &str, params: Params<'_>) -> Result<usize, StoreError> {
        Ok(self.rows(sql, params).await?.len())
    }

    /// Commits a change that succeeded, numbered as `change`; undoes one that failed.
    pub(super) async fn end<T>(mut self, result: Result<T, StoreError>, change: Change) -> Result<T, StoreError> {
        let value = match result {
            Ok(value) => value,
            Err(error) => {
                // The server undoes it in any case: after an error here the connection is closed.
                let undone = self.connection.batch("ROLLBACK").await;
                self.connection.set_reusable(undone.is_ok());
                return Err(error);
            }
        };
        let mut changes = ChangeSet::default();
        changes.add(&change);
        let (node, kept) = (self.store.node.load(Ordering::SeqCst), self.store.feed_kept);
        for (kind, members) in change_rows(&changes) {
            self.rows(NUMBER, &[&node, &kind, &members, &kept, &PRUNE_EVERY]).await?;
        }
        self.connection.set_deadline(Instant::now() + COMMIT);
        match self.connection.batch("COMMIT").await {
            Ok(()) => {
                self.connection.set_reusable(true);
                Ok(value)
            }
            Err(error) => {
                // It may have happened. Under another node number the feed reports it to us as well.
                self.store.node.store(super::draw_node()?, Ordering::SeqCst);
                Err(error.into_unknown_outcome(self.connection.location()))
            }
        }
    }
}
