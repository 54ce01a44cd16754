//! Members, their warns and reviews, one record at a time.

use tokio_postgres::Row;

use super::directory::guild_number;
use super::transaction::Transaction;
use super::{PostgresStore, column, member_id, rating};
use crate::model::{GuildId, MemberId, Review, Warn, one_line};
use crate::store::answers::{must_fit, review_bytes, warn_bytes};
use crate::store::refusals::{self, refused};
use crate::store::{Change, MemberRecord, Members, StoreError};

/// What makes a member that is not there yet: named by its id, without points.
const MAKE_MEMBER: &str = "INSERT INTO member (guild, member, name, points) VALUES ($1, $2, $3, 0) \
    ON CONFLICT (guild, member) DO NOTHING";

const SET_MEMBER: &str = "UPDATE member SET name = coalesce($3, name), points = coalesce($4, points) \
    WHERE guild = $1 AND member = $2";

// A guild without rows gives one of NULLs; one that is not there gives none.
const MEMBERS: &str = "SELECT m.member, m.name, m.points FROM guild g LEFT JOIN member m ON m.guild = g.no \
    WHERE g.id = $1 AND $2::bigint IS NULL ORDER BY m.member";

const WARNS: &str = "SELECT w.member, w.id, w.author, w.reason, w.expires FROM guild g \
    LEFT JOIN warn w ON w.guild = g.no AND ($2::bigint IS NULL OR w.member = $2) WHERE g.id = $1 ORDER BY w.member, w.id";

const REVIEWS: &str = "SELECT r.member, r.id, r.author, r.rating, r.text FROM guild g \
    LEFT JOIN review r ON r.guild = g.no AND ($2::bigint IS NULL OR r.member = $2) WHERE g.id = $1 ORDER BY r.member, r.id";

/// Bytes of the answers about a member.
const WARNS_BYTES: &str = concat!(
    "SELECT coalesce(sum(",
    warn_bytes!(""),
    "), 2) FROM warn WHERE guild = $1 AND member = $2 AND expires > extract(epoch FROM now())::bigint"
);
const REVIEWS_BYTES: &str =
    concat!("SELECT coalesce(sum(", review_bytes!(""), "), 2) FROM review WHERE guild = $1 AND member = $2");

impl Members for PostgresStore {
    async fn set_member(
        &self,
        guild: &GuildId,
        member: MemberId,
        name: Option<&str>,
        points: Option<i64>,
    ) -> Result<(), StoreError> {
        let mut work = self.begin().await?;
        let set = match make_member(&mut work, guild, member).await {
            Ok(no) => work.rows(SET_MEMBER, &[&no, &member.as_i64(), &name.map(one_line), &points]).await.map(drop),
            Err(error) => Err(error),
        };
        work.end(set, Change::Member(member)).await
    }

    async fn members(&self, guild: &GuildId) -> Result<Vec<MemberRecord>, StoreError> {
        self.listed(guild, None, MEMBERS, |member, row| {
            Ok(MemberRecord { member, name: column(row, 1)?, points: column(row, 2)? })
        })
        .await
    }

    async fn remove_member(&self, guild: &GuildId, member: MemberId) -> Result<(), StoreError> {
        let mut work = self.begin().await?;
        let removed = remove_member(&mut work, guild, member).await;
        work.end(removed, Change::Member(member)).await
    }

    async fn add_warn(
        &self,
        guild: &GuildId,
        member: MemberId,
        author: &str,
        reason: &str,
        expires: i64,
    ) -> Result<i64, StoreError> {
        let mut work = self.begin().await?;
        let added = add_warn(&mut work, guild, member, (author, reason, expires)).await;
        work.end(added, Change::Member(member)).await
    }

    async fn list_warns(&self, guild: &GuildId, of: Option<MemberId>) -> Result<Vec<(MemberId, Warn)>, StoreError> {
        self.listed(guild, of, WARNS, |member, row| {
            let (id, author) = (column(row, 1)?, column(row, 2)?);
            Ok((member, Warn { id, author, reason: column(row, 3)?, expires: column(row, 4)? }))
        })
        .await
    }

    async fn remove_warn(&self, guild: &GuildId, id: i64) -> Result<(), StoreError> {
        self.remove(guild, id, "warn", "DELETE FROM warn WHERE guild = $1 AND id = $2 RETURNING member").await
    }

    async fn add_review(
        &self,
        guild: &GuildId,
        member: MemberId,
        author: &str,
        rating: u8,
        text: &str,
    ) -> Result<i64, StoreError> {
        refusals::rating(rating)?;
        let mut work = self.begin().await?;
        let added = add_review(&mut work, guild, member, (author, rating, text)).await;
        work.end(added, Change::Member(member)).await
    }

    async fn list_reviews(&self, guild: &GuildId, of: Option<MemberId>) -> Result<Vec<(MemberId, Review)>, StoreError> {
        self.listed(guild, of, REVIEWS, |member, row| {
            let (id, author) = (column(row, 1)?, column(row, 2)?);
            Ok((member, Review { id, author, rating: rating(row, 3)?, text: column(row, 4)? }))
        })
        .await
    }

