//! Guilds and keys. Their lists, from which a node makes its key table, have a dedicated connection, so that
//! readers cannot keep a node from refreshing its keys.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use super::error::CallError;
use super::pool::{Params, rows};
use super::transaction::Transaction;
use super::{LIST, PostgresStore, column, parsed};
use crate::model::{Digest, GuildId, KeyId, Scope, one_line};
use crate::store::refusals;
use crate::store::{
    Change, Directory, GuildRecord, KeyChange, KeyRecord, Previous, RemovedGuild, StoreError, sql_limit,
};

const CREATE_KEY: &str = "INSERT INTO key (id, digest, guild, name, tier, scope, created, expires, last_used, \
    previous, previous_until) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
    ON CONFLICT (id) DO NOTHING RETURNING 1";

// On the right is the row before the update.
const ROTATE_KEY: &str = "UPDATE key SET digest = $2, previous_until = $3, \
    previous = CASE WHEN $3::bigint IS NULL THEN NULL ELSE digest END WHERE id = $1 RETURNING 1";

const SET_KEY: &str = "UPDATE key SET name = coalesce($2, name), scope = coalesce($3, scope), \
    tier = CASE WHEN $4 THEN $5 ELSE tier END, expires = CASE WHEN $6 THEN $7 ELSE expires END \
    WHERE id = $1 RETURNING 1";

const KEYS: &str = "SELECT k.id, k.name, g.id, k.digest, k.tier, k.scope, k.created, k.expires, k.last_used, \
    k.previous, k.previous_until FROM key k JOIN guild g ON g.no = k.guild ORDER BY k.id";

const KEYS_PAGE: &str = "SELECT k.id, k.name, g.id, k.digest, k.tier, k.scope, k.created, k.expires, k.last_used, \
    k.previous, k.previous_until FROM key k JOIN guild g ON g.no = k.guild \
    WHERE k.id > $1 AND ($2::text IS NULL OR k.id = $2) AND ($3::text IS NULL OR g.id = $3) ORDER BY k.id LIMIT $4";

/// Locks the keys in the order of their ids, so that two nodes that do this at once do not deadlock.
const NOTE_LAST_USE: &str = "WITH used AS (SELECT k.id, u.at FROM key k \
        JOIN unnest($1::text[], $2::bigint[]) AS u (id, at) ON u.id = k.id ORDER BY k.id FOR UPDATE OF k) \
    UPDATE key k SET last_used = used.at FROM used \
    WHERE k.id = used.id AND coalesce(k.last_used, used.at - 1) < used.at";

/// How long a guild's removal may take: a million members take some seconds.
const REMOVAL: Duration = Duration::from_mins(5);

/// Remove what belongs to a guild, and count it: warns, reviews, members, keys.
const EMPTY_GUILD: [&str; 4] = [
    "WITH removed AS (DELETE FROM warn WHERE guild = $1 RETURNING 1) SELECT count(*) FROM removed",
    "WITH removed AS (DELETE FROM review WHERE guild = $1 RETURNING 1) SELECT count(*) FROM removed",
    "WITH removed AS (DELETE FROM member WHERE guild = $1 RETURNING 1) SELECT count(*) FROM removed",
    "WITH removed AS (DELETE FROM key WHERE guild = $1 RETURNING 1) SELECT count(*) FROM removed",
];

impl Directory for PostgresStore {
    async fn guilds(&self) -> Result<Vec<GuildRecord>, StoreError> {
        let rows = self.list_rows("SELECT id, name, gone FROM guild ORDER BY id").await?;
        let guild =
            |row: &Row| Ok(GuildRecord { id: parsed(row, 0)?, name: column(row, 1)?, departed: column(row, 2)? });
        rows.iter().map(guild).collect()
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.list_rows(KEYS).await?.iter().map(key).collect()
    }

