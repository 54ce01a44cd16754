//! The staging file: a temporary SQLite database beside the store. Parsing a million lines happens
//! there, without holding the store's lock and without holding the records in memory.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, params};

use super::import::BadLine;
use super::record::Record;
use crate::model::GuildId;
use crate::store::StoreError;
use crate::store::sqlite::file_failure;
use crate::store::sqlite::open::{FILE_MODE, folder_of};

/// A staging file is `STORE.import-NUMBER.tmp`, so that one left by a crash is known by its name.
const INFIX: &str = ".import-";
const SUFFIX: &str = ".tmp";

/// Names tried before giving up; a second try is rare already.
const TRIES: usize = 8;

/// SQLite's page cache while staging, in KiB: bounds the memory an import takes.
const CACHE_KIB: i64 = 65_536;

/// No key of `guild` but `no` is text: everything else refers to the number. `name` is NULL for a
/// guild that is only referred to; `stored` says whether the store has it.
const SCHEMA: &str = "
    CREATE TABLE guild (no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT, stored INTEGER NOT NULL) STRICT;
    CREATE TABLE member (guild INTEGER, member INTEGER, name TEXT, points INTEGER,
        PRIMARY KEY (guild, member)) STRICT, WITHOUT ROWID;
    CREATE TABLE warn (guild INTEGER, id INTEGER, member INTEGER, author TEXT, reason TEXT, expires INTEGER,
        PRIMARY KEY (guild, id)) STRICT, WITHOUT ROWID;
    CREATE TABLE review (guild INTEGER, id INTEGER, member INTEGER, author TEXT, rating INTEGER, text TEXT,
        PRIMARY KEY (guild, id)) STRICT, WITHOUT ROWID;
    CREATE TABLE unsure (line INTEGER PRIMARY KEY, guild INTEGER NOT NULL) STRICT;
";

/// The file, which goes away with this.
#[derive(Debug)]
pub(super) struct StageFile {
    path: PathBuf,
    /// Locked while it is in use, so that another process's start does not take it for a leftover.
    _lock: File,
}

