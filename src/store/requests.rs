//! What the operations of callers read and write. A guild that is not in the store, or that the bot has left, is
//! [`StoreError::GuildDeparted`] for each of them. Reads return committed data; an acknowledged write survives kill -9 and
//! power loss (guarantee 1).

use std::collections::BTreeMap;

use super::conn::json_rows;
use super::writer::{Names, Work};
use super::*;

const POINTS: &str = "SELECT m.points FROM guild g LEFT JOIN member m ON m.guild = g.no AND m.member = $2 \
    WHERE g.id = $1 AND g.gone = 0";

// One statement, so that it is one snapshot: a row without an id is a guild whose member has none.
const NOTES: &str = "SELECT n.id, n.author, n.text, n.number FROM guild g \
    LEFT JOIN note n ON n.guild = g.no AND n.member = $2 AND n.kind = $3 AND n.number > $4 \
    WHERE g.id = $1 AND g.gone = 0 ORDER BY n.id";

// In SQLite, WHERE tells ON CONFLICT from the ON of the join.
const SET_POINTS: &str = "INSERT INTO member (guild, member, name, points) \
    SELECT g.no, CAST(a.value ->> 1 AS bigint), CAST(a.value ->> 1 AS text), CAST(a.value ->> 2 AS bigint) \
    FROM json_each($1) a JOIN guild g ON g.id = a.value ->> 0 WHERE g.gone = 0 \
    ON CONFLICT (guild, member) DO UPDATE SET points = excluded.points \
    RETURNING (SELECT id FROM guild WHERE no = member.guild), member, name";

impl Store {
    /// A member's points; 0 where the guild does not know the member.
    pub async fn points(&self, guild: &GuildId, member: MemberId) -> Result<i64, StoreError> {
        let guild = guild.clone();
        self.readers
            .run(READ, move |conn| match conn.row(POINTS, values![&guild, member])? {
                Some(mut row) => Ok(row.take::<Option<i64>>(0)?.unwrap_or(0)),
                None => Err(StoreError::GuildDeparted(guild.clone())),
            })
            .await
    }

    /// A member's notes of a kind, by id: those that are in the answer at `now` (Unix seconds).
    pub async fn notes_of(
        &self,
        kind: &'static NoteKind,
        guild: &GuildId,
        member: MemberId,
        now: i64,
    ) -> Result<Vec<Note>, StoreError> {
        let (guild, after) = (guild.clone(), if kind.expires() { now } else { i64::MIN });
        self.readers
            .run(READ, move |conn| {
                let rows = conn.rows(NOTES, values![&guild, member, kind.code, after])?;
                if rows.is_empty() {
                    return Err(StoreError::GuildDeparted(guild.clone()));
                }
                let note = |mut row: conn::Row| {
                    let Some(id) = row.take(0)? else { return Ok(None) };
                    Ok(Some(Note { id, author: row.take(1)?, text: row.take(2)?, number: row.take(3)? }))
                };
                rows.into_iter().map(note).filter_map(Result::transpose).collect()
            })
            .await
    }

    /// Sets a member's points, and makes the member (named by its id) if there is none; returns its name. Durable when it
    /// answers. It begins within a second, or not at all ([`StoreError::Busy`]).
    pub async fn set_points(&self, guild: &GuildId, member: MemberId, amount: i64) -> Result<String, StoreError> {
        self.writer.queue(Work::Points { guild: guild.clone(), member, amount }).await
    }
}

/// Sets the points of several members; returns the names of those whose guild is there.
pub(super) fn set_points(
    conn: &mut dyn Conn,
    amounts: &BTreeMap<(GuildId, MemberId), i64>,
) -> Result<Names, StoreError> {
    if amounts.is_empty() {
        return Ok(Names::new());
    }
    let rows = json_rows(amounts.iter().map(|((guild, member), amount)| (guild.as_str(), member.as_i64(), amount)))?;
    let set = conn.rows(SET_POINTS, values![rows])?;
    set.into_iter().map(|mut row| Ok(((row.take(0)?, row.take(1)?), row.take(2)?))).collect()
}
