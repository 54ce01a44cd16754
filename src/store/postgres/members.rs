//! Members, their warns and reviews, one record at a time.

use tokio_postgres::Row;

use super::directory::guild_number;
use super::pool::Params;
use super::transaction::Transaction;
use super::{PostgresStore, column, member_id};
use crate::model::{GuildId, MemberId, one_line};
use crate::store::answers::must_fit;
use crate::store::refusals;
use crate::store::{Change, MemberRecord, Members, Note, NoteRow, StoreError, sql_limit};

/// Adds a member that is missing: named by its id, without points.
const MAKE_MEMBER: &str = "INSERT INTO member (guild, member, name, points) VALUES ($1, $2, $3, 0) \
    ON CONFLICT (guild, member) DO NOTHING";

const SET_MEMBER: &str = "UPDATE member SET name = coalesce($3, name), points = coalesce($4, points) \
    WHERE guild = $1 AND member = $2";

// A guild without members gives one row of NULLs; a guild that does not exist gives none. So do the others below.
const MEMBERS: &str = "SELECT m.member, m.name, m.points FROM guild g \
    LEFT JOIN member m ON m.guild = g.no AND m.member > $2 WHERE g.id = $1 ORDER BY m.member LIMIT $3";

const MEMBER: &str = "SELECT m.member, m.name, m.points FROM guild g \
    LEFT JOIN member m ON m.guild = g.no AND m.member = $2 WHERE g.id = $1";

impl Members for PostgresStore {
    async fn set_member(
        &self,
        guild: &GuildId,
        member: MemberId,
        name: Option<&str>,
        points: Option<i64>,
    ) -> Result<(), StoreError> {
        name.map_or(Ok(()), refusals::member_name).map_err(refusals::refused)?;
        let mut tx = self.begin().await?;
        let set = match make_member(&mut tx, guild, member).await {
            Ok(no) => tx.rows(SET_MEMBER, &[&no, &member.as_i64(), &name.map(one_line), &points]).await.map(drop),
            Err(error) => Err(error),
        };
        tx.end(set, Change::Member(member)).await
    }

    async fn members(
        &self,
        guild: &GuildId,
        after: Option<MemberId>,
        limit: usize,
    ) -> Result<Vec<MemberRecord>, StoreError> {
        let after = after.map_or(-1, MemberId::as_i64);
        self.listed(MEMBERS, guild, &[&guild.as_str(), &after, &sql_limit(limit)], member_record).await
    }

    async fn member(&self, guild: &GuildId, member: MemberId) -> Result<Option<MemberRecord>, StoreError> {
        let params: Params<'_> = &[&guild.as_str(), &member.as_i64()];
        self.listed(MEMBER, guild, params, member_record).await.map(|mut found| found.pop())
    }

    async fn remove_member(&self, guild: &GuildId, member: MemberId) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let removed = remove_member(&mut tx, guild, member).await;
        tx.end(removed, Change::Member(member)).await
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
            "SELECT n.member, n.id, n.author, n.{text}, n.{number}::bigint FROM guild g LEFT JOIN {table} n \
             ON n.guild = g.no AND ($2::bigint IS NULL OR n.member = $2) AND n.id > $3 \
             WHERE g.id = $1 ORDER BY n.id LIMIT $4"
        );
        let (of, after) = (of.map(MemberId::as_i64), after.unwrap_or(-1));
        self.listed(&sql, guild, &[&guild.as_str(), &of, &after, &sql_limit(limit)], note).await
    }

    async fn add_note<N: Note>(&self, guild: &GuildId, member: MemberId, note: N) -> Result<i64, StoreError> {
        self.write_note::<N>(guild, member, note.to_row()?, true).await.map(|(id, _)| id)
    }

    async fn put_note<N: Note>(&self, guild: &GuildId, member: MemberId, note: N) -> Result<bool, StoreError> {
        self.write_note::<N>(guild, member, note.to_row()?, false).await.map(|(_, is_new)| is_new)
    }

    async fn remove_note<N: Note>(&self, guild: &GuildId, id: i64) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        match remove_note::<N>(&mut tx, guild, id).await {
            Ok(owner) => tx.end(Ok(()), Change::Member(owner)).await,
            // What is undone gets no number, so the kind of change does not matter.
            Err(error) => tx.end(Err(error), Change::Directory).await,
        }
    }
}

impl PostgresStore {
    async fn write_note<N: Note>(
        &self,
        guild: &GuildId,
        member: MemberId,
        row: NoteRow,
        is_added: bool,
    ) -> Result<(i64, bool), StoreError> {
        let mut tx = self.begin().await?;
        let written = write_note::<N>(&mut tx, guild, member, row, is_added).await;
        tx.end(written, Change::Member(member)).await
    }

