//! Members, their warns and reviews, one record at a time. Writes go through the writing thread.

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use super::directory::{changed, guild_number};
use super::{Failure, SqliteStore, Writes};
use crate::model::{GuildId, MemberId, Review, Warn, one_line};
use crate::store::answers::{must_fit, review_bytes, warn_bytes};
use crate::store::refusals;
use crate::store::{Change, MemberRecord, Members, StoreError};

type Params<'p> = &'p [&'p dyn ToSql];

/// Makes a member that does not exist yet: named by its id, without points.
const MAKE_MEMBER: &str = "INSERT INTO member (guild, member, name, points) VALUES (?1, ?2, ?3, 0) \
    ON CONFLICT (guild, member) DO NOTHING";

/// Bytes of the answers about a member.
const WARNS_BYTES: &str = concat!(
    "SELECT coalesce(sum(",
    warn_bytes!(""),
    "), 2) FROM warn WHERE guild = ?1 AND member = ?2 AND expires > unixepoch()"
);
const REVIEWS_BYTES: &str =
    concat!("SELECT coalesce(sum(", review_bytes!(""), "), 2) FROM review WHERE guild = ?1 AND member = ?2");

/// Refuses a record that made an answer too long; the job's savepoint undoes it.
fn fits(
    conn: &Connection,
    bytes: &str,
    (guild, no): (&GuildId, i64),
    member: MemberId,
    what: &str,
) -> Result<(), Failure> {
    let bytes: i64 = conn.prepare_cached(bytes)?.query_row([no, member.as_i64()], |row| row.get(0))?;
    must_fit(bytes, guild, member, what).map_err(Failure::Store)
}

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

    async fn members(&self, guild: &GuildId) -> Result<Vec<MemberRecord>, StoreError> {
        let sql = "SELECT member, name, points FROM member WHERE guild = ?1 AND ?2 IS NULL ORDER BY member";
        self.rows_of(guild, sql, &[&None::<i64>], member_record)
    }

    async fn members_page(
        &self,
        guild: &GuildId,
        after: Option<MemberId>,
        limit: usize,
    ) -> Result<Vec<MemberRecord>, StoreError> {
        let sql = "SELECT member, name, points FROM member WHERE guild = ?1 AND member > ?2 ORDER BY member LIMIT ?3";
        let after = after.map_or(-1, MemberId::as_i64);
        self.rows_of(guild, sql, &[&after, &(limit as i64)], member_record)
    }

    async fn member(&self, guild: &GuildId, member: MemberId) -> Result<Option<MemberRecord>, StoreError> {
        let sql = "SELECT member, name, points FROM member WHERE guild = ?1 AND member = ?2";
        self.rows_of(guild, sql, &[&member.as_i64()], member_record).map(|mut found| found.pop())
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

    async fn add_warn(
        &self,
        guild: &GuildId,
        member: MemberId,
        author: &str,
        reason: &str,
        expires: i64,
    ) -> Result<i64, StoreError> {
        let guild = guild.clone();
        let (author, reason) = (one_line(author).into_owned(), one_line(reason).into_owned());
        let add = move |conn: &Connection| {
            let no = make_member(conn, &guild, member)?;
            let id = next_id(conn, no, "SELECT coalesce(max(id), 0) FROM warn WHERE guild = ?1")?;
            let sql = "INSERT INTO warn (guild, member, id, author, reason, expires) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            conn.prepare_cached(sql)?.execute(params![no, member.as_i64(), id, author, reason, expires])?;
            fits(conn, WARNS_BYTES, (&guild, no), member, "warns")?;
            Ok(id)
        };
        self.write(Change::Member(member), add).await
    }

    async fn list_warns(&self, guild: &GuildId, of: Option<MemberId>) -> Result<Vec<(MemberId, Warn)>, StoreError> {
        let sql = "SELECT member, id, author, reason, expires FROM warn \
            WHERE guild = ?1 AND (?2 IS NULL OR member = ?2) ORDER BY member, id";
        self.rows_of(guild, sql, &[&of.map(MemberId::as_i64)], warn_record)
    }

    async fn warns_page(
        &self,
        guild: &GuildId,
        of: Option<MemberId>,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<(MemberId, Warn)>, StoreError> {
        let sql = "SELECT member, id, author, reason, expires FROM warn \
            WHERE guild = ?1 AND (?2 IS NULL OR member = ?2) AND id > ?3 ORDER BY id LIMIT ?4";
        let params: Params<'_> = &[&of.map(MemberId::as_i64), &after.unwrap_or(-1), &(limit as i64)];
        self.rows_of(guild, sql, params, warn_record)
    }

    async fn put_warn(&self, guild: &GuildId, member: MemberId, warn: Warn) -> Result<bool, StoreError> {
        let guild = guild.clone();
        let put = move |conn: &Connection| {
            let no = make_member(conn, &guild, member)?;
            let owner = "SELECT member FROM warn WHERE guild = ?1 AND id = ?2";
            let is_new = must_be_of(conn, owner, (&guild, no), member, ("warn", warn.id))?;
            let sql = "INSERT OR REPLACE INTO warn (guild, member, id, author, reason, expires) \
                VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            let (author, reason) = (one_line(&warn.author), one_line(&warn.reason));
            conn.prepare_cached(sql)?.execute(params![no, member.as_i64(), warn.id, author, reason, warn.expires])?;
            fits(conn, WARNS_BYTES, (&guild, no), member, "warns")?;
            Ok(is_new)
        };
        self.write(Change::Member(member), put).await
    }

    async fn remove_warn(&self, guild: &GuildId, id: i64) -> Result<(), StoreError> {
        self.remove(guild, id, "warn", "DELETE FROM warn WHERE guild = ?1 AND id = ?2 RETURNING member").await
    }

    async fn add_review(
        &self,
        guild: &GuildId,
        member: MemberId,
        author: &str,
        rating: u8,
        text: &str,
    ) -> Result<i64, StoreError> {
        refusals::check_rating(rating)?;
        let guild = guild.clone();
        let (author, text) = (one_line(author).into_owned(), one_line(text).into_owned());
        let add = move |conn: &Connection| {
            let no = make_member(conn, &guild, member)?;
            let id = next_id(conn, no, "SELECT coalesce(max(id), 0) FROM review WHERE guild = ?1")?;
            let sql = "INSERT INTO review (guild, member, id, author, rating, text) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            conn.prepare_cached(sql)?.execute(params![no, member.as_i64(), id, author, rating, text])?;
            fits(conn, REVIEWS_BYTES, (&guild, no), member, "reviews")?;
            Ok(id)
        };
        self.write(Change::Member(member), add).await
    }

    async fn list_reviews(&self, guild: &GuildId, of: Option<MemberId>) -> Result<Vec<(MemberId, Review)>, StoreError> {
        let sql = "SELECT member, id, author, rating, text FROM review \
            WHERE guild = ?1 AND (?2 IS NULL OR member = ?2) ORDER BY member, id";
        self.rows_of(guild, sql, &[&of.map(MemberId::as_i64)], review_record)
    }

    async fn reviews_page(
        &self,
        guild: &GuildId,
        of: Option<MemberId>,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<(MemberId, Review)>, StoreError> {
        let sql = "SELECT member, id, author, rating, text FROM review \
            WHERE guild = ?1 AND (?2 IS NULL OR member = ?2) AND id > ?3 ORDER BY id LIMIT ?4";
        let params: Params<'_> = &[&of.map(MemberId::as_i64), &after.unwrap_or(-1), &(limit as i64)];
        self.rows_of(guild, sql, params, review_record)
    }

    async fn put_review(&self, guild: &GuildId, member: MemberId, review: Review) -> Result<bool, StoreError> {
        refusals::check_rating(review.rating)?;
        let guild = guild.clone();
        let put = move |conn: &Connection| {
            let no = make_member(conn, &guild, member)?;
            let owner = "SELECT member FROM review WHERE guild = ?1 AND id = ?2";
            let is_new = must_be_of(conn, owner, (&guild, no), member, ("review", review.id))?;
            let sql = "INSERT OR REPLACE INTO review (guild, member, id, author, rating, text) \
                VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            let (author, text) = (one_line(&review.author), one_line(&review.text));
            conn.prepare_cached(sql)?.execute(params![no, member.as_i64(), review.id, author, review.rating, text])?;
            fits(conn, REVIEWS_BYTES, (&guild, no), member, "reviews")?;
            Ok(is_new)
        };
        self.write(Change::Member(member), put).await
    }

    async fn remove_review(&self, guild: &GuildId, id: i64) -> Result<(), StoreError> {
        self.remove(guild, id, "review", "DELETE FROM review WHERE guild = ?1 AND id = ?2 RETURNING member").await
    }
}

impl SqliteStore {
    /// Removes a warn or review by `sql`, which returns whose it was.
    async fn remove(&self, guild: &GuildId, id: i64, what: &'static str, sql: &'static str) -> Result<(), StoreError> {
        let guild = guild.clone();
        let take = move |conn: &Connection| {
            let no = guild_number(conn, &guild)?;
            let owner = conn.prepare_cached(sql)?.query_row([no, id], |row| member(row, 0)).optional()?;
            let absent = || Failure::Store(refusals::unknown_record(&guild, what, id));
            owner.map(|owner| ((), Some(Change::Member(owner)))).ok_or_else(absent)
        };
        self.writer.run(Writes::Several, take).await
    }

    /// The rows of `sql`, whose first parameter is the guild's number.
    fn rows_of<T>(
        &self,
        guild: &GuildId,
        sql: &str,
        params: Params<'_>,
        each: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        self.readers.with(|conn| {
            let no = match guild_number(conn, guild) {
                Ok(no) => no,
                Err(Failure::Sqlite(error)) => return Err(error),
                Err(refused) => return Ok(Err(refused.at(self.path()))),
            };
            let mut statement = conn.prepare_cached(sql)?;
            let no: &dyn ToSql = &no;
            let params: Vec<&dyn ToSql> = std::iter::once(no).chain(params.iter().copied()).collect();
            let rows = statement.query_map(&*params, &each)?;
            rows.collect::<rusqlite::Result<Vec<T>>>().map(Ok)
        })?
    }
}

fn member_record(row: &Row<'_>) -> rusqlite::Result<MemberRecord> {
    Ok(MemberRecord { member: member(row, 0)?, name: row.get(1)?, points: row.get(2)? })
}

fn warn_record(row: &Row<'_>) -> rusqlite::Result<(MemberId, Warn)> {
    let warn = Warn { id: row.get(1)?, author: row.get(2)?, reason: row.get(3)?, expires: row.get(4)? };
    Ok((member(row, 0)?, warn))
}

fn review_record(row: &Row<'_>) -> rusqlite::Result<(MemberId, Review)> {
    let review = Review { id: row.get(1)?, author: row.get(2)?, rating: row.get(3)?, text: row.get(4)? };
    Ok((member(row, 0)?, review))
}

/// Refuses a warn or review whose id is another member's, which `sql` finds. Whether there is none of this id.
fn must_be_of(
    conn: &Connection,
    sql: &str,
    (guild, no): (&GuildId, i64),
    of: MemberId,
    (what, id): (&str, i64),
) -> Result<bool, Failure> {
    match conn.prepare_cached(sql)?.query_row([no, id], |row| member(row, 0)).optional()? {
        Some(owner) if owner != of => Err(Failure::Store(refusals::record_of_other_member(guild, what, id, owner))),
        found => Ok(found.is_none()),
    }
}

/// Makes the member if there is none; returns the guild's number.
fn make_member(conn: &Connection, guild: &GuildId, member: MemberId) -> Result<i64, Failure> {
    let no = guild_number(conn, guild)?;
    conn.prepare_cached(MAKE_MEMBER)?.execute(params![no, member.as_i64(), member.to_string()])?;
    Ok(no)
}

fn next_id(conn: &Connection, guild: i64, highest: &str) -> Result<i64, Failure> {
    let highest: i64 = conn.prepare_cached(highest)?.query_row([guild], |row| row.get(0))?;
    highest.checked_add(1).ok_or_else(|| Failure::Store(refusals::ids_used_up()))
}

fn member(row: &Row<'_>, column: usize) -> rusqlite::Result<MemberId> {
    let id: i64 = row.get(column)?;
    u64::try_from(id).ok().and_then(MemberId::new).ok_or(rusqlite::Error::IntegralValueOutOfRange(column, id))
}
