//! Members, their warns and reviews, one record at a time. Writes go through the writing thread.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::directory::{changed, guild_number};
use super::{Failure, SqliteStore, Writes};
use crate::model::{GuildId, MemberId, one_line};
use crate::store::answers::must_fit;
use crate::store::refusals;
use crate::store::{Change, MemberRecord, Members, Note, NoteRow, StoreError, sql_limit};

/// Makes a member that does not exist yet: named by its id, without points.
const MAKE_MEMBER: &str = "INSERT INTO member (guild, member, name, points) VALUES (?1, ?2, ?3, 0) \
    ON CONFLICT (guild, member) DO NOTHING";

impl Members for SqliteStore {
    async fn set_member(
        &self,
        guild: &GuildId,
        member: MemberId,
        name: Option<&str>,
        points: Option<i64>,
    ) -> Result<(), StoreError> {
        name.map_or(Ok(()), refusals::member_name).map_err(refusals::refused)?;
        let (guild, name) = (guild.clone(), name.map(|name| one_line(name).into_owned()));
        let set = move |conn: &Connection| {
            let no = make_member(conn, &guild, member)?;
            conn.prepare_cached(
                "UPDATE member SET name = coalesce(?3, name), points = coalesce(?4, points) \
                 WHERE guild = ?1 AND member = ?2",
            )?
            .execute(params![no, member.as_i64(), name, points])?;
            Ok(())
        };
        self.write(Change::Member(member), set).await
    }

    async fn members(
        &self,
        guild: &GuildId,
        after: Option<MemberId>,
        limit: usize,
    ) -> Result<Vec<MemberRecord>, StoreError> {
        let sql = "SELECT member, name, points FROM member WHERE guild = ?1 AND member > ?2 ORDER BY member LIMIT ?3";
        let after = after.map_or(-1, MemberId::as_i64);
        self.rows_of(guild, sql.to_owned(), vec![after.into(), sql_limit(limit).into()], member_record).await
    }

    async fn member(&self, guild: &GuildId, member: MemberId) -> Result<Option<MemberRecord>, StoreError> {
        let sql = "SELECT member, name, points FROM member WHERE guild = ?1 AND member = ?2";
        let mut found = self.rows_of(guild, sql.to_owned(), vec![member.as_i64().into()], member_record).await?;
        Ok(found.pop())
    }

    async fn remove_member(&self, guild: &GuildId, member: MemberId) -> Result<(), StoreError> {
        let guild = guild.clone();
        let remove = move |conn: &Connection| {
            let no = guild_number(conn, &guild)?;
            let sql = "DELETE FROM member WHERE guild = ?1 AND member = ?2";
            let removed = conn.prepare_cached(sql)?.execute(params![no, member.as_i64()])?;
            changed(removed, || refusals::unknown_member(&guild, member))
        };
        self.write(Change::Member(member), remove).await
    }

