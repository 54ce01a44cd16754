//! The length of the answers about a member, in SQL for both kinds of store. A record that would make an answer longer
//! than [`MAX_ORIGIN_ANSWER`] is refused. Expired warns are in no answer, and do not count.

use super::refusals::refused;
use super::{GuildId, MemberId, StoreError};
use crate::wire::MAX_ORIGIN_ANSWER;

/// Bytes of a warn in the answer, as `wire::warns` writes it, with its separator; `$of` is its table.
macro_rules! warn_bytes {
    ($of:literal) => {
        concat!(
            "(27 + octet_length(CAST(",
            $of,
            "member AS text)) + octet_length(CAST(",
            $of,
            "id AS text)) + 2 * octet_length(CAST(",
            $of,
            "expires AS text)) + octet_length(",
            $of,
            "author) + octet_length(",
            $of,
            "reason))"
        )
    };
}

/// As `warn_bytes`, of a review, as `wire::reviews` writes it.
macro_rules! review_bytes {
    ($of:literal) => {
        concat!(
            "(26 + octet_length(CAST(",
            $of,
            "member AS text)) + octet_length(CAST(",
            $of,
            "id AS text)) + octet_length(",
            $of,
            "author) + octet_length(",
            $of,
            "text))"
        )
    };
}

/// Two statements that select the applied lines of an import that make an answer too long, and return line, guild and
/// member: a member's last ones, as many as have the bytes that are too many; and, for a member whose answer is too long
/// even without those, because they had replaced longer records, all of its lines. So an import is repeated a few times
/// at most, unless its lines move records from one member with a full answer to the next. `$main` and `$stage` are put before the names of tables; `$alive` is put after a row's name, and is true if
/// the row is in the answer.
macro_rules! too_long {
    ($table:literal, $bytes:ident, $main:literal, $stage:literal, $alive:literal) => {
        [
            too_long!($table, $bytes, $main, $stage, $alive, "later < excess"),
            too_long!($table, $bytes, $main, $stage, $alive, "TRUE"),
        ]
    };
    ($table:literal, $bytes:ident, $main:literal, $stage:literal, $alive:literal, $which:literal) => {
        concat!(
            "WITH touched AS MATERIALIZED (SELECT DISTINCT s.no AS staged, s.id, g.no, t.member FROM ",
            $stage,
            "guild s JOIN ",
            $main,
            "guild g ON g.id = s.id JOIN ",
            $stage,
            $table,
            " t ON t.guild = s.no), sums AS MATERIALIZED (SELECT staged, id, member, (SELECT sum(",
            $bytes!("w."),
            ") FROM ",
            $main,
            $table,
            " w WHERE w.guild = touched.no AND w.member = touched.member AND w.",
            $alive,
            ") - 1048576 AS excess FROM touched), long AS MATERIALIZED (SELECT * FROM sums WHERE excess > 0) SELECT line, id, member FROM (SELECT t.line, l.id, t.member, l.excess, sum(",
            $bytes!("t."),
            ") OVER (PARTITION BY t.guild, t.member ORDER BY t.line DESC) - ",
            $bytes!("t."),
            " AS later FROM long l JOIN ",
            $stage,
            $table,
            " t ON t.guild = l.staged AND t.member = l.member WHERE t.",
            $alive,
            ") AS lines WHERE ",
            $which,
            " ORDER BY line"
        )
    };
}

pub(super) use {review_bytes, too_long, warn_bytes};

/// Refuses a record after which the answer has `bytes` bytes and is too long. `what` is its kind: warn or review.
pub(super) fn must_fit(bytes: i64, guild: &GuildId, member: MemberId, what: &str) -> Result<(), StoreError> {
    if usize::try_from(bytes).is_ok_and(|bytes| bytes <= MAX_ORIGIN_ANSWER) {
        return Ok(());
    }
    Err(refused(format!(
        "{}; `guildgate {what} list --guild {guild} --member {member}` shows them, and `guildgate {what} remove` takes one away",
        answer_too_long(guild.as_str(), &member.to_string(), &format!("{what}s"))
    )))
}

/// Why a record is refused.
pub(super) fn answer_too_long(guild: &str, member: &str, what: &str) -> String {
    format!("with it the answer of {what} of member {member} in guild {guild} would be longer than 1 MiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_in_the_statements_is_that_of_every_origin() {
        assert_eq!(MAX_ORIGIN_ANSWER, 1_048_576);
        let bound = must_fit(1_048_576, &"81".parse().unwrap(), "7".parse().unwrap(), "warn");
        let over = must_fit(1_048_577, &"81".parse().unwrap(), "7".parse().unwrap(), "review");
        assert!(bound.is_ok() && over.unwrap_err().to_string().contains("`guildgate review list --guild 81"));
    }
}
