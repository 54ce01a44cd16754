//! Guilds and keys: what the book of keys is made of.

use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{Fault, SqliteStore};
use crate::model::{Digest, GuildId, one_line};
use crate::store::{Change, GuildRecord, KeyRecord, StoreError};

impl SqliteStore {
    /// Adds a guild; one that exists is refused.
    pub async fn add_guild(&self, guild: &GuildId, name: &str) -> Result<(), StoreError> {
        let (guild, name) = (guild.clone(), one_line(name).into_owned());
        let add = move |conn: &Connection| {
            let sql = "INSERT INTO guild (id, name) VALUES (?1, ?2) ON CONFLICT (id) DO NOTHING";
            let refused = || format!("guild {guild} is in the store already; `guildgate guild list` shows it");
            changed(conn.prepare_cached(sql)?.execute(params![guild.as_str(), name])?, refused)
        };
        self.write(Change::Directory, add).await
    }

    /// Notes that the bot left a guild, or came back to it; a guild not in the store is refused.
    pub async fn set_guild_left(&self, guild: &GuildId, left: bool) -> Result<(), StoreError> {
        let guild = guild.clone();
        let set = move |conn: &Connection| {
            let sql = "UPDATE guild SET gone = ?2 WHERE id = ?1";
            changed(conn.prepare_cached(sql)?.execute(params![guild.as_str(), left])?, || unknown_guild(&guild))
        };
        self.write(Change::Directory, set).await
    }

    /// Whether the guild is in the store, the bot being there or not.
    pub(in crate::store) fn has_guild(&self, guild: &GuildId) -> Result<bool, StoreError> {
        self.readers.with(|conn| conn.prepare_cached("SELECT 1 FROM guild WHERE id = ?1")?.exists([guild.as_str()]))
    }

    /// Keeps a key. Refused: an id or a digest that is taken, a guild not in the store.
    pub async fn create_key(&self, key: KeyRecord) -> Result<(), StoreError> {
        let create = move |conn: &Connection| {
            let guild = guild_number(conn, &key.guild)?;
            let sql = "INSERT INTO key (id, digest, guild, name, tier, scope, created, expires, last_used) \
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING";
            let made = conn.prepare_cached(sql)?.execute(params![
                &*key.id,
                key.digest.0,
                guild,
                one_line(&key.name),
                key.tier,
                key.scope.name(),
                key.created,
                key.expires,
                key.last_used
            ])?;
            changed(made, || format!("key {} or its secret is in the store already", key.id))
        };
        self.write(Change::Directory, create).await
    }

    /// Removes a key; one that is not there is refused.
    pub async fn revoke_key(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        let revoke = move |conn: &Connection| {
            let removed = conn.prepare_cached("DELETE FROM key WHERE id = ?1")?.execute([&id])?;
            changed(removed, || format!("there is no key {id}; `guildgate key list` shows those there are"))
        };
        self.write(Change::Directory, revoke).await
    }
}

/// The number a guild's rows carry, whether the bot left it or not.
pub(super) fn guild_number(conn: &Connection, guild: &GuildId) -> Result<i64, Fault> {
    let found = conn
        .prepare_cached("SELECT no FROM guild WHERE id = ?1")?
        .query_row([guild.as_str()], |row| row.get(0))
        .optional()?;
    found.ok_or_else(|| Fault::Own(StoreError::Refused(unknown_guild(guild))))
}

pub(super) fn unknown_guild(guild: &GuildId) -> String {
    format!("guild {guild} is not in the store; `guildgate guild add {guild} --name NAME` adds it")
}

/// Refuses where a statement found nothing to change.
pub(super) fn changed(rows: usize, refusal: impl FnOnce() -> String) -> Result<(), Fault> {
    if rows > 0 { Ok(()) } else { Err(Fault::Own(StoreError::Refused(refusal()))) }
}

/// Every guild, by id.
pub(super) fn guilds(conn: &Connection) -> rusqlite::Result<Vec<GuildRecord>> {
    let mut statement = conn.prepare_cached("SELECT id, name, gone FROM guild ORDER BY id")?;
    let guild = |row: &Row<'_>| Ok(GuildRecord { id: parsed(row, 0)?, name: row.get(1)?, left: row.get(2)? });
    statement.query_map([], guild)?.collect()
}

/// Every key, by id.
pub(super) fn keys(conn: &Connection) -> rusqlite::Result<Vec<KeyRecord>> {
    let mut statement = conn.prepare_cached(
        "SELECT k.id, k.name, g.id, k.digest, k.tier, k.scope, k.created, k.expires, k.last_used \
         FROM key k JOIN guild g ON g.no = k.guild ORDER BY k.id",
    )?;
    let key = |row: &Row<'_>| {
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
        })
    };
    statement.query_map([], key)?.collect()
}

/// A column that holds one of our own texts; anything else in it was put there by another hand.
fn parsed<T: std::str::FromStr>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|_| FromSqlError::Other(format!("'{text}' does not belong here").into()).into())
}