    async fn notes<N: Note>(
        &self,
        guild: &GuildId,
        of: Option<MemberId>,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<(MemberId, N)>, StoreError> {
        let (table, text, number) = (N::TABLE, N::TEXT, N::NUMBER);
        let sql = format!(
            "SELECT member, id, author, {text}, {number} FROM {table} \
             WHERE guild = ?1 AND (?2 IS NULL OR member = ?2) AND id > ?3 ORDER BY id LIMIT ?4"
        );
        let params = vec![of.map(MemberId::as_i64).into(), after.unwrap_or(-1).into(), sql_limit(limit).into()];
        let found = self.rows_of(guild, sql, params, note_row).await?;
        found.into_iter().map(|(member, row)| Ok((member, N::from_row(row)?))).collect()
    }

    async fn add_note<N: Note>(&self, guild: &GuildId, member: MemberId, note: N) -> Result<i64, StoreError> {
        self.write_note::<N>(guild, member, note.to_row()?, true).await.map(|(id, _)| id)
    }

    async fn put_note<N: Note>(&self, guild: &GuildId, member: MemberId, note: N) -> Result<bool, StoreError> {
        self.write_note::<N>(guild, member, note.to_row()?, false).await.map(|(_, is_new)| is_new)
    }

    async fn remove_note<N: Note>(&self, guild: &GuildId, id: i64) -> Result<(), StoreError> {
        let guild = guild.clone();
        let remove = move |conn: &Connection| {
            let no = guild_number(conn, &guild)?;
            let sql = format!("DELETE FROM {} WHERE guild = ?1 AND id = ?2 RETURNING member", N::TABLE);
            let owner = conn.prepare_cached(&sql)?.query_row([no, id], |row| member_id(row, 0)).optional()?;
            let absent = || Failure::Store(refusals::unknown_record(&guild, N::TABLE, id));
            owner.map(|owner| ((), Some(Change::Member(owner)))).ok_or_else(absent)
        };
        self.writer.run(Writes::Several, remove).await
    }
}

impl SqliteStore {
    /// Writes a warn or review, under the guild's next id if it `is_added`. Returns its id, and whether it is new.
    async fn write_note<N: Note>(
        &self,
        guild: &GuildId,
        of: MemberId,
        mut row: NoteRow,
        is_added: bool,
    ) -> Result<(i64, bool), StoreError> {
        let guild = guild.clone();
        let write = move |conn: &Connection| {
            let no = make_member(conn, &guild, of)?;
            if is_added {
                row.id = next_id::<N>(conn, no)?;
            }
            let (table, text, number, bytes) = (N::TABLE, N::TEXT, N::NUMBER, N::BYTES);
            let owner = format!("SELECT member FROM {table} WHERE guild = ?1 AND id = ?2");
            let owner = conn.prepare_cached(&owner)?.query_row([no, row.id], |row| member_id(row, 0)).optional()?;
            refusals::must_be_of(of, owner, &guild, (table, row.id)).map_err(Failure::Store)?;
            let sql = format!(
                "INSERT OR REPLACE INTO {table} (guild, member, id, author, {text}, {number}) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
            );
            let values = params![no, of.as_i64(), row.id, row.author, row.text, row.number];
            conn.prepare_cached(&sql)?.execute(values)?;
            let expires = if N::EXPIRES { " AND expires > unixepoch()" } else { "" };
            let sql =
                format!("SELECT coalesce(sum({bytes}), 2) FROM {table} WHERE guild = ?1 AND member = ?2{expires}");
            let bytes = conn.prepare_cached(&sql)?.query_row([no, of.as_i64()], |row| row.get(0))?;
            // A refusal undoes the job by its savepoint.
            must_fit(bytes, &guild, of, table).map_err(Failure::Store)?;
            Ok((row.id, owner.is_none()))
        };
        self.write(Change::Member(of), write).await
    }

    /// The rows of `sql`, whose first parameter is the guild's number.
    async fn rows_of<T: Send + 'static>(
        &self,
        guild: &GuildId,
        sql: String,
        params: Vec<Value>,
        each: fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let guild = guild.clone();
        let rows = move |conn: &Connection| {
            let no = match guild_number(conn, &guild) {
                Ok(no) => no,
                Err(Failure::Sqlite(error)) => return Err(error),
                Err(refused) => return Ok(Err(refused)),
            };
            let mut statement = conn.prepare_cached(&sql)?;
            let rows = statement.query_map(params_from_iter(std::iter::once(no.into()).chain(params)), each)?;
            rows.collect::<rusqlite::Result<Vec<T>>>().map(Ok)
        };
        self.reads.run(rows).await?.map_err(|refused| refused.at(self.path()))
    }
}

fn member_record(row: &Row<'_>) -> rusqlite::Result<MemberRecord> {
    Ok(MemberRecord { member: member_id(row, 0)?, name: row.get(1)?, points: row.get(2)? })
}

fn note_row(row: &Row<'_>) -> rusqlite::Result<(MemberId, NoteRow)> {
    let note = NoteRow { id: row.get(1)?, author: row.get(2)?, text: row.get(3)?, number: row.get(4)? };
    Ok((member_id(row, 0)?, note))
}

/// Makes the member if there is none; returns the guild's number.
fn make_member(conn: &Connection, guild: &GuildId, member: MemberId) -> Result<i64, Failure> {
    let no = guild_number(conn, guild)?;
    conn.prepare_cached(MAKE_MEMBER)?.execute(params![no, member.as_i64(), member.to_string()])?;
    Ok(no)
}

fn next_id<N: Note>(conn: &Connection, guild: i64) -> Result<i64, Failure> {
    let sql = format!("SELECT coalesce(max(id), 0) FROM {} WHERE guild = ?1", N::TABLE);
    let highest: i64 = conn.prepare_cached(&sql)?.query_row([guild], |row| row.get(0))?;
    highest.checked_add(1).ok_or_else(|| Failure::Store(refusals::ids_used_up()))
}

pub(in crate::store) fn member_id(row: &Row<'_>, column: usize) -> rusqlite::Result<MemberId> {
    let id: i64 = row.get(column)?;
    u64::try_from(id).ok().and_then(MemberId::new).ok_or(rusqlite::Error::IntegralValueOutOfRange(column, id))
}
