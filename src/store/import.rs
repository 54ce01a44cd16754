//! Import of JSON Lines, in two passes over the file: the first parses every line and finds the bad ones, the second
//! applies the good ones in one transaction. What exists is replaced; of two lines for one record the later one counts.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{self, BufRead};
use std::time::Instant;

use super::conn::json_rows;
use super::lines::{Line, Lines, MAX_LINE};
use super::*;
use crate::clock::Clock;
use crate::model::NOTE_KINDS;
use crate::wire::MAX_ORIGIN_ANSWER;

/// Bad lines shown one by one; more would scroll the first ones off the screen.
pub const SHOWN: usize = 20;

/// Lines or rows between two progress reports: rare enough to cost nothing, often enough to be seen.
pub(super) const PROGRESS_EVERY: u64 = 2000;

/// Records that are written by one statement, and the bytes of their lines, which are in memory three times then.
const BATCH: usize = 1000;
const BATCH_BYTES: usize = 4 << 20;

/// A file may begin with it. It is not part of the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

const PRESENT: &str = "SELECT id FROM guild WHERE id IN (SELECT a.value ->> 0 FROM json_each($1) a)";

// In SQLite, WHERE tells ON CONFLICT from the ON of a join.
const GUILDS: &str = "INSERT INTO guild (id, name) SELECT a.value ->> 0, a.value ->> 1 FROM json_each($1) a WHERE true \
    ON CONFLICT (id) DO UPDATE SET name = excluded.name";

const MEMBERS: &str = "INSERT INTO member (guild, member, name, points) \
    SELECT g.no, CAST(a.value ->> 1 AS bigint), a.value ->> 2, CAST(a.value ->> 3 AS bigint) \
    FROM json_each($1) a JOIN guild g ON g.id = a.value ->> 0 WHERE true \
    ON CONFLICT (guild, member) DO UPDATE SET name = excluded.name, points = excluded.points";

/// Members of notes that have no line of their own.
const OWNERS: &str = "INSERT INTO member (guild, member, name, points) \
    SELECT DISTINCT g.no, CAST(a.value ->> 1 AS bigint), CAST(a.value ->> 1 AS text), CAST(0 AS bigint) \
    FROM json_each($1) a JOIN guild g ON g.id = a.value ->> 0 WHERE true ON CONFLICT (guild, member) DO NOTHING";

const NOTES: &str = "INSERT INTO note (guild, member, kind, id, author, text, number) \
    SELECT g.no, CAST(a.value ->> 1 AS bigint), CAST(a.value ->> 2 AS bigint), CAST(a.value ->> 3 AS bigint), \
        a.value ->> 4, a.value ->> 5, CAST(a.value ->> 6 AS bigint) \
    FROM json_each($1) a JOIN guild g ON g.id = a.value ->> 0 WHERE true \
    ON CONFLICT (guild, kind, id) DO UPDATE SET member = excluded.member, author = excluded.author, \
        text = excluded.text, number = excluded.number";

/// Members of these guilds whose answer would be longer than `$5` bytes. See [`NoteKind::entry_overhead`].
const TOO_LONG: &str = "SELECT g.id, n.member FROM note n JOIN guild g ON g.no = n.guild \
    WHERE g.id IN (SELECT a.value ->> 0 FROM json_each($1) a) AND n.kind = $2 AND n.number > $3 \
    GROUP BY g.id, n.member HAVING sum($4 + octet_length(CAST(n.member AS text)) + octet_length(CAST(n.id AS text)) \
        + 2 * octet_length(CAST(n.number AS text)) + octet_length(n.author) + octet_length(n.text)) > $5 LIMIT 20";

/// The progress of an import or export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Records that are done.
    pub records: u64,
    /// How many there are. `None`: an import reads the lines, and has still to apply them.
    pub of: Option<u64>,
}

/// What an import does if there are bad lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is imported if one line is bad.
    AllOrNothing,
    /// The good lines are imported.
    Partial,
}

/// The bad lines of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadLines {
    /// The first [`SHOWN`]: their numbers, from 1, and why they cannot be imported.
    pub shown: Vec<(u64, String)>,
    /// How many there are in all.
    pub total: u64,
}

impl BadLines {
    fn add(&mut self, line: u64, reason: String) {
        self.total += 1;
        self.shown.push((line, reason));
        self.shown.sort_unstable();
        self.shown.truncate(SHOWN);
    }
}