impl StageFile {
    fn create(store: &Path) -> Result<Self, StoreError> {
        for _ in 0..TRIES {
            let mut name = prefix(store);
            name.push(format!("{:016x}{SUFFIX}", fastrand::u64(..)));
            let path = folder_of(store).join(name);
            let failed = |e: std::io::Error| {
                StoreError::Failed(format!("{} cannot be made, and an import needs it: {e}", path.display()))
            };
            let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path).map_err(failed)?;
            // A start beside us may take the file for a leftover before it is locked: then another.
            if file.try_lock().is_ok() && path.exists() {
                return Ok(StageFile { path, _lock: file });
            }
        }
        Err(StoreError::Busy(format!("no staging file beside {} could be kept; try again", store.display())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for StageFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn prefix(store: &Path) -> OsString {
    let mut name = store.file_name().unwrap_or_default().to_owned();
    name.push(INFIX);
    name
}

/// Removes staging files that a crash left beside `store`. Those in use are locked and stay.
pub(in crate::store) fn remove_leftovers(store: &Path) {
    let prefix = prefix(store);
    let Ok(entries) = fs::read_dir(folder_of(store)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if !name.starts_with(prefix.as_encoded_bytes()) || !name.ends_with(SUFFIX.as_bytes()) {
            continue;
        }
        let unused = File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if unused {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Takes records in, in the order of their lines.
#[derive(Debug)]
pub(super) struct Stage {
    conn: Connection,
    file: StageFile,
    /// The guild of the line before, its number and whether it is sure to exist: exports come
    /// guild by guild, so this saves most look-ups.
    latest: Option<(GuildId, i64, bool)>,
}

impl Stage {
    pub(super) fn create(store: &Path) -> Result<Self, StoreError> {
        let file = StageFile::create(store)?;
        let begin = || -> rusqlite::Result<Connection> {
            let conn = Connection::open(file.path())?;
            // Thrown away after a crash, so nothing is spent on surviving one.
            conn.pragma_update(None, "journal_mode", "OFF")?;
            conn.pragma_update(None, "synchronous", "OFF")?;
            conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
            conn.execute_batch(SCHEMA)?;
            conn.execute_batch("BEGIN")?;
            Ok(conn)
        };
        let conn = begin().map_err(|e| file_failure(file.path(), &e))?;
        Ok(Stage { conn, file, latest: None })
    }

    /// Takes the record of line `line`; a later one replaces an earlier one of the same id.
    /// `stored` tells whether the store has a guild.
    pub(super) fn take(
        &mut self,
        line: u64,
        record: Record,
        stored: impl Fn(&GuildId) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let (no, sure) = match &self.latest {
            Some((guild, no, sure)) if guild == record.guild() => (*no, *sure),
            _ => self.guild(record.guild(), stored)?,
        };
        let sure = sure || matches!(record, Record::Guild { .. });
        self.latest = Some((record.guild().clone(), no, sure));
        self.insert(line, no, sure, record).map_err(|e| self.failed(&e))
    }

    fn guild(
        &self,
        guild: &GuildId,
        stored: impl Fn(&GuildId) -> Result<bool, StoreError>,
    ) -> Result<(i64, bool), StoreError> {
        let find = || -> rusqlite::Result<Option<(i64, bool)>> {
            let sql = "SELECT no, name IS NOT NULL OR stored FROM guild WHERE id = ?1";
            let mut statement = self.conn.prepare_cached(sql)?;
            statement.query_row([guild.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).optional()
        };
        if let Some(found) = find().map_err(|e| self.failed(&e))? {
            return Ok(found);
        }
        let stored = stored(guild)?;
        let add = || -> rusqlite::Result<i64> {
            let sql = "INSERT INTO guild (id, stored) VALUES (?1, ?2)";
            self.conn.prepare_cached(sql)?.execute(params![guild.as_str(), stored])?;
            Ok(self.conn.last_insert_rowid())
        };
        Ok((add().map_err(|e| self.failed(&e))?, stored))
    }

    fn insert(&self, line: u64, no: i64, sure: bool, record: Record) -> rusqlite::Result<()> {
        let conn = &self.conn;
        match record {
            Record::Guild { name, .. } => {
                conn.prepare_cached("UPDATE guild SET name = ?2 WHERE no = ?1")?.execute(params![no, name])?
            }
            Record::Member { member, name, points, .. } => conn
                .prepare_cached("INSERT OR REPLACE INTO member VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![no, member.as_i64(), name, points])?,
            Record::Warn { member, warn, author, reason, expires, .. } => conn
                .prepare_cached("INSERT OR REPLACE INTO warn VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
                .execute(params![no, warn, member.as_i64(), author, reason, expires])?,
            Record::Review { member, review, author, rating, text, .. } => conn
                .prepare_cached("INSERT OR REPLACE INTO review VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
                .execute(params![no, review, member.as_i64(), author, rating, text])?,
        };
        if !sure {
            let sql = "INSERT INTO unsure (line, guild) VALUES (?1, ?2)";
            conn.prepare_cached(sql)?.execute(params![line.cast_signed(), no])?;
        }
        Ok(())
    }

    /// The lines whose guild came neither later in the file nor is in the store: how many, and the
    /// first `shown` of them.
    pub(super) fn homeless(&self, shown: usize) -> Result<(u64, Vec<BadLine>), StoreError> {
        let from = "FROM unsure u JOIN guild g ON g.no = u.guild WHERE g.name IS NULL";
        let look = || -> rusqlite::Result<(u64, Vec<BadLine>)> {
            let total: i64 = self.conn.query_row(&format!("SELECT count(*) {from}"), [], |row| row.get(0))?;
            let mut statement = self.conn.prepare(&format!("SELECT u.line, g.id {from} ORDER BY u.line LIMIT ?1"))?;
            let lines = statement.query_map([shown as i64], |row| {
                let guild: String = row.get(1)?;
                let reason = format!("guild {guild} is neither in this file nor in the store");
                Ok(BadLine { line: row.get::<_, i64>(0)?.cast_unsigned(), reason })
            })?;
            Ok((total.cast_unsigned(), lines.collect::<rusqlite::Result<_>>()?))
        };
        look().map_err(|e| self.failed(&e))
    }

    /// Ends the taking in; the file is ready to be read.
    pub(super) fn finish(self) -> Result<StageFile, StoreError> {
        self.conn.execute_batch("COMMIT").map_err(|e| self.failed(&e))?;
        let Stage { conn, file, .. } = self;
        conn.close().map_err(|(_, e)| file_failure(file.path(), &e))?;
        Ok(file)
    }

    fn failed(&self, error: &rusqlite::Error) -> StoreError {
        file_failure(self.file.path(), error)
    }
}
