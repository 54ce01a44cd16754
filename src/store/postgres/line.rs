//! A connection that one user keeps to itself: it is there, or it is being made. The making outlives who
//! waits for it, so that it comes to its end however short the patience of each is.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::connect::Session;
use super::failure::Trouble;

/// For a new connection that nobody has to wait for: a turn for each of a few hosts.
pub(super) const DIAL: Duration = Duration::from_secs(5);

/// A connection that is being made.
pub(super) type Dialing = JoinHandle<Result<Session, Trouble>>;

#[derive(Debug, Default)]
pub(super) struct Line {
    session: Option<Session>,
    dialing: Option<Dialing>,
}

impl Line {
    pub(super) fn of(session: Session) -> Self {
        Line { session: Some(session), dialing: None }
    }

    /// Takes the connection out, made by `dial` if need be, by `until`. What goes wrong on it leaves none
    /// behind.
    pub(super) async fn take(&mut self, until: Instant, mut dial: impl FnMut() -> Dialing) -> Result<Session, Trouble> {
        loop {
            if let Some(session) = self.session.take().filter(Session::is_usable) {
                return Ok(session);
            }
            let made_before = self.dialing.as_ref().is_some_and(JoinHandle::is_finished);
            let dialing = self.dialing.get_or_insert_with(&mut dial);
            let dialed = timeout_at(until, dialing).await.map_err(|_| Trouble::Late)?;
            self.dialing = None;
            match dialed.unwrap_or(Err(Trouble::Late)) {
                // It came to its end while nobody waited, which says nothing of now.
                Ok(session) if made_before && !session.is_usable() => {}
                Err(_) if made_before => {}
                dialed => return dialed,
            }
        }
    }

    /// Puts a connection back that is of use to the next one.
    pub(super) fn put_back(&mut self, session: Session) {
        self.session = Some(session);
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

    async fn comes(holds: impl Fn() -> bool) {
        let comes = async {
            while !holds() {
                tokio::task::yield_now().await;
            }
        };
        timeout_at(late(), comes).await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_is_made_on_while_nobody_waits_and_one_that_failed_meanwhile_is_made_anew() {
        let server = Postgres::start(&[]);
        let at = PostgresAt::parse(&server.database().await, Path::new("/")).unwrap();
        let store = PostgresStore::open(&at, IfMissing::Make).await.unwrap();
        let mut dials = 0;
        let mut dial = || {
            dials += 1;
            store.pool.dialer().dial_aside()
        };
        let mut line = Line::default();
        let frozen = server.freeze();
        assert!(matches!(line.take(soon(), &mut dial).await, Err(Trouble::Late)));
        assert!(matches!(line.take(soon(), &mut dial).await, Err(Trouble::Late)));
        drop(frozen);
        let session = line.take(late(), &mut dial).await.unwrap();
        assert!(session.is_usable());
        let frozen = server.freeze();
        assert!(matches!(line.take(soon(), &mut dial).await, Err(Trouble::Late)));
        server.kill();
        comes(|| line.dialing.as_ref().unwrap().is_finished()).await;
        drop(frozen);
        server.recover();
        assert!(line.take(late(), &mut dial).await.is_ok());
        assert_eq!(dials, 3);
    }
}