impl fmt::Display for BadLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (line, reason)) in self.shown.iter().enumerate() {
            write!(f, "{}line {line}: {reason}", if i > 0 { "\n" } else { "" })?;
        }
        match self.total - self.shown.len() as u64 {
            0 => Ok(()),
            more => write!(f, "\n{more} more bad lines"),
        }
    }
}

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Lines imported, those included that later ones replaced.
    pub records: u64,
    /// Those of them that are members and notes.
    pub of_members: u64,
    /// Lines left out; none unless [`Mode::Partial`].
    pub bad: BadLines,
}

/// Why nothing was imported, or not all exported.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error("{0}")]
    Bad(BadLines),
    /// The file cannot be read or written.
    #[error("{0}")]
    File(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An import that has only to be committed. If it is dropped, nothing is imported.
#[expect(missing_debug_implementations, reason = "a connection has nothing to show")]
pub struct UncommittedImport {
    pub imported: Imported,
    conn: Box<dyn Conn>,
}

impl UncommittedImport {
    /// Commits it.
    ///
    /// # Errors
    /// Why it may not have been imported.
    pub async fn commit(self) -> Result<Imported, StoreError> {
        let UncommittedImport { imported, mut conn } = self;
        blocking(move || conn.commit()).await?;
        Ok(imported)
    }
}

impl Store {
    /// Imports JSON Lines, all but the commit. `open` opens their file at its beginning; it is called twice. If this is
    /// dropped before it is done, nothing is imported.
    ///
    /// # Errors
    /// Which lines are bad, or why the file cannot be read or the store not written.
    pub async fn import<R: BufRead>(
        &self,
        open: impl Fn() -> io::Result<R> + Send + 'static,
        mode: Mode,
        mut progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<UncommittedImport, TransferError> {
        let opener = self.opener.clone();
        blocking(move || {
            let mut conn = (opener.open)(LONG)?;
            conn.set_deadline(Instant::now() + LONG);
            let (imported, guilds, unknown) = read(&mut *conn, Lines::of(open()?), &mut progress)?;
            if imported.bad.total > 0 && mode == Mode::AllOrNothing {
                return Err(TransferError::Bad(imported.bad));
            }
            conn.begin(TURN)?;
            apply(&mut *conn, Lines::of(open()?), (&unknown, &imported), &mut progress)?;
            refuse_too_long(&mut *conn, &guilds)?;
            feed::add(&mut *conn, feed::NOBODY, &[Change::Everything].into())?;
            Ok(UncommittedImport { imported, conn })
        })
        .await
    }
}

/// What the first pass found: the guilds that have lines, and those of them that are neither in the store nor have a line of
/// their own.
type Read = (Imported, HashSet<GuildId>, HashSet<GuildId>);

/// The first pass.
fn read(
    conn: &mut dyn Conn,
    mut lines: Lines<impl BufRead>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Read, TransferError> {
    let (mut imported, mut so_far) = (Imported::default(), Progress::default());
    let mut named = HashSet::new();
    // Of each guild: how many lines are about its members, and the first one.
    let mut of_members: HashMap<GuildId, (u64, u64)> = HashMap::new();
    while let Some(line @ (number, _)) = lines.next()? {
        match parse(line) {
            Ok(None) => {}
            Ok(Some(Record::Guild { guild, .. })) => {
                so_far.records += 1;
                named.insert(guild);
            }
            Ok(Some(record)) => {
                so_far.records += 1;
                of_members.entry(record.guild().clone()).or_insert((0, number)).0 += 1;
            }
            Err(reason) => imported.bad.add(number, reason),
        }
        if number % PROGRESS_EVERY == 0 {
            progress(so_far);
        }
    }
    progress(so_far);
    let mut unknown: HashSet<GuildId> = of_members.keys().filter(|guild| !named.contains(*guild)).cloned().collect();
    for some in unknown.iter().cloned().collect::<Vec<_>>().chunks(BATCH) {
        for mut row in conn.rows(PRESENT, values![json_rows(some.iter().map(|guild| (guild,)))?])? {
            unknown.remove(&row.take::<GuildId>(0)?);
        }
    }
    imported.of_members = of_members.values().map(|(count, _)| count).sum();
    for guild in &unknown {
        let (count, first) = of_members[guild];
        let reason = format!("guild {guild} is neither in the file nor in the store (lines about it: {count})");
        imported.bad.add(first, reason);
        imported.bad.total += count - 1;
        so_far.records -= count;
        imported.of_members -= count;
    }
    imported.records = so_far.records;
    named.extend(of_members.into_keys());
    Ok((imported, named, unknown))
}

/// A line's record; `None` for an empty line.
fn parse((number, text): Line<'_>) -> Result<Option<Record>, String> {
    let text = text.ok_or_else(|| format!("longer than {MAX_LINE} bytes"))?;
    let text = if number == 1 { text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text) } else { text };
    if text.trim_ascii().is_empty() { Ok(None) } else { Record::parse(text).map(Some) }
}

/// The second pass.
fn apply(
    conn: &mut dyn Conn,
    mut lines: Lines<impl BufRead>,
    (unknown, imported): (&HashSet<GuildId>, &Imported),
    progress: &mut dyn FnMut(Progress),
) -> Result<(), TransferError> {
    let mut so_far = Progress { records: 0, of: Some(imported.records) };
    let (mut batch, mut bytes) = (Batch::default(), 0);
    progress(so_far);
    while let Some(line) = lines.next()? {
        bytes += line.1.map_or(0, <[u8]>::len);
        if let Ok(Some(record)) = parse(line)
            && !unknown.contains(record.guild())
        {
            batch.add(record);
            so_far.records += 1;
            if so_far.records.is_multiple_of(BATCH as u64) || bytes > BATCH_BYTES {
                bytes = 0;
                std::mem::take(&mut batch).write(conn)?;
                progress(so_far);
            }
        }
    }
    batch.write(conn)?;
    progress(so_far);
    if so_far.records == imported.records {
        return Ok(());
    }
    Err(io::Error::other("it changed while it was read; nothing was imported, import it again").into())
}

/// Records to write. Of two lines for one record the later one counts.
#[derive(Default)]
struct Batch {
    guilds: HashMap<GuildId, String>,
    members: HashMap<(GuildId, MemberId), (String, i64)>,
    notes: HashMap<(GuildId, i64, i64), (MemberId, Note)>,
}

impl Batch {
    fn add(&mut self, record: Record) {
        match record {
            Record::Guild { guild, name } => drop(self.guilds.insert(guild, name)),
            Record::Member { guild, member, name, points } => {
                drop(self.members.insert((guild, member), (name, points)));
            }
            Record::Note { guild, member, kind, note } => {
                drop(self.notes.insert((guild, kind.code, note.id), (member, note)));
            }
        }
    }

    fn write(self, conn: &mut dyn Conn) -> Result<(), StoreError> {
        let Batch { guilds, members, notes } = self;
        let members = members.into_iter();
        let members = json_rows(members.map(|((guild, id), (name, points))| (guild, id.as_i64(), name, points)))?;
        let notes = notes.into_iter();
        let notes = json_rows(notes.map(|((guild, kind, id), (member, note))| {
            (guild, member.as_i64(), kind, id, note.author, note.text, note.number)
        }))?;
        conn.execute(GUILDS, values![json_rows(guilds)?])?;
        // What is about a guild that was removed since the first pass is removed with it.
        conn.execute(MEMBERS, values![members])?;
        conn.execute(OWNERS, values![&*notes])?;
        conn.execute(NOTES, values![&*notes]).map(drop)
    }
}

/// Refuses an import after which a member's answer would be too long.
fn refuse_too_long(conn: &mut dyn Conn, guilds: &HashSet<GuildId>) -> Result<(), StoreError> {
    let guilds: Vec<&GuildId> = guilds.iter().collect();
    let (now, most) = (Clock::system().unix(), Value::from(MAX_ORIGIN_ANSWER));
    for (some, kind) in guilds.chunks(BATCH).flat_map(|some| NOTE_KINDS.map(|kind| (some, kind))) {
        let after = if kind.expires() { now } else { i64::MIN };
        let some = json_rows(some.iter().map(|guild| (guild,)))?;
        let found = conn.rows(TOO_LONG, values![some, kind.code, after, kind.entry_overhead(), most.clone()])?;
        let who = |mut row: conn::Row| Ok((row.take::<GuildId>(0)?, row.take::<MemberId>(1)?));
        let found = found.into_iter().map(who).collect::<Result<Vec<_>, StoreError>>()?;
        if !found.is_empty() {
            return Err(refusals::answer_too_long(kind, &found));
        }
    }
    Ok(())
}