    async fn keys_page(
        &self,
        guild: Option<&GuildId>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<KeyRecord>, StoreError> {
        let guild = guild.map(GuildId::as_str);
        let params: Params<'_> = &[&after.unwrap_or(""), &None::<&str>, &guild, &sql_limit(limit)];
        self.pool.list(KEYS_PAGE, params).await?.iter().map(key).collect()
    }

    async fn key(&self, id: &str) -> Result<Option<KeyRecord>, StoreError> {
        let found = self.pool.list(KEYS_PAGE, &[&"", &id, &None::<&str>, &1_i64]).await?;
        found.first().map(key).transpose()
    }

    async fn add_guild(&self, guild: &GuildId, name: &str) -> Result<(), StoreError> {
        let sql = "INSERT INTO guild (id, name) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING RETURNING 1";
        self.change_one(sql, &[&guild.as_str(), &one_line(name)], || refusals::guild_exists(guild)).await
    }

    async fn rename_guild(&self, guild: &GuildId, name: &str) -> Result<(), StoreError> {
        let sql = "UPDATE guild SET name = $2 WHERE id = $1 RETURNING 1";
        self.change_one(sql, &[&guild.as_str(), &one_line(name)], || refusals::absent_guild(guild)).await
    }

    async fn remove_guild(&self, guild: &GuildId) -> Result<RemovedGuild, StoreError> {
        let mut tx = self.begin().await?;
        let removed = remove_guild(&mut tx, guild).await;
        tx.end(removed, Change::Everything).await
    }

    async fn set_guild_departed(&self, guild: &GuildId, departed: bool) -> Result<(), StoreError> {
        let sql = "UPDATE guild SET gone = $2 WHERE id = $1 RETURNING 1";
        self.change_one(sql, &[&guild.as_str(), &departed], || refusals::absent_guild(guild)).await
    }

    async fn create_key(&self, key: KeyRecord) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let made = create_key(&mut tx, &key).await;
        tx.end(made, Change::Directory).await
    }

    async fn rotate_key(
        &self,
        id: &str,
        digest: Digest,
        previous_until: Option<i64>,
        now: i64,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let rotated = rotate_key(&mut tx, id, digest, previous_until.filter(|until| *until > now), now).await;
        tx.end(rotated, Change::Directory).await
    }

    async fn set_key(&self, id: &str, change: KeyChange) -> Result<(), StoreError> {
        let KeyChange { name, tier, scope, expires } = change;
        let params: Params<'_> = &[
            &id,
            &name.as_deref().map(one_line),
            &scope.map(Scope::name),
            &tier.is_some(),
            &tier.flatten(),
            &expires.is_some(),
            &expires.flatten(),
        ];
        self.change_one(SET_KEY, params, || refusals::unknown_key(id)).await
    }

    async fn revoke_key(&self, id: &str) -> Result<(), StoreError> {
        self.change_one("DELETE FROM key WHERE id = $1 RETURNING 1", &[&id], || refusals::unknown_key(id)).await
    }

    async fn record_last_use(&self, used: Vec<(KeyId, i64)>) -> Result<(), StoreError> {
        let (ids, at): (Vec<&str>, Vec<i64>) = used.iter().map(|(id, at)| (&**id, *at)).unzip();
        self.pool.write_once(NOTE_LAST_USE, &[&ids, &at]).await.map(drop)
    }
}

impl PostgresStore {
    /// Changes one row by `sql`, which has a RETURNING clause; refuses where there is no row to change.
    async fn change_one(
        &self,
        sql: &str,
        params: Params<'_>,
        refusal: impl FnOnce() -> StoreError,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let changed = tx.count(sql, params).await.and_then(|rows| refusals::changed(rows, refusal));
        tx.end(changed, Change::Directory).await
    }

    /// The rows of one statement. One list at a time: a second one would wait for the first on the connection.
    async fn list_rows(&self, sql: &str) -> Result<Vec<Row>, StoreError> {
        let until = Instant::now() + LIST;
        let mut listed = self.try_list(sql, until).await;
        // The connection is dead after the server restarted or another took its place: once more.
        if listed.as_ref().is_err_and(CallError::is_disconnect) {
            listed = self.try_list(sql, until).await;
        }
        listed.map_err(|error| error.into_store_error(self.location()))
    }

    async fn try_list(&self, sql: &str, until: Instant) -> Result<Vec<Row>, CallError> {
        let mut lists = timeout_at(until, self.lists.lock()).await.map_err(|_| CallError::Timeout)?;
        let session = lists.take(until).await?;
        let listed = rows(&session, until, sql, &[]).await;
        if !matches!(&listed, Err(error) if error.is_disconnect() || matches!(error, CallError::Timeout)) {
            lists.put_back(session);
        }
        listed
    }
}

