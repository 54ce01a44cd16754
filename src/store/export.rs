//! Export: one state of the store as JSON Lines, in the order guild, member, its notes by kind and id. Keys, and whether a
//! guild has departed, are left out.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::conn::Row;
use super::import::PROGRESS_EVERY;
use super::members::{MEMBERS, member_record};
use super::*;
use crate::model::NOTE_KINDS;

/// How long an export may take.
const WITHIN: Duration = Duration::from_hours(12);

/// Guilds, and members with their notes, in memory at a time. There may be millions.
const AT_ONCE: usize = 1000;

/// The guilds after a given one. All come after the empty text, since no id is empty.
const GUILDS: &str = "SELECT no, id, name FROM guild WHERE id > $1 ORDER BY id LIMIT $2";

/// The notes of some members.
const NOTES: &str = "SELECT member, kind, id, author, text, number FROM note \
    WHERE guild = $1 AND member > $2 AND member <= $3 ORDER BY member, kind, id";

/// Counting takes a twentieth of the time of writing them.
const COUNT: &str = "SELECT (SELECT count(*) FROM guild) + (SELECT count(*) FROM member) + (SELECT count(*) FROM note)";

impl Store {
    /// Writes every guild, member and note; returns how many. Later writes of others are left out. Blocks for as long as it
    /// takes.
    ///
    /// # Errors
    /// Why the store cannot be read, or the lines not written.
    pub fn export(&self, to: &mut dyn Write, progress: &mut dyn FnMut(Progress)) -> Result<u64, TransferError> {
        let mut conn = (self.opener.open)(LONG)?;
        conn.set_deadline(Instant::now() + WITHIN);
        conn.begin_snapshot()?;
        let of: Option<u64> = conn.row(COUNT, &[])?.map(|mut row| row.take(0)).transpose()?;
        let mut so_far = Progress { records: 0, of };
        progress(so_far);
        let mut write = |record: &Record| {
            serde_json::to_writer(&mut *to, record).map_err(io::Error::from)?;
            to.write_all(b"\n")?;
            so_far.records += 1;
            if so_far.records.is_multiple_of(PROGRESS_EVERY) {
                progress(so_far);
            }
            Ok(())
        };
        let mut last = String::new();
        loop {
            let guilds = conn.rows(GUILDS, values![&*last, AT_ONCE])?;
            if guilds.is_empty() {
                break;
            }
            for mut row in guilds {
                let (no, guild, name): (i64, GuildId, String) = (row.take(0)?, row.take(1)?, row.take(2)?);
                last = guild.to_string();
                write(&Record::Guild { guild: guild.clone(), name })?;
                write_members(&mut *conn, no, &guild, &mut write)?;
            }
        }
        to.flush()?;
        progress(so_far);
        Ok(so_far.records)
    }
}

/// Writes each member of a guild, and then its notes.
fn write_members(
    conn: &mut dyn Conn,
    no: i64,
    guild: &GuildId,
    write: &mut dyn FnMut(&Record) -> Result<(), TransferError>,
) -> Result<(), TransferError> {
    let mut after = -1;
    loop {
        let members = conn.rows(MEMBERS, values![no, after, AT_ONCE])?.into_iter().map(member_record);
        let members = members.collect::<Result<Vec<_>, StoreError>>()?;
        let Some(last) = members.last().map(|last| last.member.as_i64()) else { return Ok(()) };
        let notes = conn.rows(NOTES, values![no, after, last])?.into_iter().map(note);
        let mut notes = notes.collect::<Result<Vec<_>, StoreError>>()?.into_iter().peekable();
        for MemberRecord { member, name, points } in members {
            write(&Record::Member { guild: guild.clone(), member, name, points })?;
            while let Some((_, kind, note)) = notes.next_if(|(of, ..)| *of == member) {
                write(&Record::Note { guild: guild.clone(), member, kind, note })?;
            }
        }
        after = last;
    }
}

fn note(mut row: Row) -> Result<(MemberId, &'static NoteKind, Note), StoreError> {
    let code: i64 = row.take(1)?;
    let unknown = || StoreError::Failed(format!("the store holds a note of kind {code}, which no Guildgate writes"));
    let kind = NOTE_KINDS.into_iter().find(|kind| kind.code == code).ok_or_else(unknown)?;
    let note = Note { id: row.take(2)?, author: row.take(3)?, text: row.take(4)?, number: row.take(5)? };
    Ok((row.take(0)?, kind, note))
}
