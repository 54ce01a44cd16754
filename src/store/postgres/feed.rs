//! The change feed: what was changed is numbered in the store, in the change's own transaction, and
//! read by its numbers. A notice only says that it is worth looking; a look is made in any case, so a
//! notice that was lost costs a fraction of a second and no change.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Row;

use super::column;
use super::connect::{Dialer, Session};
use super::failure::Trouble;
use super::line::{DIAL, Dialing, Line};
use super::pool::{batch, rows};
use super::transaction::CHANNEL;
use crate::store::marks::Marks;
use crate::store::{Change, StoreError};

/// How long it may be until the next look, without a notice. With [`ANSWER`] and the follower's own
/// step it stays well within the second that guarantees 2 and 7 allow.
const LOOK: Duration = Duration::from_millis(150);

/// The least time between two looks: many commits at once are one look.
const CALM: Duration = Duration::from_millis(10);

/// How long a look may take before the feed counts as lost.
const ANSWER: Duration = Duration::from_millis(600);

/// Changes read at once; who is further behind is told [`Change::Everything`]. At 512 members each
/// they are 8 MiB.
const READ_AT_ONCE: i64 = 2048;

/// From the newest back: where the oldest of them is not the last one known, some were missed.
const SINCE: &str = "SELECT seq, node, kind, CASE WHEN seq > $1 THEN members END FROM change \
    WHERE seq >= $1 ORDER BY seq DESC LIMIT $2";

const NEWEST: &str = "SELECT seq, node FROM change ORDER BY seq DESC LIMIT 1";

/// A change's number, and who made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Newest {
    pub(super) seq: i64,
    pub(super) node: i64,
}

/// Follows the changes that others make.
#[derive(Debug)]
pub(super) struct Feed {
    dialer: Arc<Dialer>,
    node: Arc<AtomicI64>,
    noticed: Arc<Notify>,
    ear: Mutex<Ear>,
}

#[derive(Debug)]
struct Ear {
    line: Line,
    /// The newest change read; `None`: there has been none.
    last: Option<Newest>,
    /// The connection is not the one on which `last` was read. Behind another there may be another server,
    /// whose numbers are its own: a standby that took over without the last commits gives them anew.
    moved: bool,
}

impl Feed {
    /// Starts after the change `last`, on a connection that hears notices by `noticed`.
    pub(super) fn new(
        dialer: Arc<Dialer>,
        node: Arc<AtomicI64>,
        noticed: Arc<Notify>,
        session: Session,
        last: Option<Newest>,
    ) -> Self {
        Feed { dialer, node, noticed, ear: Mutex::new(Ear { line: Line::of(session), last, moved: false }) }
    }

    /// Until a notice comes, or it is time to look in any case.
    pub(super) async fn stirred(&self) {
        sleep(CALM).await;
        let _ = timeout(LOOK, self.noticed.notified()).await;
    }

    pub(super) async fn changes(&self) -> Result<Vec<Change>, StoreError> {
        let mut ear = self.ear.lock().await;
        let place = self.dialer.place();
        let Ear { line, moved, .. } = &mut *ear;
        let dial = || {
            *moved = true;
            self.dial()
        };
        let session = line.take(Instant::now() + ANSWER, dial).await.map_err(|e| e.told(place))?;
        match self.look(&session, &mut ear).await {
            Ok(changes) => {
                ear.line.put_back(session);
                Ok(changes)
            }
            Err(trouble) => Err(trouble.told(place)),
        }
    }

    fn dial(&self) -> Dialing {
        let (dialer, noticed) = (self.dialer.clone(), self.noticed.clone());
        self.dialer.home().spawn(async move {
            let until = Instant::now() + DIAL;
            let session = dialer.dial_first(until, Some(noticed)).await?;
            batch(&session, until, &format!("LISTEN {CHANNEL}")).await?;
            Ok(session)
        })
    }

    async fn look(&self, client: &ClientWrapper, ear: &mut Ear) -> Result<Vec<Change>, Trouble> {
        let until = Instant::now() + ANSWER;
        if ear.moved {
            ear.last = newest(client, until).await?;
            ear.moved = false;
            return Ok(Marks::default().told(true));
        }
        let last = &mut ear.last;
        let from = last.map_or(0, |last| last.seq);
        let found = rows(client, until, SINCE, &[&from, &READ_AT_ONCE]).await?;
        let (Some(first), Some(end)) = (found.first(), found.last()) else {
            let Some(_) = last else { return Ok(Vec::new()) };
            // The newest row is never pruned: the store was put back to an earlier state.
            *last = newest(client, until).await?;
            return Ok(Marks::default().told(true));
        };
        let (newest, oldest) = (Newest::of(first).map_err(Trouble::Own)?, Newest::of(end).map_err(Trouble::Own)?);
        // Without a last one, number 1 is the first; it is missed only where it was pruned.
        let whole = last.map_or(oldest.seq == 1, |last| oldest == last);
        let (own, mut marks) = (self.node.load(Ordering::SeqCst), Marks::default());
        for row in &found {
            let change = Newest::of(row).map_err(Trouble::Own)?;
            if change.seq > from && change.node != own {
                let kind: i16 = column(row, 2).map_err(Trouble::Own)?;
                let members: Option<&[u8]> = column(row, 3).map_err(Trouble::Own)?;
                marks.add_row(kind.into(), members.unwrap_or_default());
            }
        }
        *last = Some(newest);
        Ok(marks.told(!whole))
    }
}

/// The newest change there is.
pub(super) async fn newest(client: &ClientWrapper, until: Instant) -> Result<Option<Newest>, Trouble> {
    let found = rows(client, until, NEWEST, &[]).await?;
    found.first().map(Newest::of).transpose().map_err(Trouble::Own)
}

impl Newest {
    fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Newest { seq: column(row, 0)?, node: column(row, 1)? })
    }
}