async fn remove_guild(tx: &mut Transaction<'_>, guild: &GuildId) -> Result<RemovedGuild, StoreError> {
    let no = find_guild(tx, guild).await?.ok_or_else(|| refusals::absent_guild(guild))?;
    tx.extend_deadline(REMOVAL).await?;
    let mut counts = [0; 4];
    for (count, sql) in counts.iter_mut().zip(EMPTY_GUILD) {
        let found = tx.rows(sql, &[&no]).await?;
        let rows: i64 = found.first().map_or(Ok(0), |row| column(row, 0))?;
        *count = rows.unsigned_abs();
    }
    tx.count("DELETE FROM guild WHERE no = $1 RETURNING 1", &[&no]).await?;
    let [warns, reviews, members, keys] = counts;
    Ok(RemovedGuild { members, warns, reviews, keys })
}

async fn create_key(tx: &mut Transaction<'_>, key: &KeyRecord) -> Result<(), StoreError> {
    let guild = guild_number(tx, &key.guild).await?;
    for digest in [Some(key.digest), key.previous.map(|previous| previous.digest)].iter().flatten() {
        refuse_taken(tx, digest).await?;
    }
    let made = tx
        .count(
            CREATE_KEY,
            &[
                &&*key.id,
                &&key.digest.0[..],
                &guild,
                &one_line(&key.name),
                &key.tier,
                &key.scope.name(),
                &key.created,
                &key.expires,
                &key.last_used,
                &key.previous.as_ref().map(|previous| &previous.digest.0[..]),
                &key.previous.map(|previous| previous.until),
            ],
        )
        .await?;
    refusals::changed(made, || refusals::key_exists(&key.id))
}

async fn rotate_key(
    tx: &mut Transaction<'_>,
    id: &str,
    digest: Digest,
    until: Option<i64>,
    now: i64,
) -> Result<(), StoreError> {
    let found = tx.rows("SELECT expires FROM key WHERE id = $1", &[&id]).await?;
    let row = found.first().ok_or_else(|| refusals::unknown_key(id))?;
    if column::<Option<i64>>(row, 0)?.is_some_and(|expires| expires <= now) {
        return Err(refusals::expired_key(id));
    }
    refuse_taken(tx, &digest).await?;
    tx.count(ROTATE_KEY, &[&id, &&digest.0[..], &until]).await.map(drop)
}

/// The number of a guild in the tables, also of a departed one.
pub(super) async fn guild_number(tx: &mut Transaction<'_>, guild: &GuildId) -> Result<i64, StoreError> {
    find_guild(tx, guild).await?.ok_or_else(|| refusals::unknown_guild(guild))
}

async fn find_guild(tx: &mut Transaction<'_>, guild: &GuildId) -> Result<Option<i64>, StoreError> {
    let found = tx.rows("SELECT no FROM guild WHERE id = $1", &[&guild.as_str()]).await?;
    found.first().map(|row| column(row, 0)).transpose()
}

/// Refuses a digest that a key has already, of its secret or of the previous one.
async fn refuse_taken(tx: &mut Transaction<'_>, digest: &Digest) -> Result<(), StoreError> {
    let sql = "SELECT id FROM key WHERE digest = $1 UNION ALL SELECT id FROM key WHERE previous = $1 LIMIT 1";
    let found = tx.rows(sql, &[&&digest.0[..]]).await?;
    found.first().map_or(Ok(()), |row| Err(refusals::secret_taken(column(row, 0)?)))
}

fn key(row: &Row) -> Result<KeyRecord, StoreError> {
    let previous = digest(row, 9)?.zip(column(row, 10)?);
    Ok(KeyRecord {
        id: column::<&str>(row, 0)?.into(),
        name: column(row, 1)?,
        guild: parsed(row, 2)?,
        digest: digest(row, 3)?.ok_or_else(|| StoreError::Failed("a key in the store has no digest".to_owned()))?,
        tier: column(row, 4)?,
        scope: parsed(row, 5)?,
        created: column(row, 6)?,
        expires: column(row, 7)?,
        last_used: column(row, 8)?,
        previous: previous.map(|(digest, until)| Previous { digest, until }),
    })
}

/// A digest; the table keeps it at 32 bytes.
fn digest(row: &Row, at: usize) -> Result<Option<Digest>, StoreError> {
    Ok(column::<Option<&[u8]>>(row, at)?.and_then(|bytes| bytes.try_into().ok()).map(Digest))
}
