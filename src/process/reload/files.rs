//! Looks at the files of a part and reads them, as a whole or not at all, on threads of their own: a file system that
//! hangs delays that part alone.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::Reloader;
use crate::admin::ReloadOutcome;
use crate::process::preflight::UnusableInputs;
use crate::process::watch::{FileStates, FileWatch, SETTLE_TIME, is_same, look_at};

/// How long reading files may take. A pipe without a writer, or a file system whose server is away, must not prevent
/// later reloads. The largest key file takes a second or two.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

const TAKES_TOO_LONG: &str = "reading the files takes too long; is one of them a pipe, or on a file system that hangs?";

/// How long a requested reload waits until files that change stay the same. Whoever asks for one with each change must not be
/// the reason that none is taken up.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);

/// How often files that have changed are looked at until they stay the same.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Reloader {
    /// Looks at the files of a part that are to be read, though they may be the same or empty. Those that have changed must
    /// have stayed the same for a while.
    pub(super) async fn look_when_settled(&self, watch: &Mutex<FileWatch>) -> Result<(), Rejection> {
        let look = async || {
            let looked = timeout(READ_TIMEOUT, self.look(watch)).await;
            looked.map_err(|_| Rejection { reason: TAKES_TOO_LONG.to_owned(), is_unread: true })
        };
        let mut states = look().await?;
        let begun = Instant::now();
        let mut settles = watch.lock().settles_at(&states, begun);
        while settles.is_some_and(|settles| Instant::now() < settles) {
            sleep(LOOK_EVERY).await;
            let before = std::mem::replace(&mut states, look().await?);
            match changed_file(&before, &states) {
                Some(file) if begun.elapsed() > SETTLES_WITHIN => return Err(is_being_written(file)),
                Some(_) => settles = Some(Instant::now() + SETTLE_TIME),
                None => {}
            }
        }
        watch.lock().reset(states);
        Ok(())
    }

    /// Looks at the files of a part. The removal of those that are there is logged anew.
    pub(super) async fn look(&self, watch: &Mutex<FileWatch>) -> FileStates {
        let states = self.states(watch).await;
        let is_there = |path: &PathBuf| states.iter().any(|(of, state)| of == path && state.is_some());
        self.missing.lock().retain(|path| !is_there(path));
        states
    }

    /// Looks at the files of a part on another thread, because this may take for ever; that delays this part alone. If
    /// the part has other files meanwhile, it looks at those; and it looks again after a while, since the file that hangs may
    /// have been replaced.
    async fn states(&self, watch: &Mutex<FileWatch>) -> FileStates {
        loop {
            let (paths, retry_after, reader) = {
                let watch = watch.lock();
                (Vec::from_iter(watch.paths()), watch.retry_after(), watch.reader())
            };
            if paths.is_empty() {
                return Vec::new(); // no thread is woken for them
            }
            let these = paths.clone();
            let mut looking = pin!(async {
                let reader = reader.await;
                let look = move || {
                    let _reader = reader;
                    look_at(these)
                };
                spawn_blocking(look).await
            });
            let begin = Instant::now();
            while watch.lock().paths().eq(paths.iter().cloned()) {
                if let Ok(states) = timeout(SETTLE_TIME, &mut looking).await {
                    return states.unwrap_or_default();
                }
                if begin.elapsed() >= retry_after {
                    watch.lock().drop_others();
                    break;
                }
            }
        }
    }

    /// Reads files of a part on another thread, so that a disk that does not respond delays nothing else. If that takes too
    /// long, they are read again as soon as it has ended, or after a while, since a key may have been revoked in them.
    pub(super) async fn read_files<T: Send + 'static>(
        &self,
        watch: &Mutex<FileWatch>,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Rejection> {
        let reader = watch.lock().reader();
        let reader = timeout(READ_TIMEOUT, reader).await;
        let reader = reader.map_err(|_| Rejection { reason: TAKES_TOO_LONG.to_owned(), is_unread: true })?;
        let mut reading = spawn_blocking(move || {
            let _reader = reader;
            read()
        });
        match timeout(READ_TIMEOUT, &mut reading).await {
            Ok(read) => read.map_err(|e| format!("reading the files failed: {e}").into()),
            Err(_) => {
                let (retry_after, reads_again) = {
                    let watch = watch.lock();
                    (watch.retry_after(), watch.reads_again())
                };
                tokio::spawn(async move {
                    let _ = timeout(retry_after, reading).await; // what it read may be old by now
                    reads_again.notify_one();
                });
                Err(TAKES_TOO_LONG.to_owned().into())
            }
        }
    }

    /// Reads these files as a whole: refuses what was read of them if one changed meanwhile, or since it stayed the same, since
    /// what is written in place may lack its end. A file that is missing is read once it is back, as `watch` notices.
    pub(super) async fn read_whole<T: Send + 'static>(
        &self,
        watch: &Mutex<FileWatch>,
        files: Vec<PathBuf>,
        read: impl FnOnce() -> Result<T, Rejection> + Send + 'static,
    ) -> Result<T, Rejection> {
        let settled = watch.lock().read();
        let read = move || {
            let before = look_at(files.clone());
            if let Some(file) = changed_file(&settled, &before) {
                return (Err(is_being_written(file)), Vec::new());
            }
            let read = read();
            let after = look_at(files);
            match changed_file(&before, &after) {
                None => (read, after),
                Some(file) => (Err(is_being_written(file)), Vec::new()),
            }
        };
        let (mut read, states) = self.read_files(watch, read).await?;
        let missing: FileStates = states.into_iter().filter(|(_, state)| state.is_none()).collect();
        if let (Err(rejection), false) = (&mut read, missing.is_empty()) {
            rejection.is_unread = false;
            watch.lock().reset(missing);
        }
        read
    }

    /// A line for each of these files, which `watch` watches, that is missing. Its removal is logged once, until the file is
    /// back. Where looking takes too long none is missing; the read that follows, if one does, then tells.
    pub(super) async fn missing_lines(&self, watch: &Mutex<FileWatch>, files: Vec<PathBuf>, requested: bool) -> String {
        let is_missing = |path: &PathBuf| path.metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        let look = move || files.into_iter().map(|path| (is_missing(&path), path)).collect::<Vec<_>>();
        let looked = self.read_files(watch, look).await.unwrap_or_default();
        let (mut missing, mut lines) = (self.missing.lock(), String::new());
        for (is_missing, path) in looked {
            if !is_missing {
                continue;
            }
            lines += &missing_line(&path);
            // It may be back at once, the same as before.
            watch.lock().reset(vec![(path.clone(), None)]);
            let file = path.display();
            if missing.insert(path.clone()) {
                tracing::error!(%file, "a file was removed; what was read from it stays in force until it is back");
            } else if requested {
                tracing::info!(%file, "not reloaded: the file is still missing");
            }
        }
        lines
    }
}

