//! Guilds, keys, members and their notes on disk (contract section 1 "Built-in backend", guarantee 1), in an SQLite file
//! or in PostgreSQL. No other module opens a store.
//!
//! A store is some threads and their connections: readers, one for lists, one that writes (group commit) and one that
//! reads the change feed. One SQL text serves both kinds of database; `conn::Conn` is what they differ in.

pub mod backup; // backup, restore and verification of an SQLite file
mod conn; // a connection of either kind
mod daily; // requests of each key in a day
mod directory; // guilds and keys
mod export; // JSON Lines out
mod feed; // what others changed
mod import; // JSON Lines in
mod lines; // a file as lines of bounded length
mod members; // members and their notes, one record at a time
mod postgres;
mod record; // what a line says
mod records; // what stores take and give, and their errors
pub(crate) mod refusals; // messages
mod requests; // the operations of callers
mod sqlite;
pub mod temp_file; // a file that replaces another one whole
mod workers; // threads that read
mod writer; // the thread that writes

#[cfg(test)]
pub(crate) mod suite;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::StoreAt;
use crate::model::{Digest, GuildId, KeyId, MemberId, Note, NoteKind, Scope};

use conn::{Conn, Value, values};
use workers::{Opener, Workers};
use writer::Writer;

pub use daily::KEPT_DAYS;
pub use import::{BadLines, Imported, Mode, Progress, SHOWN, TransferError, UncommittedImport};
pub use record::Record;
pub use records::*;
pub use sqlite::MAGIC as SQLITE_MAGIC;

/// The suffixes of the files that SQLite keeps next to a database that it writes to.
pub const SQLITE_FILES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// How long a caller's read may take, with its wait for a thread; then the answer is 21.
const READ: Duration = Duration::from_secs(2);

/// How long a list may take: a million keys are read in a second or two.
const LIST: Duration = Duration::from_secs(10);

/// How long an import or the removal of a guild waits for its turn among those who write, such as another import.
const TURN: Duration = Duration::from_secs(60);

/// How long it may take then.
const LONG: Duration = Duration::from_secs(30 * 60);

/// What opening a store does if there is none (contract section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// Makes one: `serve`, `import` and `guild add`.
    Make,
    /// Fails, and names the location: every other command.
    Refuse,
}

/// What is at the location of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// There is none; `serve`, `import` and `guild add` make it.
    Missing,
    /// Its schema is an older version's; the next command that opens it brings it up to date.
    Older,
    /// Its schema is this version's.
    Current,
}

/// A store. Dropping it finishes the writes that are queued.
pub struct Store {
    readers: Workers,
    lists: Workers,
    feed: Workers,
    writer: Writer,
    opener: Arc<Opener>,
    location: String,
    is_new: bool,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.location)
    }
}

impl Store {
    /// Opens the store and brings it up to date; makes it if there is none and `if_missing` says so.
    ///
    /// # Errors
    /// Why it cannot be used, and what to do about it.
    pub async fn open(at: &StoreAt, if_missing: IfMissing) -> Result<Arc<Self>, StoreError> {
        let at = at.clone();
        let store = blocking(move || {
            let (opener, readers, location, is_new) = match at {
                StoreAt::Sqlite(path) => {
                    let (path, file, is_new) = sqlite::prepare(&path, if_missing)?;
                    let location = path.display().to_string();
                    (Opener::new(move |_| sqlite::open(&path, file)), sqlite::READERS, location, is_new)
                }
                StoreAt::Postgres(at) => {
                    let (location, is_new) = (at.to_string(), postgres::prepare(&at, if_missing)?);
                    (Opener::new(move |longest| postgres::open(&at, longest)), postgres::READERS, location, is_new)
                }
            };
            let writer = Writer::start(&opener, Some(opener.open_leading(LIST)?))?;
            let start = |name, count| Workers::start(name, count, &opener);
            let (readers, lists, feed) =
                (start("store-reader", readers)?, start("store-lists", 1)?, start(workers::FEED, 1)?);
            Ok::<_, StoreError>(Arc::new(Store { readers, lists, feed, writer, opener, location, is_new }))
        });
        let store = store.await?;
        store.changes_within(LIST).await?; // those from here on are news
        Ok(store)
    }

    /// The number of the schema that this version writes in a store of this kind.
    pub fn schema(at: &StoreAt) -> i64 {
        match at {
            StoreAt::Sqlite(_) => sqlite::newest_schema(),
            StoreAt::Postgres(_) => postgres::newest(),
        }
    }

    /// The state of the store. Nothing is made or changed.
    ///
    /// # Errors
    /// Why it cannot be used, and what to do about it.
    pub async fn state(at: &StoreAt) -> Result<StoreState, StoreError> {
        let at = at.clone();
        blocking(move || match &at {
            StoreAt::Sqlite(path) => sqlite::state(path),
            StoreAt::Postgres(at) => postgres::state(at),
        })
        .await
    }

    /// Where it is: an absolute path, or a URL without its password.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Whether this opening made the store.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Why the last write failed, if it did and none has succeeded since. Reads may go on.
    pub fn write_fault(&self) -> Option<String> {
        self.writer.shared.fault.lock().clone()
    }

    /// Waits until the thread that writes has ended, which only a defect causes while the store is open. Every write is
    /// refused from then on.
    pub async fn writer_ended(&self) {
        self.writer.ended().await;
    }

    /// Changes what `change` says, or nothing where `work` fails, or where its caller stops waiting before it begins.
    async fn write<T: Send + 'static>(
        &self,
        change: Option<Change>,
        work: impl Fn(&mut dyn Conn) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.run(move |conn| work(conn).map(|made| (made, change.clone()))).await
    }

    /// As [`Store::write`], on a connection of its own: it may take minutes, in which other writes wait for a second.
    async fn write_long<T: Send + 'static>(
        &self,
        change: Change,
        work: impl FnOnce(&mut dyn Conn) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (opener, shared) = (self.opener.clone(), self.writer.shared.clone());
        blocking(move || {
            let mut conn = opener.open_leading(LONG)?;
            conn.set_deadline(Instant::now() + LONG);
            conn.begin(TURN)?;
            let made = work(&mut *conn)?;
            feed::add(&mut *conn, feed::NOBODY, &[change].into())?;
            conn.commit()?;
            shared.committed.notify_one();
            Ok(made)
        })
        .await
    }
}

/// The number of the newest of these migrations.
fn newest_version(migrations: &refinery::Runner) -> i64 {
    migrations.get_migrations().iter().map(|m| i64::from(m.version())).max().unwrap_or(0)
}

/// Runs `work` on a thread where it may block. If this is dropped, `work` goes on, and its result is dropped.
pub(crate) async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<StoreError> + Send + 'static,
{
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| StoreError::Failed(format!("the work ended midway: {e}")))?
}
