//! A connection that one user keeps, so that readers cannot use it up: the writer, the change feed and the key
//! list have one each. It is made in the background, since that may take longer than one caller waits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::connector::Session;
use super::error::CallError;
use super::pool::{Pool, SLOT_RETRY};

/// How long connecting is tried again while the server has no free slot.
const NO_SLOT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct DedicatedConnection {
    pool: Pool,
    /// Notified of commits.
    notices: Option<Arc<Notify>>,
    session: Option<Session>,
    connecting: Option<JoinHandle<Result<Session, CallError>>>,
    /// Set with each new connection; the user resets it.
    pub(super) is_new: bool,
}

impl DedicatedConnection {
    pub(super) fn new(pool: Pool, notices: Option<Arc<Notify>>) -> Self {
        DedicatedConnection { pool, notices, session: None, connecting: None, is_new: false }
    }

    /// Takes the connection out, connecting by `until` if need be. After an error it is not put back.
    pub(super) async fn take(&mut self, until: Instant) -> Result<Session, CallError> {
        loop {
            if let Some(session) = self.session.take().filter(Session::is_usable) {
                return Ok(session);
            }
            let ended_before = self.connecting.as_ref().is_some_and(JoinHandle::is_finished);
            let connecting = self.connecting.get_or_insert_with(|| {
                let connecting = connect(self.pool.clone(), self.notices.clone());
                self.pool.connector().runtime().spawn(connecting)
            });
            let connected = timeout_at(until, connecting).await.map_err(|_| CallError::Timeout)?;
            self.connecting = None;
            match connected.unwrap_or(Err(CallError::Timeout)) {
                // An outcome from before this call says nothing about now.
                Ok(session) if ended_before && !session.is_usable() => {}
                Err(_) if ended_before => {}
                connected => {
                    self.is_new = true;
                    return connected;
                }
            }
        }
    }

    pub(super) fn put_back(&mut self, session: Session) {
        self.session = Some(session);
    }
}

/// Connects. Where the server has no free slot, the pool gives up the connections that it can.
async fn connect(pool: Pool, notices: Option<Arc<Notify>>) -> Result<Session, CallError> {
    let until = Instant::now() + NO_SLOT;
    loop {
        let connected = pool.connector().try_hosts(notices.clone()).await;
        let is_full = connected.as_ref().is_err_and(CallError::is_full) && Instant::now() < until;
        pool.connector().set_pool_must_yield(is_full);
        if !is_full {
            return connected;
        }
        pool.close_idle();
        sleep(SLOT_RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::PostgresAt;
    use crate::store::postgres::tests::server::Postgres;
    use crate::store::{IfMissing, PostgresStore};

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn connecting_goes_on_without_a_caller_and_is_retried_after_a_failure() {
        let server = Postgres::start(&[]);
        let at = PostgresAt::parse(&server.database().await, Path::new("/")).unwrap();
        let store = PostgresStore::open(&at, IfMissing::Make).await.unwrap();
        let mut connection = DedicatedConnection::new(store.pool.clone(), None);
        let task = |connection: &DedicatedConnection| connection.connecting.as_ref().unwrap().id();
        let frozen = server.freeze();
        assert!(matches!(connection.take(soon()).await, Err(CallError::Timeout)));
        let first = task(&connection);
        assert!(matches!(connection.take(soon()).await, Err(CallError::Timeout)));
        assert_eq!(task(&connection), first);
        drop(frozen);
        let session = connection.take(late()).await.unwrap();
        assert!(session.is_usable());
        let frozen = server.freeze();
        assert!(matches!(connection.take(soon()).await, Err(CallError::Timeout)));
        server.kill();
        let failed = async {
            while !connection.connecting.as_ref().unwrap().is_finished() {
                tokio::task::yield_now().await;
            }
        };
        timeout_at(late(), failed).await.unwrap();
        drop(frozen);
        server.recover();
        assert!(connection.take(late()).await.is_ok());
    }
}