    async fn remove_review(&self, guild: &GuildId, id: i64) -> Result<(), StoreError> {
        self.remove(guild, id, "review", "DELETE FROM review WHERE guild = $1 AND id = $2 RETURNING member").await
    }
}

impl PostgresStore {
    /// Removes a warn or review by `sql`, which answers whose it was.
    async fn remove(&self, guild: &GuildId, id: i64, what: &str, sql: &str) -> Result<(), StoreError> {
        let mut work = self.begin().await?;
        match taken_away(&mut work, guild, id, what, sql).await {
            Ok(owner) => work.end(Ok(()), Change::Member(owner)).await,
            // Nothing is told of what is undone.
            Err(error) => work.end(Err(error), Change::Directory).await,
        }
    }

    /// The rows of `sql`, whose parameters are the guild and a member or NULL, and whose first column
    /// is a member.
    async fn listed<T>(
        &self,
        guild: &GuildId,
        of: Option<MemberId>,
        sql: &str,
        each: impl Fn(MemberId, &Row) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.pool.list(sql, &[&guild.as_str(), &of.map(MemberId::as_i64)]).await?;
        if rows.is_empty() {
            return Err(refused(refusals::unknown_guild(guild)));
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

/// Makes the member if need be; answers the guild's number.
async fn make_member(work: &mut Transaction<'_>, guild: &GuildId, member: MemberId) -> Result<i64, StoreError> {
    let no = guild_number(work, guild).await?;
    work.rows(MAKE_MEMBER, &[&no, &member.as_i64(), &member.to_string()]).await?;
    Ok(no)
}

async fn remove_member(work: &mut Transaction<'_>, guild: &GuildId, member: MemberId) -> Result<(), StoreError> {
    let no = guild_number(work, guild).await?;
    let sql = "DELETE FROM member WHERE guild = $1 AND member = $2 RETURNING 1";
    let removed = work.count(sql, &[&no, &member.as_i64()]).await?;
    refusals::changed(removed, || refusals::unknown_member(guild, member))
}

async fn add_warn(
    work: &mut Transaction<'_>,
    guild: &GuildId,
    member: MemberId,
    (author, reason, expires): (&str, &str, i64),
) -> Result<i64, StoreError> {
    let no = make_member(work, guild, member).await?;
    let id = next_id(work, no, "SELECT coalesce(max(id), 0) FROM warn WHERE guild = $1").await?;
    let sql = "INSERT INTO warn (guild, member, id, author, reason, expires) VALUES ($1, $2, $3, $4, $5, $6)";
    work.rows(sql, &[&no, &member.as_i64(), &id, &one_line(author), &one_line(reason), &expires]).await?;
    fits(work, WARNS_BYTES, (guild, no), member, "warns").await?;
    Ok(id)
}

async fn add_review(
    work: &mut Transaction<'_>,
    guild: &GuildId,
    member: MemberId,
    (author, rating, text): (&str, u8, &str),
) -> Result<i64, StoreError> {
    let no = make_member(work, guild, member).await?;
    let id = next_id(work, no, "SELECT coalesce(max(id), 0) FROM review WHERE guild = $1").await?;
    let sql = "INSERT INTO review (guild, member, id, author, rating, text) VALUES ($1, $2, $3, $4, $5, $6)";
    let stars = i16::from(rating);
    work.rows(sql, &[&no, &member.as_i64(), &id, &one_line(author), &stars, &one_line(text)]).await?;
    fits(work, REVIEWS_BYTES, (guild, no), member, "reviews").await?;
    Ok(id)
}

/// Refuses what has made an answer too long; it is undone with the transaction.
async fn fits(
    work: &mut Transaction<'_>,
    bytes: &str,
    (guild, no): (&GuildId, i64),
    member: MemberId,
    what: &str,
) -> Result<(), StoreError> {
    let rows = work.rows(bytes, &[&no, &member.as_i64()]).await?;
    must_fit(rows.first().map_or(Ok(0), |row| column(row, 0))?, guild, member, what)
}

async fn next_id(work: &mut Transaction<'_>, guild: i64, highest: &str) -> Result<i64, StoreError> {
    let rows = work.rows(highest, &[&guild]).await?;
    let highest: i64 = rows.first().map_or(Ok(0), |row| column(row, 0))?;
    highest.checked_add(1).ok_or_else(|| refused(refusals::ids_used_up()))
}

async fn taken_away(
    work: &mut Transaction<'_>,
    guild: &GuildId,
    id: i64,
    what: &str,
    sql: &str,
) -> Result<MemberId, StoreError> {
    let no = guild_number(work, guild).await?;
    let owner = work.rows(sql, &[&no, &id]).await?;
    owner.first().map_or_else(|| Err(refused(refusals::unknown_note(guild, what, id))), |row| member_id(row, 0))
}
