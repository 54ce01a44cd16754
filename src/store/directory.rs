//! Guilds and keys, of which the key table is made.

use super::conn::{Row, json_rows};
use super::*;
use crate::model::{NOTE_KINDS, one_line};

macro_rules! keys_where {
    ($condition:literal) => {
        concat!(
            "SELECT k.id, k.name, g.id, k.digest, k.tier, k.scope, k.created, k.expires, k.last_used, k.previous, \
             k.previous_until FROM key k JOIN guild g ON g.no = k.guild WHERE ",
            $condition
        )
    };
}

const KEYS: &str = keys_where!("k.id > $1 AND (CAST($2 AS text) IS NULL OR g.id = $2) ORDER BY k.id LIMIT $3");

const KEY: &str = keys_where!("k.id = $1");

/// The keys whose ids follow it as a query.
const KEYS_OF: &str = keys_where!("k.id IN");

/// The text of `$1` is a pattern. Only ids, so that what is sorted is small.
const FIND_KEYS: &str = "SELECT k.id FROM key k WHERE (CAST($1 AS text) IS NULL OR k.id LIKE $1 ESCAPE '\\' OR k.name LIKE $1 ESCAPE '\\' \
     OR k.guild IN (SELECT no FROM guild WHERE id LIKE $1 ESCAPE '\\' OR name LIKE $1 ESCAPE '\\')) \
     AND (CAST($2 AS text) IS NULL OR k.scope = $2) AND (CAST($3 AS bigint) IS NULL OR k.expires < $3) \
     AND (CAST($4 AS bigint) = 0 OR k.last_used IS NULL) AND k.id";

/// By its secret, or by the one before its last rotation.
const KEY_OF: &str = keys_where!(
    "k.id = (SELECT id FROM key WHERE digest = $1 UNION ALL SELECT id FROM key WHERE previous = $1 LIMIT 1)"
);

const CREATE_KEY: &str = "INSERT INTO key (id, digest, guild, name, tier, scope, created, expires, last_used, \
    previous, previous_until) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (id) DO NOTHING";

// On the right is the row before the update.
const ROTATE_KEY: &str = "UPDATE key SET digest = $2, previous_until = CAST($3 AS bigint), \
    previous = CASE WHEN CAST($3 AS bigint) IS NULL THEN NULL ELSE digest END WHERE id = $1";

const SET_KEY: &str = "UPDATE key SET name = coalesce($2, name), scope = coalesce($3, scope), \
    tier = CASE WHEN CAST($4 AS bigint) = 1 THEN $5 ELSE tier END, \
    expires = CASE WHEN CAST($6 AS bigint) = 1 THEN $7 ELSE expires END WHERE id = $1";

const GUILDS: &str = "SELECT id, name, gone FROM guild WHERE id > $1 ORDER BY id LIMIT $2";

const GUILD: &str = "SELECT id, name, gone FROM guild WHERE id = $1";

const NOTE_LAST_USE: &str = "UPDATE key SET last_used = CAST(a.value ->> 1 AS bigint) FROM json_each($1) a \
    WHERE key.id = a.value ->> 0 AND coalesce(key.last_used, -1) < CAST(a.value ->> 1 AS bigint)";

/// Keys whose last use one transaction records, so that other writes wait some 40 ms at most.
const USES_AT_ONCE: usize = 1000;

impl Store {
    /// Every guild by id, including departed ones. It does not wait for lists of admins.
    pub async fn guilds(&self) -> Result<Vec<GuildRecord>, StoreError> {
        self.readers.run(LIST, |conn| conn.rows(GUILDS, values!["", i64::MAX])?.into_iter().map(guild).collect()).await
    }

    /// So many guilds after the id `after`, by id.
    pub async fn guilds_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<GuildRecord>, StoreError> {
        let after = after.unwrap_or_default().to_owned();
        self.lists
            .run(LIST, move |conn| conn.rows(GUILDS, values![&*after, limit])?.into_iter().map(guild).collect())
            .await
    }

    /// The guild of this id.
    pub async fn guild(&self, id: &GuildId) -> Result<Option<GuildRecord>, StoreError> {
        let id = id.clone();
        self.lists.run(LIST, move |conn| conn.row(GUILD, values![&id])?.map(guild).transpose()).await
    }

