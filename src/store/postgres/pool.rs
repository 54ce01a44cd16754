//! The pool of connections for reads and single changes. It is bounded, and each call has a deadline. After a
//! call that missed its deadline its connection is closed, and so are the idle ones: what cut one off has most
//! likely cut them all, and each would cost a caller its deadline.

use std::sync::Arc;

use deadpool::managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper as Client;
use tokio::time::{Duration, Instant, sleep, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connector::{Connector, Session};
use super::error::CallError;
use super::{LIST, READ};
use crate::store::StoreError;

/// When to try again after the server had no free slot: it starts a process for each try.
pub(super) const SLOT_RETRY: Duration = Duration::from_millis(50);

/// Parameters of a statement.
pub(super) type Params<'p> = &'p [&'p (dyn ToSql + Sync)];

#[derive(Clone, Debug)]
pub(super) struct Pool {
    pool: managed::Pool<Manager>,
    connector: Arc<Connector>,
}

impl Pool {
    pub(super) fn new(connector: Arc<Connector>, connections: usize) -> Result<Self, StoreError> {
        let pool = managed::Pool::builder(Manager(connector.clone())).max_size(connections).build();
        let pool = pool.map_err(|e| StoreError::Failed(format!("cannot make a pool of connections: {e}")))?;
        Ok(Pool { pool, connector })
    }

    pub(super) fn location(&self) -> &str {
        self.connector.location()
    }

    pub(super) fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    pub(super) fn close_idle(&self) {
        self.pool.retain(|_, _| false);
    }

    /// A connection for one caller, whose calls end by `until`.
    pub(super) async fn get(&self, until: Instant) -> Result<PooledConnection<'_>, CallError> {
        loop {
            match timeout_at(until, self.pool.get()).await {
                Ok(Ok(session)) => return Ok(PooledConnection { session, pool: self, until, reusable: true }),
                // A connection that is in use comes back.
                Ok(Err(PoolError::Backend(error))) if error.is_full() && Instant::now() + SLOT_RETRY < until => {
                    sleep(SLOT_RETRY).await;
                }
                Ok(Err(PoolError::Backend(error))) => return Err(error),
                Err(_) | Ok(Err(_)) => return Err(self.busy()),
            }
        }
    }

    fn busy(&self) -> CallError {
        let (location, status) = (self.location(), self.pool.status());
        CallError::Store(StoreError::Busy(if status.size >= status.max_size && status.available == 0 {
            format!("{location}: all {} connections are in use; try again", status.max_size)
        } else {
            format!("{location} cannot be reached in time; try again")
        }))
    }

    /// The rows of one read that a caller's request waits for.
    pub(super) async fn read(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        self.read_by(Instant::now() + READ, sql, params).await
    }

    /// The rows of one read that may be many.
    pub(super) async fn list(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        self.read_by(Instant::now() + LIST, sql, params).await
    }

    /// One statement that writes what no answer depends on, such as counts. It is not tried again, since it may
    /// have been done.
    pub(super) async fn write_once(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let failed = |error: CallError| error.into_store_error(self.location());
        let mut connection = self.get(Instant::now() + LIST).await.map_err(failed)?;
        connection.rows(sql, params).await.map_err(|error| match error {
            // The statement was sent, and commits by itself.
            error if error.is_disconnect() || matches!(error, CallError::Timeout) => {
                error.into_unknown_outcome(self.location())
            }
            error => failed(error),
        })
    }

    async fn read_by(&self, until: Instant, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let mut result = self.try_read(until, sql, params).await;
        // All idle connections are dead after the server restarted or another took its place: once more.
        if result.as_ref().is_err_and(CallError::is_disconnect) {
            result = self.try_read(until, sql, params).await;
        }
        result.map_err(|error| error.into_store_error(self.location()))
    }

    async fn try_read(&self, until: Instant, sql: &str, params: Params<'_>) -> Result<Vec<Row>, CallError> {
        self.get(until).await?.rows(sql, params).await
    }
}

/// A connection of the pool. Dropped, it goes back, or is closed where it cannot be used again.
#[derive(Debug)]
pub(super) struct PooledConnection<'p> {
    session: Object<Manager>,
    pool: &'p Pool,
    until: Instant,
    reusable: bool,
}

impl PooledConnection<'_> {
    /// The rows of a statement, which stays prepared on the connection.
    pub(super) async fn rows(&mut self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, CallError> {
        let rows = rows(&self.session, self.until, sql, params).await;
        self.checked(rows)
    }

    /// Executes statements without parameters.
    pub(super) async fn batch(&mut self, sql: &str) -> Result<(), CallError> {
        let done = batch(&self.session, self.until, sql).await;
        self.checked(done)
    }

    pub(super) fn set_reusable(&mut self, reusable: bool) {
        self.reusable = reusable;
    }

    pub(super) fn set_deadline(&mut self, until: Instant) {
        self.until = until;
    }

    pub(super) fn location(&self) -> &str {
        self.pool.location()
    }

    fn checked<T>(&mut self, result: Result<T, CallError>) -> Result<T, CallError> {
        match &result {
            Err(CallError::Timeout) => {
                self.reusable = false;
                self.pool.close_idle();
            }
            Err(error) if error.is_disconnect() => self.reusable = false,
            _ => {}
        }
        result
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        if !self.reusable {
            self.session.end();
        }
    }
}

/// Makes the pool's connections, and checks each before it is used again.
#[derive(Debug)]
struct Manager(Arc<Connector>);

impl managed::Manager for Manager {
    type Type = Session;
    type Error = CallError;

    async fn create(&self) -> Result<Session, CallError> {
        while self.0.pool_must_yield() {
            sleep(SLOT_RETRY).await;
        }
        self.0.connect(Instant::now() + READ, None).await
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<CallError> {
        if session.is_usable() && !self.0.pool_must_yield() {
            Ok(())
        } else {
            Err(RecycleError::message("closed, or its slot is needed"))
        }
    }
}

/// The rows of a statement, which stays prepared on the connection.
pub(super) async fn rows(
    client: &Client,
    until: Instant,
    sql: &str,
    params: Params<'_>,
) -> Result<Vec<Row>, CallError> {
    let query = async {
        let statement = client.prepare_cached(sql).await?;
        client.query(&statement, params).await
    };
    timeout_at(until, query).await.map_err(|_| CallError::Timeout)?.map_err(CallError::Server)
}

/// Executes statements without parameters.
pub(super) async fn batch(client: &Client, until: Instant, sql: &str) -> Result<(), CallError> {
    timeout_at(until, client.batch_execute(sql)).await.map_err(|_| CallError::Timeout)?.map_err(CallError::Server)
}
