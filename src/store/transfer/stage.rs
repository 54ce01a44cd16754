//! The staging file: a temporary SQLite database in the store's folder, into which an import reads its lines. So it neither
//! locks the store nor holds the records in memory while it reads.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, ToSql, params};

use super::import::{BadLine, Phase, Progress};
use super::record::Record;
use crate::files::folder_of;
use crate::model::GuildId;
use crate::store::StoreError;
use crate::store::sqlite::file_failure;
use crate::store::sqlite::open::{self, keep_statements};
use crate::store::temp_file::{STAGED, TempFile};

/// SQLite's page cache while staging, in KiB. It bounds the memory of an import.
const CACHE_KIB: i64 = 65_536;

/// Every table refers to a guild by the number `no`. `name` is NULL for a guild that has no line of its own; `stored` is
/// true if the store has it. `warn` and `review` have the last line of each record, since that one counts, and
/// `earlier_warn` and `earlier_review` those before it, which count if it does not fit. `unresolved` has the lines whose
/// guild was not known to exist when they were read.
const SCHEMA: &str = "
    CREATE TABLE guild (no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT, stored INTEGER NOT NULL) STRICT;
    CREATE TABLE member (guild INTEGER, member INTEGER, name TEXT, points INTEGER,
        PRIMARY KEY (guild, member)) STRICT, WITHOUT ROWID;
    CREATE TABLE warn (guild INTEGER, id INTEGER, member INTEGER, author TEXT, reason TEXT, expires INTEGER, line INTEGER,
        PRIMARY KEY (guild, id)) STRICT, WITHOUT ROWID;
    CREATE TABLE review (guild INTEGER, id INTEGER, member INTEGER, author TEXT, rating INTEGER, text TEXT, line INTEGER,
        PRIMARY KEY (guild, id)) STRICT, WITHOUT ROWID;
    CREATE TABLE earlier_warn (guild INTEGER, id INTEGER, member INTEGER, author TEXT, reason TEXT, expires INTEGER,
        line INTEGER PRIMARY KEY) STRICT;
    CREATE TABLE earlier_review (guild INTEGER, id INTEGER, member INTEGER, author TEXT, rating INTEGER, text TEXT,
        line INTEGER PRIMARY KEY) STRICT;
    CREATE TABLE unresolved (line INTEGER PRIMARY KEY, guild INTEGER NOT NULL) STRICT;
";

/// A new, empty staging file for the store at `store`.
pub(in crate::store) fn staging_file(store: &Path) -> Result<TempFile, StoreError> {
    TempFile::new(store, STAGED).map_err(|e| {
        let folder = folder_of(store);
        StoreError::Failed(format!("an import needs a file in {}, which cannot be made: {e}", folder.display()))
    })
}

/// A staging file that is complete.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) path: PathBuf,
    /// Records that were read, including those that later lines replaced.
    pub(super) rows: Rows,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rows {
    pub(super) guilds: u64,
    pub(super) members: u64,
    pub(super) warns: u64,
    pub(super) reviews: u64,
}

impl Rows {
    pub(super) fn all(self) -> u64 {
        let Rows { guilds, members, warns, reviews } = self;
        guilds + members + warns + reviews
    }

    /// Rows that are processed while they are applied. Warns and reviews are read twice, the first time for their members.
    pub(super) fn to_apply(self) -> u64 {
        self.all() + self.warns + self.reviews
    }

    /// The progress after so many rows were processed.
    pub(super) fn applied(self, passed: u64) -> Progress {
        let (all, to_apply) = (u128::from(self.all()), u128::from(self.to_apply().max(1)));
        let records = u64::try_from(u128::from(passed) * all / to_apply).unwrap_or(u64::MAX);
        Progress { phase: Phase::Applying, records: records.min(self.all()), of: Some(self.all()), bytes: 0 }
    }

    fn add(&mut self, record: &Record) {
        *match record {
            Record::Guild { .. } => &mut self.guilds,
            Record::Member { .. } => &mut self.members,
            Record::Warn { .. } => &mut self.warns,
            Record::Review { .. } => &mut self.reviews,
        } += 1;
    }
}

/// Writes records to the staging file, in the order of their lines.
#[derive(Debug)]
pub(super) struct Stage {
    conn: Connection,
    file: Staged,
    /// The guild of the previous line, its number, and whether it is known to exist. Exports are sorted by guild, so this
    /// saves most look-ups.
    latest: Option<(GuildId, i64, bool)>,
}

