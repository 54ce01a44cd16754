//! Members and their notes, one record at a time. They may be changed while the bot is away from the guild: only the
//! callers' operations are answered with 03 then.

use super::conn::Row;
use super::directory::guild_number;
use super::*;
use crate::clock::Clock;
use crate::model::one_line;
use crate::wire::MAX_ORIGIN_ANSWER;

/// Makes a member that does not exist yet, without points.
const MAKE_MEMBER: &str = "INSERT INTO member (guild, member, name, points) VALUES ($1, $2, $3, 0) \
    ON CONFLICT (guild, member) DO NOTHING";

const SET_MEMBER: &str = "UPDATE member SET name = coalesce($3, name), points = coalesce($4, points) \
    WHERE guild = $1 AND member = $2 RETURNING member, name, points";

pub(super) const MEMBERS: &str = "SELECT member, name, points FROM member WHERE guild = $1 AND member > $2 \
    ORDER BY member LIMIT $3";

const NOTES: &str = "SELECT member, id, author, text, number FROM note \
    WHERE guild = $1 AND kind = $2 AND (CAST($3 AS bigint) IS NULL OR member = $3) AND id > $4 ORDER BY id LIMIT $5";

const PUT_NOTE: &str = "INSERT INTO note (guild, kind, id, member, author, text, number) \
    VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (guild, kind, id) DO UPDATE \
    SET author = excluded.author, text = excluded.text, number = excluded.number";

/// Bytes of a member's notes of a kind in the answer, but for the braces. `$4` is [`NoteKind::entry_overhead`], and `$5`
/// is less than the numbers of those that are in the answer.
const BYTES: &str = "SELECT CAST(coalesce(sum($4 + octet_length(CAST(member AS text)) + octet_length(CAST(id AS text)) \
    + 2 * octet_length(CAST(number AS text)) + octet_length(author) + octet_length(text)), 0) AS bigint) FROM note \
    WHERE guild = $1 AND member = $2 AND kind = $3 AND number > $5";

impl Store {
    /// Sets the given fields of a member, and makes the member if there is none.
    pub async fn set_member(
        &self,
        guild: &GuildId,
        member: MemberId,
        name: Option<&str>,
        points: Option<i64>,
    ) -> Result<MemberRecord, StoreError> {
        name.map_or(Ok(()), refusals::member_name).map_err(StoreError::Refused)?;
        let (guild, name) = (guild.clone(), name.map(|name| one_line(name).into_owned()));
        self.write(Some(Change::Member(member)), move |conn| {
            let no = make_member(conn, &guild, member)?;
            let set = conn.row(SET_MEMBER, values![no, member, name.as_deref(), points])?;
            set.map_or_else(|| Err(refusals::unknown_member(&guild, member)), member_record)
        })
        .await
    }

    /// So many of a guild's members after the id `after`, in ascending id order.
    pub async fn members(
        &self,
        guild: &GuildId,
        after: Option<MemberId>,
        limit: usize,
    ) -> Result<Vec<MemberRecord>, StoreError> {
        let (guild, after) = (guild.clone(), after.map_or(-1, MemberId::as_i64));
        self.lists
            .run(LIST, move |conn| {
                let no = guild_number(conn, &guild)?;
                conn.rows(MEMBERS, values![no, after, limit])?.into_iter().map(member_record).collect()
            })
            .await
    }

    /// A member of a guild.
    pub async fn member(&self, guild: &GuildId, member: MemberId) -> Result<Option<MemberRecord>, StoreError> {
        let after = member.get().checked_sub(1).and_then(MemberId::new);
        let found = self.members(guild, after, 1).await?;
        Ok(found.into_iter().find(|found| found.member == member))
    }

    /// Removes a member with its notes. Refused: one that does not exist.
    pub async fn remove_member(&self, guild: &GuildId, member: MemberId) -> Result<(), StoreError> {
        let guild = guild.clone();
        self.write(Some(Change::Member(member)), move |conn| {
            let no = guild_number(conn, &guild)?;
            let sql = "DELETE FROM member WHERE guild = $1 AND member = $2";
            conn.change(sql, values![no, member], || refusals::unknown_member(&guild, member))
        })
        .await
    }