    /// Every key, by id. It does not wait for lists of admins.
    pub async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.readers
            .run(LIST, |conn| conn.rows(KEYS, values!["", None::<&str>, i64::MAX])?.into_iter().map(key).collect())
            .await
    }

    /// The keys of a guild, or all, by id: so many after the id `after`.
    pub async fn keys_page(
        &self,
        guild: Option<&GuildId>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<KeyRecord>, StoreError> {
        let (guild, after) = (guild.cloned(), after.unwrap_or_default().to_owned());
        self.lists
            .run(LIST, move |conn| {
                conn.rows(KEYS, values![&*after, guild.as_ref(), limit])?.into_iter().map(key).collect()
            })
            .await
    }

    /// So many of the keys that are looked for, after the first `skip` of them.
    pub async fn find_keys(&self, search: KeySearch, skip: usize, limit: usize) -> Result<Vec<KeyRecord>, StoreError> {
        let KeySearch { text, scope, ends_before, is_unused, among, ids, sort } = search;
        let escaped = text.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_");
        let pattern = (!text.is_empty()).then(|| format!("%{escaped}%"));
        let order = match &*sort {
            "name" => "lower(k.name), k.id",
            "last-use" => "coalesce(k.last_used, -1) DESC, k.id",
            "end" => "k.expires IS NULL, k.expires, k.id",
            _ => "k.id",
        };
        let is_in = if among { "IN" } else { "NOT IN" };
        let found =
            format!("{FIND_KEYS} {is_in} (SELECT value ->> 0 FROM json_each($5)) ORDER BY {order} LIMIT $6 OFFSET $7");
        let sql = format!("{KEYS_OF} ({found}) ORDER BY {order}");
        let ids = json_rows(ids.into_iter().map(|id| [id]))?;
        self.lists
            .run(LIST, move |conn| {
                let scope = scope.map(Scope::name);
                let params = values![pattern.as_deref(), scope, ends_before, i64::from(is_unused), &*ids, limit, skip];
                conn.rows(&sql.replace("LIKE", conn.like()), params)?.into_iter().map(key).collect()
            })
            .await
    }

    /// The key of this id.
    pub async fn key(&self, id: &str) -> Result<Option<KeyRecord>, StoreError> {
        let id = id.to_owned();
        self.lists.run(LIST, move |conn| conn.row(KEY, values![&*id])?.map(key).transpose()).await
    }

    /// The key with this secret, also as the one before its last rotation.
    pub async fn key_of(&self, secret: Digest) -> Result<Option<KeyRecord>, StoreError> {
        self.lists.run(LIST, move |conn| conn.row(KEY_OF, values![&secret])?.map(key).transpose()).await
    }

    /// Adds a guild. Refused: one that exists.
    pub async fn add_guild(&self, id: &GuildId, name: &str) -> Result<GuildRecord, StoreError> {
        let sql = "INSERT INTO guild (id, name) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING RETURNING id, name, gone";
        let (id, name) = (id.clone(), one_line(name).into_owned());
        self.write(Some(Change::Directory), move |conn| {
            let added = conn.row(sql, values![&id, &*name])?;
            added.map_or_else(|| Err(exists("guild", id.as_str())), guild)
        })
        .await
    }

    /// Changes a guild's name, and whether the bot has left it, where they are given. Refused: one that does not exist.
    pub async fn set_guild(
        &self,
        id: &GuildId,
        name: Option<&str>,
        departed: Option<bool>,
    ) -> Result<GuildRecord, StoreError> {
        let (id, name) = (id.clone(), name.map(|name| one_line(name).into_owned()));
        self.write(Some(Change::Directory), move |conn| {
            let sql = "UPDATE guild SET name = coalesce($2, name), gone = coalesce($3, gone) WHERE id = $1 \
                RETURNING id, name, gone";
            let changed = conn.row(sql, values![&id, name.as_deref(), departed])?;
            changed.map_or_else(|| Err(refusals::unknown_guild(&id)), guild)
        })
        .await
    }

    /// Removes a guild with its members, notes and keys. If it is added again, it has none of them, and ids of notes begin
    /// at 1. Followers read [`Change::Everything`], since answers that were cached before must not be given for a new guild
    /// of the same id. Refused: one that does not exist.
    pub async fn remove_guild(&self, guild: &GuildId) -> Result<RemovedGuild, StoreError> {
        let guild = guild.clone();
        self.write_long(Change::Everything, move |conn| {
            // Locked, so that no other node adds a member meanwhile.
            let sql = format!("SELECT no FROM guild WHERE id = $1{}", conn.for_update());
            let no = conn.row(&sql, values![&guild])?.ok_or_else(|| refusals::unknown_guild(&guild))?.take::<i64>(0)?;
            let mut notes = [0; NOTE_KINDS.len()];
            for (count, kind) in notes.iter_mut().zip(NOTE_KINDS) {
                *count = conn.execute("DELETE FROM note WHERE guild = $1 AND kind = $2", values![no, kind.code])?;
            }
            let members = conn.execute("DELETE FROM member WHERE guild = $1", values![no])?;
            let keys = conn.execute("DELETE FROM key WHERE guild = $1", values![no])?;
            conn.execute("DELETE FROM guild WHERE no = $1", values![no])?;
            Ok(RemovedGuild { members, notes, keys })
        })
        .await
    }

    /// Adds a key. Refused: an id or a digest that is taken, a guild that does not exist.
    pub async fn create_key(&self, key: KeyRecord) -> Result<(), StoreError> {
        self.write(Some(Change::Directory), move |conn| {
            let guild = guild_number(conn, &key.guild)?;
            let previous = key.previous.as_ref();
            refuse_taken(conn, &key.digest)?;
            previous.map_or(Ok(()), |previous| refuse_taken(conn, &previous.digest))?;
            let values = values![
                &*key.id,
                &key.digest,
                guild,
                one_line(&key.name),
                key.tier.as_deref(),
                key.scope.name(),
                key.created,
                key.expires,
                key.last_used,
                previous.map(|previous| &previous.digest),
                previous.map(|previous| previous.until),
            ];
            conn.change(CREATE_KEY, values, || exists("key", &key.id))
        })
        .await
    }

    /// Gives a key another secret. The present one works until the Unix second `previous_until`; it ends at once if that is
    /// `None` or not after `now`. The secret before an earlier rotation ends at once in any case: a key has two at most.
    /// Refused: a key that does not exist or has expired, a digest that is taken.
    pub async fn rotate_key(
        &self,
        id: &str,
        digest: Digest,
        previous_until: Option<i64>,
        now: i64,
    ) -> Result<KeyRecord, StoreError> {
        let (id, until) = (id.to_owned(), previous_until.filter(|until| *until > now));
        self.write(Some(Change::Directory), move |conn| {
            let found = conn.row("SELECT expires FROM key WHERE id = $1", values![&*id])?;
            let expires: Option<i64> = found.ok_or_else(|| refusals::unknown_key(&id))?.take(0)?;
            if expires.is_some_and(|expires| expires <= now) {
                return Err(StoreError::Refused(format!("key {id} has expired; see `guildgate key set {id}`")));
            }
            refuse_taken(conn, &digest)?;
            conn.execute(ROTATE_KEY, values![&*id, &digest, until])?;
            known_key(conn, &id)
        })
        .await
    }

    /// Changes the given fields of a key. Refused: one that does not exist.
    pub async fn set_key(&self, id: &str, change: KeyChange) -> Result<KeyRecord, StoreError> {
        let id = id.to_owned();
        self.write(Some(Change::Directory), move |conn| {
            let KeyChange { name, tier, scope, expires } = &change;
            let values = values![
                &*id,
                name.as_deref().map(one_line),
                scope.map(Scope::name),
                tier.is_some(),
                tier.as_ref().and_then(|tier| tier.as_deref()),
                expires.is_some(),
                expires.flatten(),
            ];
            conn.execute(SET_KEY, values)?;
            known_key(conn, &id)
        })
        .await
    }

    /// Removes a key with both its secrets. Refused: one that does not exist.
    pub async fn revoke_key(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.write(Some(Change::Directory), move |conn| {
            conn.change("DELETE FROM key WHERE id = $1", values![&*id], || refusals::unknown_key(&id))
        })
        .await
    }

    /// Records when keys were last used (Unix seconds). No answer depends on it, so that followers read no change; a key
    /// that was removed meanwhile is skipped.
    pub async fn record_last_use(&self, mut used: Vec<(KeyId, i64)>) -> Result<(), StoreError> {
        used.sort_unstable(); // so that two nodes that do this at once do not deadlock
        for some in used.chunks(USES_AT_ONCE) {
            let some = json_rows(some.iter().map(|(id, at)| (&**id, at)))?;
            self.write(None, move |conn| conn.execute(NOTE_LAST_USE, values![&*some]).map(drop)).await?;
        }
        Ok(())
    }
}

