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

/// The statement that selects the applied lines of an import about members whose answer is too long with them, in order of
/// guild, member and line: line, guild, member, the line's bytes, and those of the whole answer. `$main` and `$stage` are
/// put before the names of tables; `$alive` is put after a row's name, and is true if the row is in the answer.
macro_rules! too_long {
    ($table:literal, $bytes:ident, $main:literal, $stage:literal, $alive:literal) => {
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
            ") AS bytes FROM touched), long AS MATERIALIZED (SELECT * FROM sums WHERE bytes > 1048576) \
            SELECT t.line, l.id, t.member, CAST(",
            $bytes!("t."),
            " AS bigint), l.bytes FROM long l JOIN ",
            $stage,
            $table,
            " t ON t.guild = l.staged AND t.member = l.member WHERE t.",
            $alive,
            " ORDER BY l.staged, t.member, t.line"
        )
    };
}

/// A line that `too_long` selects.
#[derive(Clone, Debug)]
pub(super) struct LongLine {
    pub(super) line: i64,
    pub(super) guild: String,
    pub(super) member: i64,
    pub(super) bytes: i64,
    pub(super) of_answer: i64,
}

/// How often the lines that fit are chosen one by one. A line that is left out may have replaced a longer record, so that
/// others do not fit any more; after these rounds all lines about such a member are left out, since each round repeats the
/// import.
const ROUNDS: usize = 4;

/// Of these lines those that are left out: in their order, each that does not fit beside the lines before it and what else
/// the store has of its member. `round`: how often lines were left out before.
pub(super) fn left_out(lines: &[LongLine], round: usize) -> impl Iterator<Item = &LongLine> {
    let members = lines.chunk_by(|a, b| (&a.guild, a.member) == (&b.guild, b.member));
    members.flat_map(move |lines| {
        let of_lines: i64 = lines.iter().map(|line| line.bytes).sum();
        let in_store = lines[0].of_answer - of_lines;
        let mut left = if round < ROUNDS { MAX_ORIGIN_ANSWER as i64 - in_store } else { i64::MIN };
        lines.iter().filter(move |line| {
            let fits = line.bytes <= left;
            left -= if fits { line.bytes } else { 0 };
            !fits
        })
    })
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

    fn lines(bytes: &[i64], member: i64, in_store: i64) -> Vec<LongLine> {
        let of_answer = in_store + bytes.iter().sum::<i64>();
        let line = |(line, bytes): (usize, &i64)| LongLine {
            line: line as i64,
            guild: "81".to_owned(),
            member,
            bytes: *bytes,
            of_answer,
        };
        bytes.iter().enumerate().map(line).collect()
    }

    #[test]
    fn only_the_lines_that_do_not_fit_are_left_out_and_at_last_all() {
        let mut both = lines(&[1_000_000, 200_000, 10, 10], 7, 48_556);
        both.extend(lines(&[1, 2, 3], 8, 1_048_574));
        let chosen = |round| left_out(&both, round).map(|line| (line.member, line.line)).collect::<Vec<_>>();
        assert_eq!(chosen(0), [(7, 1), (8, 1), (8, 2)]);
        assert_eq!(chosen(ROUNDS - 1), chosen(0));
        assert_eq!(chosen(ROUNDS).len(), both.len());
    }

    #[test]
    fn the_bound_in_the_statements_is_that_of_every_origin() {
        assert_eq!(MAX_ORIGIN_ANSWER, 1_048_576);
        let bound = must_fit(1_048_576, &"81".parse().unwrap(), "7".parse().unwrap(), "warn");
        let over = must_fit(1_048_577, &"81".parse().unwrap(), "7".parse().unwrap(), "review");
        assert!(bound.is_ok() && over.unwrap_err().to_string().contains("`guildgate review list --guild 81"));
    }
}