    /// So many of a guild's notes of a kind, or of one member's, after the id `after`, by id; expired ones too.
    pub async fn notes(
        &self,
        kind: &'static NoteKind,
        guild: &GuildId,
        of: Option<MemberId>,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<(MemberId, Note)>, StoreError> {
        let guild = guild.clone();
        self.lists
            .run(LIST, move |conn| {
                let no = guild_number(conn, &guild)?;
                let note = |mut row: Row| {
                    let (id, author, text, number) = (row.take(1)?, row.take(2)?, row.take(3)?, row.take(4)?);
                    Ok((row.take(0)?, Note { id, author, text, number }))
                };
                let rows = conn.rows(NOTES, values![no, kind.code, of, after.unwrap_or(-1), limit])?;
                rows.into_iter().map(note).collect()
            })
            .await
    }

    /// A guild's note of this kind and id.
    pub async fn note(
        &self,
        kind: &'static NoteKind,
        guild: &GuildId,
        id: i64,
    ) -> Result<Option<(MemberId, Note)>, StoreError> {
        let found = self.notes(kind, guild, None, id.checked_sub(1), 1).await?;
        Ok(found.into_iter().find(|(_, note)| note.id == id))
    }

    /// Adds a note, whatever its own id, and the member if there is none; returns the id that it got, the guild's highest
    /// of that kind + 1.
    pub async fn add_note(
        &self,
        kind: &'static NoteKind,
        guild: &GuildId,
        member: MemberId,
        note: Note,
    ) -> Result<i64, StoreError> {
        self.write_note(kind, guild, member, note, true).await.map(|(id, _)| id)
    }

    /// Puts a note under its id, making the member if need be; replaces the member's one of that id. Answers whether there
    /// was none. Refused: the id of another member's.
    pub async fn put_note(
        &self,
        kind: &'static NoteKind,
        guild: &GuildId,
        member: MemberId,
        note: Note,
    ) -> Result<bool, StoreError> {
        self.write_note(kind, guild, member, note, false).await.map(|(_, is_new)| is_new)
    }

    /// Removes a note. Refused: one that does not exist.
    pub async fn remove_note(&self, kind: &'static NoteKind, guild: &GuildId, id: i64) -> Result<(), StoreError> {
        let guild = guild.clone();
        let remove = move |conn: &mut dyn Conn| {
            let no = guild_number(conn, &guild)?;
            let owner = owner(conn, kind, no, id)?.ok_or_else(|| refusals::unknown_note(&guild, kind.name, id))?;
            let sql = "DELETE FROM note WHERE guild = $1 AND kind = $2 AND id = $3";
            conn.execute(sql, values![no, kind.code, id])?;
            Ok(((), Some(Change::Member(owner))))
        };
        self.writer.run(remove).await
    }

    /// Writes a note, under the guild's next id if it `is_added`. Returns its id, and whether it is new.
    async fn write_note(
        &self,
        kind: &'static NoteKind,
        guild: &GuildId,
        member: MemberId,
        note: Note,
        is_added: bool,
    ) -> Result<(i64, bool), StoreError> {
        kind.number.check(note.number).map_err(StoreError::Refused)?;
        let (guild, note) = (guild.clone(), note.one_line());
        self.write(Some(Change::Member(member)), move |conn| {
            let no = make_member(conn, &guild, member)?;
            let id = if is_added { next_id(conn, kind, no)? } else { note.id };
            let owner = owner(conn, kind, no, id)?;
            if let Some(other) = owner.filter(|owner| *owner != member) {
                let what = kind.name;
                return Err(StoreError::Refused(format!("{what} {id} of {guild} is member {other}'s")));
            }
            conn.execute(PUT_NOTE, values![no, kind.code, id, member, &*note.author, &*note.text, note.number])?;
            let alive = if kind.expires() { Clock::system().unix() } else { i64::MIN };
            let bytes = conn.row(BYTES, values![no, member, kind.code, kind.entry_overhead(), alive])?;
            // A refusal undoes the job.
            let bytes: u64 = bytes.map_or(Ok(0), |mut row| row.take(0))?;
            if bytes > MAX_ORIGIN_ANSWER as u64 {
                return Err(refusals::answer_too_long(kind, &[(guild.clone(), member)]));
            }
            Ok((id, owner.is_none()))
        })
        .await
    }
}

pub(super) fn member_record(mut row: Row) -> Result<MemberRecord, StoreError> {
    Ok(MemberRecord { member: row.take(0)?, name: row.take(1)?, points: row.take(2)? })
}

/// Makes the member if there is none; returns the guild's number.
fn make_member(conn: &mut dyn Conn, guild: &GuildId, member: MemberId) -> Result<i64, StoreError> {
    let no = guild_number(conn, guild)?;
    conn.execute(MAKE_MEMBER, values![no, member, member.to_string()])?;
    Ok(no)
}

/// The guild's highest id of the kind + 1. Where that is the highest there is, the database has no such number, and fails.
fn next_id(conn: &mut dyn Conn, kind: &NoteKind, guild: i64) -> Result<i64, StoreError> {
    let sql = "SELECT coalesce(max(id), 0) + 1 FROM note WHERE guild = $1 AND kind = $2";
    conn.row(sql, values![guild, kind.code])?.map_or(Ok(1), |mut row| row.take(0))
}

/// Whose note it is.
fn owner(conn: &mut dyn Conn, kind: &NoteKind, guild: i64, id: i64) -> Result<Option<MemberId>, StoreError> {
    let sql = "SELECT member FROM note WHERE guild = $1 AND kind = $2 AND id = $3";
    conn.row(sql, values![guild, kind.code, id])?.map(|mut row| row.take(0)).transpose()
}
