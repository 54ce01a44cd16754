//! Members, their warns and reviews, one record at a time.

use tokio_postgres::Row;

use super::directory::guild_number;
use super::pool::Params;
use super::transaction::Transaction;
use super::{PostgresStore, column, member_id, rating};
use crate::model::{GuildId, MemberId, Review, Warn, one_line};
use crate::store::answers::{must_fit, review_bytes, warn_bytes};
use crate::store::refusals;
use crate::store::{Change, MemberRecord, Members, StoreError};

/// Adds a member that is missing: named by its id, without points.
const MAKE_MEMBER: &str = "INSERT INTO member (guild, member, name, points) VALUES ($1, $2, $3, 0) \
    ON CONFLICT (guild, member) DO NOTHING";

const SET_MEMBER: &str = "UPDATE member SET name = coalesce($3, name), points = coalesce($4, points) \
    WHERE guild = $1 AND member = $2";

// A guild without members gives one row of NULLs; a guild that does not exist gives none. So do the others below.
const MEMBERS: &str = "SELECT m.member, m.name, m.points FROM guild g LEFT JOIN member m ON m.guild = g.no \
    WHERE g.id = $1 AND $2::bigint IS NULL ORDER BY m.member";

const WARNS: &str = "SELECT w.member, w.id, w.author, w.reason, w.expires FROM guild g \
    LEFT JOIN warn w ON w.guild = g.no AND ($2::bigint IS NULL OR w.member = $2) WHERE g.id = $1 ORDER BY w.member, w.id";

const REVIEWS: &str = "SELECT r.member, r.id, r.author, r.rating, r.text FROM guild g \
    LEFT JOIN review r ON r.guild = g.no AND ($2::bigint IS NULL OR r.member = $2) WHERE g.id = $1 ORDER BY r.member, r.id";

const MEMBERS_PAGE: &str = "SELECT m.member, m.name, m.points FROM guild g \
    LEFT JOIN member m ON m.guild = g.no AND m.member > $2 WHERE g.id = $1 ORDER BY m.member LIMIT $3";

const MEMBER: &str = "SELECT m.member, m.name, m.points FROM guild g \
    LEFT JOIN member m ON m.guild = g.no AND m.member = $2 WHERE g.id = $1";

const WARNS_PAGE: &str = "SELECT w.member, w.id, w.author, w.reason, w.expires FROM guild g \
    LEFT JOIN warn w ON w.guild = g.no AND ($2::bigint IS NULL OR w.member = $2) AND w.id > $3 \
    WHERE g.id = $1 ORDER BY w.id LIMIT $4";

