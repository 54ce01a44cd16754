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

/// The statement that selects a row if an import, once applied, has a line about a member whose answer is too long. `$main`
/// and `$stage` are put before the names of tables; `$alive` is put after a row's name, and is true if the row is in the
/// answer.
macro_rules! too_long {
    ($table:literal, $bytes:ident, $main:literal, $stage:literal, $alive:literal) => {
        concat!(
            "WITH touched AS MATERIALIZED (SELECT DISTINCT g.no, t.member FROM ",
            $stage,
            "guild s JOIN ",
            $main,
            "guild g ON g.id = s.id JOIN ",
            $stage,
            $table,
            " t ON t.guild = s.no WHERE t.",
            $alive,
            ") SELECT 1 FROM touched WHERE (SELECT sum(",
            $bytes!("w."),
            ") FROM ",
            $main,
            $table,
            " w WHERE w.guild = touched.no AND w.member = touched.member AND w.",
            $alive,
            ") > 1048576 LIMIT 1"
        )
    };
}

/// The statement that selects, before an import is applied, all versions of the records that it may have to leave out, as
/// `transfer::fitting` needs them: guild, record, line, member, bytes in the answer, and bytes of the member's records about
/// which there is no line, or NULL. Records are left out only of members whose answer would be too long with all lines
/// about them and all that the store has; only such records are selected. For the parameters see `too_long`.
macro_rules! versions {
    ($table:literal, $bytes:ident, $main:literal, $stage:literal, $alive:literal) => {
        concat!(
            // Earlier lines and those that replaced them.
            "WITH lines AS MATERIALIZED (SELECT t.guild, t.id, t.member, t.line, CASE WHEN t.",
            $alive,
            " THEN ",
            $bytes!("t."),
            " ELSE 0 END AS bytes FROM (SELECT * FROM ",
            $stage,
            $table,
            " UNION ALL SELECT * FROM ",
            $stage,
            "earlier_",
            $table,
            // What the store has of the same records.
            ") t), stored AS MATERIALIZED (SELECT t.guild, t.id, w.member, CASE WHEN w.",
            $alive,
            " THEN ",
            $bytes!("w."),
            " ELSE 0 END AS bytes FROM ",
            $stage,
            "guild s JOIN ",
            $main,
            "guild g ON g.id = s.id JOIN ",
            $stage,
            $table,
            " t ON t.guild = s.no JOIN ",
            $main,
            $table,
            // The members, and what the store has of them. Lines of a guild that does not exist are not applied.
            " w ON w.guild = g.no AND w.id = t.id), touched AS MATERIALIZED \
            (SELECT s.no AS guild, g.no AS stored, l.member, sum(l.bytes) AS bytes FROM ",
            $stage,
            "guild s JOIN lines l ON l.guild = s.no LEFT JOIN ",
            $main,
            "guild g ON g.id = s.id WHERE s.name IS NOT NULL OR g.no IS NOT NULL GROUP BY s.no, g.no, l.member), \
            sums AS MATERIALIZED (SELECT guild, member, bytes, COALESCE((SELECT sum(",
            $bytes!("w."),
            ") FROM ",
            $main,
            $table,
            " w WHERE w.guild = touched.stored AND w.member = touched.member AND w.",
            $alive,
            "), 0) AS stored FROM touched), replaced AS MATERIALIZED \
            (SELECT guild, member, sum(bytes) AS bytes FROM stored GROUP BY guild, member), \
            full_ones AS MATERIALIZED (SELECT s.guild, s.member, s.stored - COALESCE(r.bytes, 0) AS others FROM sums s \
            LEFT JOIN replaced r ON r.guild = s.guild AND r.member = s.member WHERE s.bytes + s.stored > 1048576), \
            records AS MATERIALIZED (SELECT DISTINCT l.guild, l.id FROM lines l \
            JOIN full_ones f ON f.guild = l.guild AND f.member = l.member), \
            versions AS MATERIALIZED (SELECT guild, id, line, member, bytes FROM lines \
            UNION ALL SELECT guild, id, 0, member, bytes FROM stored) \
            SELECT s.id, v.id, v.line, v.member, CAST(v.bytes AS bigint), CAST(f.others AS bigint) FROM records r JOIN ",
            $stage,
            "guild s ON s.no = r.guild JOIN versions v ON v.guild = r.guild AND v.id = r.id \
            LEFT JOIN full_ones f ON f.guild = v.guild AND f.member = v.member ORDER BY r.guild, r.id, v.line"
        )
    };
}

pub(super) use {review_bytes, too_long, versions, warn_bytes};

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
