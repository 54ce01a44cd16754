//! Guilds and keys, from which the key table is made. Writes go through the writing thread.

use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::writer::Writes;
use super::{Failure, SqliteStore};
use crate::model::{Digest, GuildId, KeyId, Scope, one_line};
use crate::store::refusals;
use crate::store::{
    Change, Directory, GuildRecord, KeyChange, KeyRecord, Previous, RemovedGuild, StoreError, sql_limit,
};

impl SqliteStore {
    /// Whether the guild is in the store, the bot being there or not.
    pub(in crate::store) fn has_guild(&self, guild: &GuildId) -> Result<bool, StoreError> {
        self.reads
            .readers()
            .with(|conn| conn.prepare_cached("SELECT 1 FROM guild WHERE id = ?1")?.exists([guild.as_str()]))
    }
}

impl Directory for SqliteStore {
    async fn guilds(&self) -> Result<Vec<GuildRecord>, StoreError> {
        self.reads.run_checked(guilds).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.reads.run_checked(|conn| keys(conn, (None, None), None, usize::MAX)).await
    }

    async fn keys_page(
        &self,
        guild: Option<&GuildId>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<KeyRecord>, StoreError> {
        let (guild, after) = (guild.cloned(), after.map(str::to_owned));
        self.reads.run(move |conn| keys(conn, (None, guild.as_ref()), after.as_deref(), limit)).await
    }

    async fn key(&self, id: &str) -> Result<Option<KeyRecord>, StoreError> {
        let id = id.to_owned();
        self.reads.run(move |conn| keys(conn, (Some(&id), None), None, 1).map(|mut found| found.pop())).await
    }

    async fn add_guild(&self, guild: &GuildId, name: &str) -> Result<(), StoreError> {
        let (guild, name) = (guild.clone(), one_line(name).into_owned());
        let add = move |conn: &Connection| {
            let sql = "INSERT INTO guild (id, name) VALUES (?1, ?2) ON CONFLICT (id) DO NOTHING";
            changed(conn.prepare_cached(sql)?.execute(params![guild.as_str(), name])?, || {
                refusals::guild_exists(&guild)
            })
        };
        self.write(Change::Directory, add).await
    }

    async fn rename_guild(&self, guild: &GuildId, name: &str) -> Result<(), StoreError> {
        let (guild, name) = (guild.clone(), one_line(name).into_owned());
        let rename = move |conn: &Connection| {
            let sql = "UPDATE guild SET name = ?2 WHERE id = ?1";
            changed(conn.prepare_cached(sql)?.execute(params![guild.as_str(), name])?, || {
                refusals::absent_guild(&guild)
            })
        };
        self.write(Change::Directory, rename).await
    }

    async fn remove_guild(&self, guild: &GuildId) -> Result<RemovedGuild, StoreError> {
        let guild = guild.clone();
        let remove = move |conn: &Connection| {
            let no = find_guild(conn, &guild)?.ok_or_else(|| Failure::Store(refusals::absent_guild(&guild)))?;
            let delete = |sql| conn.execute(sql, [no]).map(|rows| rows as u64);
            let removed = RemovedGuild {
                warns: delete("DELETE FROM warn WHERE guild = ?1")?,
                reviews: delete("DELETE FROM review WHERE guild = ?1")?,
                members: delete("DELETE FROM member WHERE guild = ?1")?,
                keys: delete("DELETE FROM key WHERE guild = ?1")?,
            };
            delete("DELETE FROM guild WHERE no = ?1")?;
            Ok(removed)
        };
        self.write(Change::Everything, remove).await
    }

    async fn set_guild_departed(&self, guild: &GuildId, departed: bool) -> Result<(), StoreError> {
        let guild = guild.clone();
        let set = move |conn: &Connection| {
            let sql = "UPDATE guild SET gone = ?2 WHERE id = ?1";
            changed(conn.prepare_cached(sql)?.execute(params![guild.as_str(), departed])?, || {
                refusals::absent_guild(&guild)
            })
        };
        self.write(Change::Directory, set).await
    }

    async fn create_key(&self, key: KeyRecord) -> Result<(), StoreError> {
        let create = move |conn: &Connection| {
            let guild = guild_number(conn, &key.guild)?;
            let digests = [Some(key.digest), key.previous.map(|previous| previous.digest)];
            digests.iter().flatten().try_for_each(|digest| refuse_taken(conn, digest))?;
            let sql = "INSERT INTO key (id, digest, guild, name, tier, scope, created, expires, last_used, \
                previous, previous_until) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) \
                ON CONFLICT (id) DO NOTHING";
            let made = conn.prepare_cached(sql)?.execute(params![
                &*key.id,
                key.digest.0,
                guild,
                one_line(&key.name),
                key.tier,
                key.scope.name(),
                key.created,
                key.expires,
                key.last_used,
                key.previous.map(|previous| previous.digest.0),
                key.previous.map(|previous| previous.until)
            ])?;
            changed(made, || refusals::key_exists(&key.id))
        };
        self.write(Change::Directory, create).await
    }

    async fn rotate_key(
        &self,
        id: &str,
        digest: Digest,
        previous_until: Option<i64>,
        now: i64,
    ) -> Result<(), StoreError> {
        let id = id.to_owned();
        let until = previous_until.filter(|until| *until > now);
        let rotate = move |conn: &Connection| {
            let sql = "SELECT expires FROM key WHERE id = ?1";
            let expires = conn.prepare_cached(sql)?.query_row([&id], |row| row.get::<_, Option<i64>>(0)).optional()?;
            let expires = expires.ok_or_else(|| Failure::Store(refusals::unknown_key(&id)))?;
            if expires.is_some_and(|expires| expires <= now) {
                return Err(Failure::Store(refusals::expired_key(&id)));
            }
            // On the right is the row as it was.
            let sql = "UPDATE key SET digest = ?2, previous_until = ?3, \
                previous = CASE WHEN ?3 IS NULL THEN NULL ELSE digest END WHERE id = ?1";
            refuse_taken(conn, &digest)?;
            conn.prepare_cached(sql)?.execute(params![id, digest.0, until])?;
            Ok(())
        };
        self.write(Change::Directory, rotate).await
    }

    async fn set_key(&self, id: &str, change: KeyChange) -> Result<(), StoreError> {
        let id = id.to_owned();
        let set = move |conn: &Connection| {
            let KeyChange { name, tier, scope, expires } = change;
            let sql = "UPDATE key SET name = coalesce(?2, name), scope = coalesce(?3, scope), \
                tier = CASE WHEN ?4 THEN ?5 ELSE tier END, expires = CASE WHEN ?6 THEN ?7 ELSE expires END \
                WHERE id = ?1";
            let found = conn.prepare_cached(sql)?.execute(params![
                id,
                name.as_deref().map(one_line),
                scope.map(Scope::name),
                tier.is_some(),
                tier.flatten(),
                expires.is_some(),
                expires.flatten()
            ])?;
            changed(found, || refusals::unknown_key(&id))
        };
        self.write(Change::Directory, set).await
    }

    async fn revoke_key(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        let revoke = move |conn: &Connection| {
            let removed = conn.prepare_cached("DELETE FROM key WHERE id = ?1")?.execute([&id])?;
            changed(removed, || refusals::unknown_key(&id))
        };
        self.write(Change::Directory, revoke).await
    }

    async fn record_last_use(&self, used: Vec<(KeyId, i64)>) -> Result<(), StoreError> {
        let note = move |conn: &Connection| {
            let sql = "UPDATE key SET last_used = ?2 WHERE id = ?1 AND coalesce(last_used, ?2 - 1) < ?2";
            let mut statement = conn.prepare_cached(sql)?;
            for (id, at) in used {
                statement.execute(params![&*id, at])?;
            }
            Ok(((), None))
        };
        self.writer.run(Writes::Several, note).await
    }
}

/// The number of a guild in its rows, also of a departed one.
pub(super) fn guild_number(conn: &Connection, guild: &GuildId) -> Result<i64, Failure> {
    find_guild(conn, guild)?.ok_or_else(|| Failure::Store(refusals::unknown_guild(guild)))
}

fn find_guild(conn: &Connection, guild: &GuildId) -> rusqlite::Result<Option<i64>> {
    let mut find = conn.prepare_cached("SELECT no FROM guild WHERE id = ?1")?;
    find.query_row([guild.as_str()], |row| row.get(0)).optional()
}

/// Refuses a digest that a key has, as its secret or as its previous one.
fn refuse_taken(conn: &Connection, digest: &Digest) -> Result<(), Failure> {
    let sql = "SELECT id FROM key WHERE digest = ?1 UNION ALL SELECT id FROM key WHERE previous = ?1 LIMIT 1";
    let owner = conn.prepare_cached(sql)?.query_row([digest.0], |row| row.get::<_, String>(0)).optional()?;
    match owner {
        Some(id) => Err(Failure::Store(refusals::secret_taken(&id))),
        None => Ok(()),
    }
}

/// Refuses if a statement found nothing to change.
pub(super) fn changed(rows: usize, refusal: impl FnOnce() -> StoreError) -> Result<(), Failure> {
    refusals::changed(rows, refusal).map_err(Failure::Store)
}

/// Every guild, by id.
fn guilds(conn: &Connection) -> rusqlite::Result<Vec<GuildRecord>> {
    let mut statement = conn.prepare_cached("SELECT id, name, gone FROM guild ORDER BY id")?;
    let guild = |row: &Row<'_>| Ok(GuildRecord { id: parsed(row, 0)?, name: row.get(1)?, departed: row.get(2)? });
    statement.query_map([], guild)?.collect()
}

/// So many keys after the id `after`, by id: the one of an id, those of a guild, or every one.
fn keys(
    conn: &Connection,
    (id, guild): (Option<&str>, Option<&GuildId>),
    after: Option<&str>,
    limit: usize,
) -> rusqlite::Result<Vec<KeyRecord>> {
    let mut statement = conn.prepare_cached(
        "SELECT k.id, k.name, g.id, k.digest, k.tier, k.scope, k.created, k.expires, k.last_used, \
         k.previous, k.previous_until FROM key k JOIN guild g ON g.no = k.guild \
         WHERE k.id > ?1 AND (?2 IS NULL OR k.id = ?2) AND (?3 IS NULL OR g.id = ?3) ORDER BY k.id LIMIT ?4",
    )?;
    let key = |row: &Row<'_>| {
        let previous: (Option<[u8; 32]>, Option<i64>) = (row.get(9)?, row.get(10)?);
        Ok(KeyRecord {
            id: row.get(0)?,
            name: row.get(1)?,
            guild: parsed(row, 2)?,
            digest: Digest(row.get(3)?),
            tier: row.get(4)?,
            scope: parsed(row, 5)?,
            created: row.get(6)?,
            expires: row.get(7)?,
            last_used: row.get(8)?,
            previous: previous.0.zip(previous.1).map(|(digest, until)| Previous { digest: Digest(digest), until }),
        })
    };
    statement.query_map(params![after.unwrap_or(""), id, guild.map(GuildId::as_str), sql_limit(limit)], key)?.collect()
}

/// A column that holds a text of ours; anything else in it was written by another program.
pub(in crate::store) fn parsed<T: std::str::FromStr>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|_| FromSqlError::Other(format!("'{text}' does not belong here").into()).into())
}