impl Stage {
    /// Begins to stage in the empty file at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let file = Staged { path: path.to_owned(), rows: Rows::default() };
        let begin = || -> rusqlite::Result<Connection> {
            let conn = open::temporary(path)?;
            keep_statements(&conn)?;
            conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
            conn.execute_batch(SCHEMA)?;
            conn.execute_batch("BEGIN")?;
            Ok(conn)
        };
        let conn = begin().map_err(|e| file_failure(path, &e))?;
        Ok(Stage { conn, file, latest: None })
    }

    /// Adds the record of line `line`. It counts instead of an earlier one of the same id.
    /// `stored` tells whether the store has a guild.
    pub(super) fn add(
        &mut self,
        line: u64,
        record: Record,
        stored: impl Fn(&GuildId) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let (no, known) = match &self.latest {
            Some((guild, no, known)) if guild == record.guild() => (*no, *known),
            _ => self.guild(record.guild(), stored)?,
        };
        let known = known || matches!(record, Record::Guild { .. });
        self.latest = Some((record.guild().clone(), no, known));
        self.file.rows.add(&record);
        self.insert(line, no, known, record).map_err(|e| self.failed(&e))
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

    fn insert(&self, line: u64, no: i64, known: bool, record: Record) -> rusqlite::Result<()> {
        let conn = &self.conn;
        match record {
            Record::Guild { name, .. } => {
                conn.prepare_cached("UPDATE guild SET name = ?2 WHERE no = ?1")?.execute(params![no, name])?
            }
            Record::Member { member, name, points, .. } => conn
                .prepare_cached("INSERT OR REPLACE INTO member VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![no, member.as_i64(), name, points])?,
            Record::Warn { member, warn, author, reason, expires, .. } => self
                .insert_note("warn", params![no, warn, member.as_i64(), author, reason, expires, line.cast_signed()])?,
            Record::Review { member, review, author, rating, text, .. } => self.insert_note(
                "review",
                params![no, review, member.as_i64(), author, rating, text, line.cast_signed()],
            )?,
        };
        if !known {
            let sql = "INSERT INTO unresolved (line, guild) VALUES (?1, ?2)";
            conn.prepare_cached(sql)?.execute(params![line.cast_signed(), no])?;
        }
        Ok(())
    }

    /// Adds a warn or review. An earlier line about the same record is kept apart.
    fn insert_note(&self, kind: &str, values: &[&dyn ToSql]) -> rusqlite::Result<usize> {
        let insert = |how: &str| {
            let sql = format!("INSERT OR {how} INTO {kind} VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)");
            self.conn.prepare_cached(&sql)?.execute(values)
        };
        if insert("IGNORE")? == 1 {
            return Ok(1);
        }
        let keep = format!("INSERT INTO earlier_{kind} SELECT * FROM {kind} WHERE guild = ?1 AND id = ?2");
        self.conn.prepare_cached(&keep)?.execute(&values[..2])?;
        insert("REPLACE")
    }

    /// The number of lines whose guild is neither in the file nor in the store, and the first `shown` of them.
    pub(super) fn without_guild(&self, shown: usize) -> Result<(u64, Vec<BadLine>), StoreError> {
        let from = "FROM unresolved u JOIN guild g ON g.no = u.guild WHERE g.name IS NULL";
        let find = || -> rusqlite::Result<(u64, Vec<BadLine>)> {
            let total: i64 = self.conn.query_row(&format!("SELECT count(*) {from}"), [], |row| row.get(0))?;
            let mut statement = self.conn.prepare(&format!("SELECT u.line, g.id {from} ORDER BY u.line LIMIT ?1"))?;
            let lines = statement.query_map([shown as i64], |row| {
                let guild: String = row.get(1)?;
                let reason = format!("guild {guild} is neither in this file nor in the store");
                Ok(BadLine { line: row.get::<_, i64>(0)?.cast_unsigned(), reason })
            })?;
            Ok((total.cast_unsigned(), lines.collect::<rusqlite::Result<_>>()?))
        };
        find().map_err(|e| self.failed(&e))
    }

    /// Completes the file.
    pub(super) fn finish(self) -> Result<Staged, StoreError> {
        self.conn.execute_batch("COMMIT").map_err(|e| self.failed(&e))?;
        let Stage { conn, file, .. } = self;
        conn.close().map_err(|(_, e)| file_failure(&file.path, &e))?;
        Ok(file)
    }

    fn failed(&self, error: &rusqlite::Error) -> StoreError {
        file_failure(&self.file.path, error)
    }
}
