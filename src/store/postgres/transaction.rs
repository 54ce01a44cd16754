//! One change by itself: it takes its turn among all writers, is numbered in the feed, and is committed
//! whole or not at all.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Row;

use super::pool::{Lease, Params, given_up};
use super::{LOCK, PostgresStore, READ};
use crate::store::marks::{Marks, PRUNE_EVERY};
use crate::store::{Change, StoreError};

/// The channel on which a commit is announced; what it was is read from the table `change`.
pub(super) const CHANNEL: &str = "guildgate";

/// Gives a change the next number, and prunes old ones now and then. Its parameters: node, kind,
/// members, how many are kept. Whoever runs it holds the lock that [`begin`] takes.
pub(super) const NUMBER: &str = "WITH n AS (UPDATE feed SET seq = seq + 1 RETURNING seq), \
    pruned AS (DELETE FROM change WHERE (SELECT seq FROM n) % least($4::bigint, $5::bigint) = 0 \
        AND seq <= (SELECT seq FROM n) - $4::bigint) \
    INSERT INTO change (seq, node, kind, members) SELECT seq, $1::bigint, $2::smallint, $3::bytea FROM n";

/// For the commit of a change that was made: the server's disk may be slow, and what was begun is
/// better ended.
pub(super) const COMMIT: Duration = Duration::from_secs(2);

/// Begins a transaction whose turn it is within `wait`. The lock is the single row of `feed`.
pub(super) fn begin(wait: Duration) -> String {
    let wait = wait.as_millis().max(1);
    format!("BEGIN; SET LOCAL lock_timeout = {wait}; NOTIFY {CHANNEL}; SELECT FROM feed FOR UPDATE")
}

/// The feed's rows of what a transaction changed, as parameters of [`NUMBER`].
pub(super) fn numbered(marks: &Marks) -> Vec<(i16, Option<Vec<u8>>)> {
    marks.rows().map(|(kind, members)| (kind as i16, members)).collect()
}

/// A transaction, which is undone unless it is ended.
#[derive(Debug)]
pub(super) struct Transaction<'s> {
    lease: Lease<'s>,
    store: &'s PostgresStore,
}

impl PostgresStore {
    /// Begins a change; its turn comes within [`LOCK`].
    pub(super) async fn begin(&self) -> Result<Transaction<'_>, StoreError> {
        let place = self.pool.place();
        let mut lease = self.pool.lease(Instant::now() + READ).await.map_err(|e| e.told(place))?;
        lease.put_off(Instant::now() + LOCK + READ);
        lease.set_sound(false);
        lease.batch(&begin(LOCK)).await.map_err(|e| e.told(place))?;
        Ok(Transaction { lease, store: self })
    }
}

impl Transaction<'_> {
    /// Lets the statements that follow take so long altogether.
    pub(super) async fn take_time(&mut self, time: Duration) -> Result<(), StoreError> {
        self.lease.put_off(Instant::now() + time);
        let set = self.lease.batch(&format!("SET LOCAL statement_timeout = {}", time.as_millis())).await;
        set.map_err(|e| e.told(self.lease.place()))
    }

    pub(super) async fn rows(&mut self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let rows = self.lease.rows(sql, params).await;
        rows.map_err(|e| e.told(self.lease.place()))
    }

    /// How many rows a statement changed: it says so by RETURNING.
    pub(super) async fn count(&mut self, sql: &str, params: Params<'_>) -> Result<usize, StoreError> {
        Ok(self.rows(sql, params).await?.len())
    }

    /// Commits what was made, told to others as `mark`; undoes it where it was refused.
    pub(super) async fn end<T>(mut self, made: Result<T, StoreError>, mark: Change) -> Result<T, StoreError> {
        let place = self.lease.place().to_owned();
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                // Undone in any case: a connection that cannot say so is closed.
                let undone = self.lease.batch("ROLLBACK").await;
                self.lease.set_sound(undone.is_ok());
                return Err(error);
            }
        };
        let mut marks = Marks::default();
        marks.add(&mark);
        let (node, kept) = (self.store.node.load(Ordering::SeqCst), self.store.feed_kept);
        for (kind, members) in numbered(&marks) {
            self.rows(NUMBER, &[&node, &kind, &members, &kept, &PRUNE_EVERY]).await?;
        }
        self.lease.put_off(Instant::now() + COMMIT);
        match self.lease.batch("COMMIT").await {
            Ok(()) if self.lease.is_followed() => {
                self.lease.set_sound(true);
                Ok(made)
            }
            done => {
                let trouble = done.err().unwrap_or_else(given_up);
                // Should it have happened, it is another's change to us: what we hold is in doubt.
                self.store.node.store(super::draw_node()?, Ordering::SeqCst);
                Err(trouble.told_of_commit(&place))
            }
        }
    }
}