    /// The rows of `sql`, whose first column is a member.
    async fn listed<T>(
        &self,
        sql: &str,
        guild: &GuildId,
        params: Params<'_>,
        each: impl Fn(MemberId, &Row) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.pool.list(sql, params).await?;
        if rows.is_empty() {
            return Err(refusals::unknown_guild(guild));
        }
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            if column::<Option<i64>>(row, 0)?.is_some() {
                found.push(each(member_id(row, 0)?, row)?);
            }
        }
        Ok(found)
    }
}

fn member_record(member: MemberId, row: &Row) -> Result<MemberRecord, StoreError> {
    Ok(MemberRecord { member, name: column(row, 1)?, points: column(row, 2)? })
}

fn note<N: Note>(member: MemberId, row: &Row) -> Result<(MemberId, N), StoreError> {
    let (id, author, text, number) = (column(row, 1)?, column(row, 2)?, column(row, 3)?, column(row, 4)?);
    Ok((member, N::from_row(NoteRow { id, author, text, number })?))
}

/// Writes a warn or review, under the guild's next id if it `is_added`. Returns its id, and whether it is new.
async fn write_note<N: Note>(
    tx: &mut Transaction<'_>,
    guild: &GuildId,
    member: MemberId,
    mut row: NoteRow,
    is_added: bool,
) -> Result<(i64, bool), StoreError> {
    let no = make_member(tx, guild, member).await?;
    if is_added {
        row.id = next_id::<N>(tx, no).await?;
    }
    let (table, text, number, bytes) = (N::TABLE, N::TEXT, N::NUMBER, N::BYTES);
    let owner = format!("SELECT member FROM {table} WHERE guild = $1 AND id = $2");
    let owner = tx.rows(&owner, &[&no, &row.id]).await?.first().map(|row| member_id(row, 0)).transpose()?;
    refusals::must_be_of(member, owner, guild, (table, row.id))?;
    let sql = format!(
        "INSERT INTO {table} (guild, member, id, author, {text}, {number}) VALUES ($1, $2, $3, $4, $5, $6::bigint) \
         ON CONFLICT (guild, member, id) DO UPDATE SET author = excluded.author, {text} = excluded.{text}, \
         {number} = excluded.{number}"
    );
    tx.rows(&sql, &[&no, &member.as_i64(), &row.id, &row.author, &row.text, &row.number]).await?;
    let expires = if N::EXPIRES { " AND expires > extract(epoch FROM now())::bigint" } else { "" };
    let sql = format!("SELECT coalesce(sum({bytes}), 2) FROM {table} WHERE guild = $1 AND member = $2{expires}");
    let bytes = tx.rows(&sql, &[&no, &member.as_i64()]).await?;
    // A refusal undoes the transaction.
    must_fit(bytes.first().map_or(Ok(0), |row| column(row, 0))?, guild, member, table)?;
    Ok((row.id, owner.is_none()))
}

/// Adds the member if need be; returns the guild's number.
async fn make_member(tx: &mut Transaction<'_>, guild: &GuildId, member: MemberId) -> Result<i64, StoreError> {
    let no = guild_number(tx, guild).await?;
    tx.rows(MAKE_MEMBER, &[&no, &member.as_i64(), &member.to_string()]).await?;
    Ok(no)
}

async fn remove_member(tx: &mut Transaction<'_>, guild: &GuildId, member: MemberId) -> Result<(), StoreError> {
    let no = guild_number(tx, guild).await?;
    let sql = "DELETE FROM member WHERE guild = $1 AND member = $2 RETURNING 1";
    let removed = tx.count(sql, &[&no, &member.as_i64()]).await?;
    refusals::changed(removed, || refusals::unknown_member(guild, member))
}

async fn next_id<N: Note>(tx: &mut Transaction<'_>, guild: i64) -> Result<i64, StoreError> {
    let sql = format!("SELECT coalesce(max(id), 0) FROM {} WHERE guild = $1", N::TABLE);
    let rows = tx.rows(&sql, &[&guild]).await?;
    let highest: i64 = rows.first().map_or(Ok(0), |row| column(row, 0))?;
    highest.checked_add(1).ok_or_else(refusals::ids_used_up)
}

async fn remove_note<N: Note>(tx: &mut Transaction<'_>, guild: &GuildId, id: i64) -> Result<MemberId, StoreError> {
    let no = guild_number(tx, guild).await?;
    let sql = format!("DELETE FROM {} WHERE guild = $1 AND id = $2 RETURNING member", N::TABLE);
    let owner = tx.rows(&sql, &[&no, &id]).await?;
    owner.first().map_or_else(|| Err(refusals::unknown_record(guild, N::TABLE, id)), |row| member_id(row, 0))
}