const REVIEWS_PAGE: &str = "SELECT r.member, r.id, r.author, r.rating, r.text FROM guild g \
    LEFT JOIN review r ON r.guild = g.no AND ($2::bigint IS NULL OR r.member = $2) AND r.id > $3 \
    WHERE g.id = $1 ORDER BY r.id LIMIT $4";

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
        name.map_or(Ok(()), refusals::member_name).map_err(refusals::refused)?;
        let mut tx = self.begin().await?;
        let set = match make_member(&mut tx, guild, member).await {
            Ok(no) => tx.rows(SET_MEMBER, &[&no, &member.as_i64(), &name.map(one_line), &points]).await.map(drop),
            Err(error) => Err(error),
        };
        tx.end(set, Change::Member(member)).await
    }

    async fn members(&self, guild: &GuildId) -> Result<Vec<MemberRecord>, StoreError> {
        self.listed(MEMBERS, guild, &[&guild.as_str(), &None::<i64>], member_record).await
    }

    async fn members_page(
        &self,
        guild: &GuildId,
        after: Option<MemberId>,
        limit: usize,
    ) -> Result<Vec<MemberRecord>, StoreError> {
        let after = after.map_or(-1, MemberId::as_i64);
        self.listed(MEMBERS_PAGE, guild, &[&guild.as_str(), &after, &(limit as i64)], member_record).await
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

    async fn add_warn(
        &self,
        guild: &GuildId,
        member: MemberId,
        author: &str,
        reason: &str,
        expires: i64,
    ) -> Result<i64, StoreError> {
        let mut tx = self.begin().await?;
        let added = add_warn(&mut tx, guild, member, (author, reason, expires)).await;
        tx.end(added, Change::Member(member)).await
    }

    async fn list_warns(&self, guild: &GuildId, of: Option<MemberId>) -> Result<Vec<(MemberId, Warn)>, StoreError> {
        self.listed(WARNS, guild, &[&guild.as_str(), &of.map(MemberId::as_i64)], warn_record).await
    }

    async fn warns_page(
        &self,
        guild: &GuildId,
        of: Option<MemberId>,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<(MemberId, Warn)>, StoreError> {
        let (of, after) = (of.map(MemberId::as_i64), after.unwrap_or(-1));
        self.listed(WARNS_PAGE, guild, &[&guild.as_str(), &of, &after, &(limit as i64)], warn_record).await
    }

    async fn put_warn(&self, guild: &GuildId, member: MemberId, warn: Warn) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let put = put_warn(&mut tx, guild, member, warn).await;
        tx.end(put, Change::Member(member)).await
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
        refusals::check_rating(rating)?;
        let mut tx = self.begin().await?;
        let added = add_review(&mut tx, guild, member, (author, rating, text)).await;
        tx.end(added, Change::Member(member)).await
    }

    async fn list_reviews(&self, guild: &GuildId, of: Option<MemberId>) -> Result<Vec<(MemberId, Review)>, StoreError> {
        self.listed(REVIEWS, guild, &[&guild.as_str(), &of.map(MemberId::as_i64)], review_record).await
    }

    async fn reviews_page(
        &self,
        guild: &GuildId,
        of: Option<MemberId>,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<(MemberId, Review)>, StoreError> {
        let (of, after) = (of.map(MemberId::as_i64), after.unwrap_or(-1));
        self.listed(REVIEWS_PAGE, guild, &[&guild.as_str(), &of, &after, &(limit as i64)], review_record).await
    }

    async fn put_review(&self, guild: &GuildId, member: MemberId, review: Review) -> Result<bool, StoreError> {
        refusals::check_rating(review.rating)?;
        let mut tx = self.begin().await?;
        let put = put_review(&mut tx, guild, member, review).await;
        tx.end(put, Change::Member(member)).await
    }

    async fn remove_review(&self, guild: &GuildId, id: i64) -> Result<(), StoreError> {
        self.remove(guild, id, "review", "DELETE FROM review WHERE guild = $1 AND id = $2 RETURNING member").await
    }
}

impl PostgresStore {
    /// Removes a warn or review by `sql`, which returns its member.
    async fn remove(&self, guild: &GuildId, id: i64, what: &str, sql: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        match remove_note(&mut tx, guild, id, what, sql).await {
            Ok(owner) => tx.end(Ok(()), Change::Member(owner)).await,
            // What is undone gets no number, so the kind of change does not matter.
            Err(error) => tx.end(Err(error), Change::Directory).await,
        }
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

fn warn_record(member: MemberId, row: &Row) -> Result<(MemberId, Warn), StoreError> {
    let (id, author) = (column(row, 1)?, column(row, 2)?);
    Ok((member, Warn { id, author, reason: column(row, 3)?, expires: column(row, 4)? }))
}

fn review_record(member: MemberId, row: &Row) -> Result<(MemberId, Review), StoreError> {
    let (id, author) = (column(row, 1)?, column(row, 2)?);
    Ok((member, Review { id, author, rating: rating(row, 3)?, text: column(row, 4)? }))
}

/// Refuses a warn or review whose id is another member's, which `sql` finds. Whether there is none of this id.
async fn must_be_of(
    tx: &mut Transaction<'_>,
    sql: &str,
    (guild, no): (&GuildId, i64),
    of: MemberId,
    (what, id): (&str, i64),
) -> Result<bool, StoreError> {
    let found = tx.rows(sql, &[&no, &id]).await?;
    match found.first().map(|row| member_id(row, 0)).transpose()? {
        Some(owner) if owner != of => Err(refusals::record_of_other_member(guild, what, id, owner)),
        owner => Ok(owner.is_none()),
    }
}

async fn put_warn(tx: &mut Transaction<'_>, guild: &GuildId, member: MemberId, warn: Warn) -> Result<bool, StoreError> {
    let no = make_member(tx, guild, member).await?;
    let owner = "SELECT member FROM warn WHERE guild = $1 AND id = $2";
    let is_new = must_be_of(tx, owner, (guild, no), member, ("warn", warn.id)).await?;
    let sql = "INSERT INTO warn (guild, member, id, author, reason, expires) VALUES ($1, $2, $3, $4, $5, $6) \
        ON CONFLICT (guild, member, id) DO UPDATE SET author = excluded.author, reason = excluded.reason, \
        expires = excluded.expires";
    let (author, reason) = (one_line(&warn.author), one_line(&warn.reason));
    tx.rows(sql, &[&no, &member.as_i64(), &warn.id, &author, &reason, &warn.expires]).await?;
    fits(tx, WARNS_BYTES, (guild, no), member, "warns").await?;
    Ok(is_new)
}

async fn put_review(
    tx: &mut Transaction<'_>,
    guild: &GuildId,
    member: MemberId,
    review: Review,
) -> Result<bool, StoreError> {
    let no = make_member(tx, guild, member).await?;
    let owner = "SELECT member FROM review WHERE guild = $1 AND id = $2";
    let is_new = must_be_of(tx, owner, (guild, no), member, ("review", review.id)).await?;
    let sql = "INSERT INTO review (guild, member, id, author, rating, text) VALUES ($1, $2, $3, $4, $5, $6) \
        ON CONFLICT (guild, member, id) DO UPDATE SET author = excluded.author, rating = excluded.rating, \
        text = excluded.text";
    let (author, stars, text) = (one_line(&review.author), i16::from(review.rating), one_line(&review.text));
    tx.rows(sql, &[&no, &member.as_i64(), &review.id, &author, &stars, &text]).await?;
    fits(tx, REVIEWS_BYTES, (guild, no), member, "reviews").await?;
    Ok(is_new)
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

async fn add_warn(
    tx: &mut Transaction<'_>,
    guild: &GuildId,
    member: MemberId,
    (author, reason, expires): (&str, &str, i64),
) -> Result<i64, StoreError> {
    let no = make_member(tx, guild, member).await?;
    let id = next_id(tx, no, "SELECT coalesce(max(id), 0) FROM warn WHERE guild = $1").await?;
    let sql = "INSERT INTO warn (guild, member, id, author, reason, expires) VALUES ($1, $2, $3, $4, $5, $6)";
    tx.rows(sql, &[&no, &member.as_i64(), &id, &one_line(author), &one_line(reason), &expires]).await?;
    fits(tx, WARNS_BYTES, (guild, no), member, "warns").await?;
    Ok(id)
}

async fn add_review(
    tx: &mut Transaction<'_>,
    guild: &GuildId,
    member: MemberId,
    (author, rating, text): (&str, u8, &str),
) -> Result<i64, StoreError> {
    let no = make_member(tx, guild, member).await?;
    let id = next_id(tx, no, "SELECT coalesce(max(id), 0) FROM review WHERE guild = $1").await?;
    let sql = "INSERT INTO review (guild, member, id, author, rating, text) VALUES ($1, $2, $3, $4, $5, $6)";
    let stars = i16::from(rating);
    tx.rows(sql, &[&no, &member.as_i64(), &id, &one_line(author), &stars, &one_line(text)]).await?;
    fits(tx, REVIEWS_BYTES, (guild, no), member, "reviews").await?;
    Ok(id)
}

/// Refuses a note that makes an answer too long; the transaction undoes it.
async fn fits(
    tx: &mut Transaction<'_>,
    bytes: &str,
    (guild, no): (&GuildId, i64),
    member: MemberId,
    what: &str,
) -> Result<(), StoreError> {
    let rows = tx.rows(bytes, &[&no, &member.as_i64()]).await?;
    must_fit(rows.first().map_or(Ok(0), |row| column(row, 0))?, guild, member, what)
}

async fn next_id(tx: &mut Transaction<'_>, guild: i64, highest: &str) -> Result<i64, StoreError> {
    let rows = tx.rows(highest, &[&guild]).await?;
    let highest: i64 = rows.first().map_or(Ok(0), |row| column(row, 0))?;
    highest.checked_add(1).ok_or_else(refusals::ids_used_up)
}

async fn remove_note(
    tx: &mut Transaction<'_>,
    guild: &GuildId,
    id: i64,
    what: &str,
    sql: &str,
) -> Result<MemberId, StoreError> {
    let no = guild_number(tx, guild).await?;
    let owner = tx.rows(sql, &[&no, &id]).await?;
    owner.first().map_or_else(|| Err(refusals::unknown_record(guild, what, id)), |row| member_id(row, 0))
}
