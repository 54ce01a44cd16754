//! Work that takes long, on a connection of its own: import and export.

use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use tokio::time::Instant;
use tokio_postgres::Row;

use super::connect::Session;
use super::failure::Trouble;
use super::pool::{batch, rows};
use super::transaction::{NUMBER, begin, numbered};
use super::{PostgresStore, READ, column};
use crate::store::marks::{Marks, PRUNE_EVERY};
use crate::store::refusals::refused;
use crate::store::under_way::{IfAbandoned, if_abandoned, settle};
use crate::store::{Change, StoreError};

/// For a connection to be made by a command.
const CONNECT: Duration = Duration::from_secs(5);

/// How long one statement may take. Ten million records take minutes.
const STATEMENT: Duration = Duration::from_secs(30 * 60);

/// For the commit of a large change.
const COMMIT: Duration = Duration::from_secs(60);

/// How often the server looks, amid a statement, whether who waits for it is still there: after a kill -9
/// nobody says so. Servers from 14 on can; on others what was begun goes on to its end.
const LOOKS: &str = "SET client_connection_check_interval = '5s'";

/// A connection of one's own, on which statements may take long. If the command is interrupted, the server
/// is told to end them.
#[derive(Debug)]
pub(in crate::store) struct Errand<'s> {
    client: Session,
    store: &'s PostgresStore,
    _ended: IfAbandoned,
}

impl PostgresStore {
    pub(in crate::store) async fn errand(&self) -> Result<Errand<'_>, StoreError> {
        let told = |e: Trouble| e.told(self.pool.place());
        let client = self.pool.dialer().dial(Instant::now() + CONNECT, None).await.map_err(told)?;
        // An export waits for its disk, with its transaction open.
        let patient = format!(
            "SET statement_timeout = {}; SET idle_in_transaction_session_timeout = {}",
            STATEMENT.as_millis(),
            STATEMENT.as_millis()
        );
        batch(&client, Instant::now() + READ, &patient).await.map_err(told)?;
        let _ = batch(&client, Instant::now() + READ, LOOKS).await;
        let (dialer, connection, statement) = (self.pool.dialer().clone(), client.ending(), client.cancel_token());
        let _ended = if_abandoned(move || dialer.cut(&connection, &statement));
        Ok(Errand { client, store: self, _ended })
    }
}

impl Errand<'_> {
    /// The server's answer, or its error as a store's.
    pub(in crate::store) fn check<T>(&self, answer: Result<T, tokio_postgres::Error>) -> Result<T, StoreError> {
        answer.map_err(|e| Trouble::Server(e).told(self.store.pool.place()))
    }

    /// Does the steps in one transaction, whose turn comes within `wait`, and tells others that
    /// everything changed. `done` is told of each step that was. Where the query `obstacle` finds a text, nothing is
    /// done, and the refusal made of it is the answer. Where one of `faults` finds rows after the steps, all is undone,
    /// and they are answered.
    pub(in crate::store) async fn change_everything(
        &self,
        wait: Duration,
        (obstacle, refusal): (&str, fn(&str) -> String),
        steps: &[&str],
        faults: &[&str],
        done: &mut dyn FnMut(usize),
    ) -> Result<Option<Vec<Vec<Row>>>, StoreError> {
        let (client, store) = (&self.client, self.store);
        let told = |e: Trouble| e.told(store.pool.place());
        batch(client, Instant::now() + wait + READ, &begin(wait)).await.map_err(told)?;
        let found = rows(client, Instant::now() + STATEMENT, obstacle, &[]).await.map_err(told)?;
        if let Some(row) = found.first() {
            // The connection ends with this, and the transaction with it.
            return Err(refused(refusal(column(row, 0)?)));
        }
        for (at, step) in steps.iter().enumerate() {
            batch(client, Instant::now() + STATEMENT, step).await.map_err(told)?;
            done(at);
        }
        let mut found = Vec::new();
        for fault in faults {
            found.push(rows(client, Instant::now() + STATEMENT, fault, &[]).await.map_err(told)?);
        }
        if found.iter().any(|rows| !rows.is_empty()) {
            batch(client, Instant::now() + READ, "ROLLBACK").await.map_err(told)?;
            return Ok(Some(found));
        }
        let mut marks = Marks::default();
        marks.add(&Change::Everything);
        let node = store.node.load(Ordering::SeqCst);
        for (kind, members) in numbered(&marks) {
            let values: super::pool::Params<'_> = &[&node, &kind, &members, &store.feed_kept, &PRUNE_EVERY];
            rows(client, Instant::now() + READ, NUMBER, values).await.map_err(told)?;
        }
        settle();
        let committed = batch(client, Instant::now() + COMMIT, "COMMIT").await;
        committed.map(|()| None).map_err(|e| e.told_of_commit(store.pool.place()))
    }
}

impl Deref for Errand<'_> {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        &self.client
    }
}
