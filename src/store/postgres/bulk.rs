//! Sessions for import and export, whose statements may take long. Each has a connection of its own.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::ClientWrapper as Client;
use tokio::time::Instant;

use super::connector::Session;
use super::error::CallError;
use super::pool::{Params, batch, rows};
use super::transaction::{NUMBER, begin, change_rows};
use super::{PostgresStore, READ, column};
use crate::store::change_set::{ChangeSet, PRUNE_EVERY};
use crate::store::refusals::refused;
use crate::store::{Change, StoreError};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// How long one statement may take. Ten million records take minutes.
const STATEMENT: Duration = Duration::from_secs(30 * 60);

/// How long the commit of an import may take.
const COMMIT: Duration = Duration::from_secs(60);

/// How often the server checks during a statement whether the connection is still open: a kill -9 closes it without
/// a word. Servers before version 14 cannot, and finish the statement.
const CHECK_CONNECTION: &str = "SET client_connection_check_interval = '5s'";

/// A session for import or export. If it is dropped during a change, as when the command is interrupted, the server
/// cancels the statement, so that others can write.
#[derive(Debug)]
pub(in crate::store) struct BulkSession<'s> {
    client: Session,
    store: &'s PostgresStore,
    /// A change was begun, and is neither committed nor undone.
    is_changing: AtomicBool,
}

impl PostgresStore {
    pub(in crate::store) async fn bulk_session(&self) -> Result<BulkSession<'_>, StoreError> {
        let failed = |e: CallError| e.into_store_error(self.pool.location());
        let client = self.pool.connector().connect(Instant::now() + CONNECT, None).await.map_err(failed)?;
        // An export may wait for its disk within its transaction.
        let timeouts = format!(
            "SET statement_timeout = {}; SET idle_in_transaction_session_timeout = {}",
            STATEMENT.as_millis(),
            STATEMENT.as_millis()
        );
        batch(&client, Instant::now() + READ, &timeouts).await.map_err(failed)?;
        let _ = batch(&client, Instant::now() + READ, CHECK_CONNECTION).await;
        Ok(BulkSession { client, store: self, is_changing: AtomicBool::new(false) })
    }
}

impl BulkSession<'_> {
    /// The result, with a server's error as a store's.
    pub(in crate::store) fn check<T>(&self, result: Result<T, tokio_postgres::Error>) -> Result<T, StoreError> {
        result.map_err(|e| CallError::Server(e).into_store_error(self.store.pool.location()))
    }

    /// Executes the steps in a transaction, which waits for its turn for `wait`, and numbers it as a change of
    /// everything; [`BulkSession::commit`] commits it. `done` is called after each step. Where the query `obstacle`
    /// finds a text, nothing is done, and the error is the refusal made of that text. Where a query of `faults` finds a
    /// row after the steps, all is undone, and the answer is false.
    pub(in crate::store) async fn apply(
        &self,
        wait: Duration,
        (obstacle, refusal): (&str, fn(&str) -> String),
        steps: &[&str],
        faults: &[&str],
        done: &mut dyn FnMut(usize),
    ) -> Result<bool, StoreError> {
        let (client, store) = (&self.client, self.store);
        let failed = |e: CallError| e.into_store_error(store.pool.location());
        self.is_changing.store(true, Ordering::Relaxed);
        batch(client, Instant::now() + wait + READ, &begin(wait)).await.map_err(failed)?;
        let found = rows(client, Instant::now() + STATEMENT, obstacle, &[]).await.map_err(failed)?;
        if let Some(row) = found.first() {
            // The connection is closed on return, which undoes the transaction.
            return Err(refused(refusal(column(row, 0)?)));
        }
        for (at, step) in steps.iter().enumerate() {
            batch(client, Instant::now() + STATEMENT, step).await.map_err(failed)?;
            done(at);
        }
        for fault in faults {
            if !rows(client, Instant::now() + STATEMENT, fault, &[]).await.map_err(failed)?.is_empty() {
                batch(client, Instant::now() + READ, "ROLLBACK").await.map_err(failed)?;
                self.is_changing.store(false, Ordering::Relaxed);
                return Ok(false);
            }
        }
        let mut changes = ChangeSet::default();
        changes.add(&Change::Everything);
        let node = store.node.load(Ordering::SeqCst);
        for (kind, members) in change_rows(&changes) {
            let values: Params<'_> = &[&node, &kind, &members, &store.feed_kept, &PRUNE_EVERY];
            rows(client, Instant::now() + READ, NUMBER, values).await.map_err(failed)?;
        }
        Ok(true)
    }

    /// Commits what was applied.
    pub(in crate::store) async fn commit(self) -> Result<(), StoreError> {
        self.is_changing.store(false, Ordering::Relaxed);
        let committed = batch(&self.client, Instant::now() + COMMIT, "COMMIT").await;
        committed.map_err(|e| e.into_unknown_outcome(self.store.pool.location()))
    }
}

impl Drop for BulkSession<'_> {
    fn drop(&mut self) {
        if self.is_changing.load(Ordering::Relaxed) {
            // First, so that no other statement is sent.
            self.client.end();
            self.store.pool.connector().cancel(self.client.cancel_token());
        }
    }
}

impl Deref for BulkSession<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