/// The number of a guild in its rows, also of a departed one.
pub(super) fn guild_number(conn: &mut dyn Conn, guild: &GuildId) -> Result<i64, StoreError> {
    let found = conn.row("SELECT no FROM guild WHERE id = $1", values![guild])?;
    found.ok_or_else(|| refusals::unknown_guild(guild))?.take(0)
}

/// Refuses a digest that a key has, as its secret or as its previous one.
fn refuse_taken(conn: &mut dyn Conn, digest: &Digest) -> Result<(), StoreError> {
    let owner = conn.row(KEY_OF, values![digest])?.map(|mut row| row.take::<String>(0)).transpose()?;
    owner.map_or(Ok(()), |id| Err(StoreError::Refused(format!("key {id} has this secret already"))))
}

fn exists(what: &str, id: &str) -> StoreError {
    StoreError::Refused(format!("{what} {id} is in the store already"))
}

fn known_key(conn: &mut dyn Conn, id: &str) -> Result<KeyRecord, StoreError> {
    conn.row(KEY, values![id])?.map_or_else(|| Err(refusals::unknown_key(id)), key)
}

fn guild(mut row: Row) -> Result<GuildRecord, StoreError> {
    Ok(GuildRecord { id: row.take(0)?, name: row.take(1)?, departed: row.take(2)? })
}

fn key(mut row: Row) -> Result<KeyRecord, StoreError> {
    let previous: (Option<Digest>, Option<i64>) = (row.take(9)?, row.take(10)?);
    Ok(KeyRecord {
        id: row.take(0)?,
        name: row.take(1)?,
        guild: row.take(2)?,
        digest: row.take(3)?,
        tier: row.take(4)?,
        scope: row.take(5)?,
        created: row.take(6)?,
        expires: row.take(7)?,
        last_used: row.take(8)?,
        previous: previous.0.zip(previous.1).map(|(digest, until)| Previous { digest, until }),
    })
}