/// Why a reload was rejected.
#[derive(Debug)]
pub(super) struct Rejection {
    /// A line for each fault.
    pub(super) reason: String,
    /// A file or the store could not be read, which may pass by itself. The file is read again soon.
    pub(super) is_unread: bool,
}

impl From<UnusableInputs> for Rejection {
    fn from(UnusableInputs { reason, is_unread }: UnusableInputs) -> Self {
        Rejection { reason, is_unread }
    }
}

impl From<String> for Rejection {
    fn from(reason: String) -> Self {
        Rejection { reason, is_unread: false }
    }
}

impl Rejection {
    pub(super) fn outcome(&self) -> ReloadOutcome {
        ReloadOutcome { is_unread: self.is_unread, ..ReloadOutcome::rejected(&self.reason) }
    }
}

/// The first file that is in another state in `after` than in `before`, of those that are in both.
pub(super) fn changed_file<'s>(before: &FileStates, after: &'s FileStates) -> Option<&'s Path> {
    let state_before = |path: &Path| before.iter().find(|(of, _)| of == path);
    let changed =
        |(path, after): &&(PathBuf, _)| state_before(path).is_some_and(|(_, before)| !is_same(*before, *after));
    after.iter().find(changed).map(|(path, _)| &**path)
}

pub(super) fn is_being_written(file: &Path) -> Rejection {
    let reason = format!("{} is still being written; it is read when it stays the same", file.display());
    Rejection { reason, is_unread: true } // it may soon be in the state that was read last
}

pub(super) fn missing_line(path: &Path) -> String {
    format!("{} is missing; what was read from it stays in force\n", path.display())
}
