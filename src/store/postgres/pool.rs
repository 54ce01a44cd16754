//! The pool: bounded, and every call has a deadline. A connection that missed one is closed, and those
//! at rest with it: what cut one off has most likely cut them all, and each would cost a caller its
//! own deadline.

use std::sync::Arc;

use deadpool::managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connect::{AbortOnDrop, Dialer, Session};
use super::failure::Trouble;
use super::slots::AGAIN;
use super::{LIST, READ};
use crate::store::StoreError;

/// Parameters of a statement.
pub(super) type Params<'p> = &'p [&'p (dyn ToSql + Sync)];

/// The connections that are shared.
#[derive(Debug)]
pub(super) struct Pool {
    pool: managed::Pool<Manager>,
    dialer: Arc<Dialer>,
    /// Gives up what is at rest where the server's slots are wanted.
    _gives: AbortOnDrop,
}

impl Pool {
    pub(super) fn new(dialer: Arc<Dialer>, connections: usize) -> Result<Self, StoreError> {
        let pool = managed::Pool::builder(Manager(dialer.clone()))
            .max_size(connections)
            .build()
            .map_err(|e| StoreError::Failed(format!("no pool of connections: {e}")))?;
        let (resting, asked) = (pool.clone(), dialer.clone());
        let gives = dialer.home().spawn(async move {
            loop {
                asked.slots().wanted_from_the_pool().await;
                resting.retain(|_, _| false);
            }
        });
        Ok(Pool { pool, dialer, _gives: AbortOnDrop::of(&gives) })
    }

    pub(super) fn place(&self) -> &str {
        self.dialer.place()
    }

    pub(super) fn dialer(&self) -> &Arc<Dialer> {
        &self.dialer
    }

    /// A connection of one's own, by `until`.
    pub(super) async fn lease(&self, until: Instant) -> Result<Lease<'_>, Trouble> {
        let busy = || {
            let all = self.pool.status();
            let line = if all.size >= all.max_size && all.available == 0 {
                format!("{}: all {} connections are in use; try again", self.place(), all.max_size)
            } else {
                format!("{} cannot be reached in time; try again", self.place())
            };
            Trouble::Own(StoreError::Busy(line))
        };
        loop {
            match timeout_at(until, self.pool.get()).await {
                Ok(Ok(client)) => return Ok(Lease { client, pool: self, until, sound: true }),
                // One of those that there are comes back.
                Ok(Err(PoolError::Backend(trouble))) if trouble.is_full() && Instant::now() + AGAIN < until => {
                    sleep(AGAIN).await;
                }
                Ok(Err(PoolError::Backend(trouble))) => return Err(trouble),
                Err(_) | Ok(Err(_)) => return Err(busy()),
            }
        }
    }

    /// The rows of one statement that a caller's request waits for, and that changes nothing.
    pub(super) async fn read(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        self.read_by(Instant::now() + READ, sql, params).await
    }

    /// The rows of one statement that may be many.
    pub(super) async fn list(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        self.read_by(Instant::now() + LIST, sql, params).await
    }

    /// One statement that changes what nobody's answers depend on. It is not tried again: it may have
    /// been done.
    pub(super) async fn note(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let told = |trouble: Trouble| trouble.told(self.place());
        let mut lease = self.lease(Instant::now() + LIST).await.map_err(told)?;
        lease.rows(sql, params).await.map_err(told)
    }

    async fn read_by(&self, until: Instant, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let mut again = true;
        loop {
            let rows = match self.lease(until).await {
                Ok(mut lease) => match lease.rows(sql, params).await {
                    Ok(_) if !lease.is_followed() => continue,
                    rows => rows,
                },
                Err(trouble) => Err(trouble),
            };
            match rows {
                // A connection that died at rest, as all do when the server starts anew: once more.
                Err(trouble) if again && trouble.is_connections() && !matches!(trouble, Trouble::Late) => again = false,
                rows => return rows.map_err(|trouble| trouble.told(self.place())),
            }
        }
    }
}

/// A connection of the pool's. It goes back when dropped, if it is worth anything.
#[derive(Debug)]
pub(super) struct Lease<'p> {
    client: Object<Manager>,
    pool: &'p Pool,
    until: Instant,
    /// False while it is in a state that nobody else can use.
    sound: bool,
}

impl Lease<'_> {
    /// The rows of a statement, by the lease's deadline. It stays prepared on the connection.
    pub(super) async fn rows(&mut self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Trouble> {
        let rows = rows(&self.client, self.until, sql, params).await;
        self.note(rows)
    }

    /// Statements without parameters, by the lease's deadline.
    pub(super) async fn batch(&mut self, sql: &str) -> Result<(), Trouble> {
        let done = batch(&self.client, self.until, sql).await;
        self.note(done)
    }

    /// Marks the connection as amid something, or as past it.
    pub(super) fn set_sound(&mut self, sound: bool) {
        self.sound = sound;
    }

    /// Whether its server was not given up meanwhile for another.
    pub(super) fn is_followed(&self) -> bool {
        self.client.is_followed()
    }

    pub(super) fn put_off(&mut self, until: Instant) {
        self.until = until;
    }

    pub(super) fn place(&self) -> &str {
        self.pool.place()
    }

    fn note<T>(&mut self, result: Result<T, Trouble>) -> Result<T, Trouble> {
        if let Err(trouble) = &result
            && trouble.is_connections()
        {
            self.sound = false;
            if matches!(trouble, Trouble::Late) {
                self.pool.pool.retain(|_, _| false);
            }
        }
        result
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if !self.sound || self.pool.dialer.slots().is_one_wanted() {
            self.client.end();
        }
    }
}

/// Makes the pool's connections, and looks at each before it is given out again.
#[derive(Debug)]
struct Manager(Arc<Dialer>);

impl managed::Manager for Manager {
    type Type = Session;
    type Error = Trouble;

    async fn create(&self) -> Result<Session, Trouble> {
        if !self.0.slots().may_ask() {
            return Err(Trouble::NoSlot);
        }
        let dialed = self.0.dial(Instant::now() + READ, None).await;
        if dialed.as_ref().is_err_and(Trouble::is_full) {
            self.0.slots().had_none();
        }
        dialed
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<Trouble> {
        if session.is_usable() { Ok(()) } else { Err(RecycleError::message("of no use any more")) }
    }
}

/// What was done on a server that was given up while it was: another has taken its place, and may know nothing of it.
pub(super) fn given_up() -> Trouble {
    Trouble::Own(StoreError::Busy("another server has taken its place meanwhile".to_owned()))
}

/// The rows of a statement that stays prepared on the connection.
pub(super) async fn rows(
    client: &ClientWrapper,
    until: Instant,
    sql: &str,
    params: Params<'_>,
) -> Result<Vec<Row>, Trouble> {
    let ask = async {
        let statement = client.prepare_cached(sql).await?;
        client.query(&statement, params).await
    };
    timeout_at(until, ask).await.map_err(|_| Trouble::Late)?.map_err(Trouble::Server)
}

/// Statements without parameters.
pub(super) async fn batch(client: &ClientWrapper, until: Instant, sql: &str) -> Result<(), Trouble> {
    timeout_at(until, client.batch_execute(sql)).await.map_err(|_| Trouble::Late)?.map_err(Trouble::Server)
}
