//! The lists that the book of keys is made of, on a connection of their own: a pool that readers have used
//! up must not keep a node from knowing its keys.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use super::LIST;
use super::connect::Dialer;
use super::failure::Trouble;
use super::line::Line;
use super::pool::rows;
use crate::store::StoreError;

#[derive(Debug)]
pub(super) struct Lists {
    dialer: Arc<Dialer>,
    line: Mutex<Line>,
}

impl Lists {
    pub(super) fn new(dialer: Arc<Dialer>) -> Self {
        Lists { dialer, line: Mutex::default() }
    }

    /// The rows of one statement. One list at a time: a second would only wait for the first on the
    /// connection.
    pub(super) async fn rows(&self, sql: &str) -> Result<Vec<Row>, StoreError> {
        self.rows_by(Instant::now() + LIST, sql).await.map_err(|trouble| trouble.told(self.dialer.place()))
    }

    async fn rows_by(&self, until: Instant, sql: &str) -> Result<Vec<Row>, Trouble> {
        let mut line = timeout_at(until, self.line.lock()).await.map_err(|_| Trouble::Late)?;
        let mut again = true;
        loop {
            let session = line.take(until, || self.dialer.dial_aside()).await?;
            let listed = tokio::select! {
                listed = rows(&session, until, sql, &[]) => listed,
                // A list may take long, and without it no key is let in: the next server is asked at once.
                () = session.left_behind() => continue,
            };
            match listed {
                // A connection that died at rest, as all do when the server starts anew: once more.
                Err(trouble) if again && trouble.is_connections() && !matches!(trouble, Trouble::Late) => again = false,
                Err(trouble) if trouble.is_connections() => return Err(trouble),
                listed => {
                    line.put_back(session);
                    return listed;
                }
            }
        }
    }
}
