//! Which lines of an import are left out, so that no answer about a member is longer than [`MAX_ORIGIN_ANSWER`]: beside the
//! lines that are imported, each of them would make its member's answer longer.

use std::collections::{BTreeMap, BinaryHeap};

use super::import::BadLine;
use crate::store::answers::answer_too_long;
use crate::wire::MAX_ORIGIN_ANSWER;

/// A warn or review as a line has it; or, as line 0, as the store has it.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) guild: String,
    pub(super) id: i64,
    pub(super) line: i64,
    pub(super) member: i64,
    /// Its bytes in the answer. An expired warn has none.
    pub(super) bytes: i64,
    /// Bytes of the member's records about which there is no line. `None` if the answer fits whichever lines are imported.
    pub(super) others: Option<i64>,
}

impl Version {
    fn place(&self) -> Place<'_> {
        (&self.guild, self.member)
    }
}

/// A guild and a member of it.
type Place<'a> = (&'a str, i64);

/// What is to be changed in the staged lines.
#[derive(Debug)]
pub(super) struct Choice<'a> {
    left_out: Vec<&'a Version>,
    /// Earlier lines that are imported, since later ones of the same records are left out.
    instead: Vec<i64>,
}

impl Choice<'_> {
    /// The lines that are left out, and why. `kind` is that of the records: warn or review.
    pub(super) fn bad_lines(&self, kind: &str) -> Vec<BadLine> {
        let bad = |left: &&Version| BadLine {
            line: left.line.cast_unsigned(),
            reason: answer_too_long(&left.guild, &left.member.to_string(), &format!("{kind}s")),
        };
        self.left_out.iter().map(bad).collect()
    }

    /// The statements that make the change, each with the numbers of its lines. `stage` is put before the names of
    /// tables; `listed` is put after a line's number, and is true if it is one of these lines.
    pub(super) fn statements(&self, stage: &str, kind: &str, listed: &str) -> [(String, Vec<i64>); 4] {
        let left_out: Vec<i64> = self.left_out.iter().map(|version| version.line).collect();
        let (table, earlier) = (format!("{stage}{kind}"), format!("{stage}earlier_{kind}"));
        let of_earlier = format!("FROM {earlier} WHERE line {listed}");
        [
            (format!("DELETE FROM {table} WHERE line {listed}"), left_out.clone()),
            (format!("DELETE {of_earlier}"), left_out),
            (format!("INSERT INTO {table} SELECT * {of_earlier}"), self.instead.clone()),
            (format!("DELETE {of_earlier}"), self.instead.clone()),
        ]
    }
}

/// Chooses among the lines about these records. `versions` are in the order of guild, record and line.
pub(super) fn choose(versions: &[Version]) -> Choice<'_> {
    let mut fitting = Fitting::of(versions);
    fitting.take_out();
    let left_out = fitting.put_back();
    let is_replaced = |record: &usize| fitting.kept[*record] < fitting.records[*record].len();
    let instead = (0..fitting.records.len()).filter(is_replaced).filter_map(|record| fitting.in_effect(record));
    Choice { left_out, instead: instead.map(|version| version.line).filter(|line| *line > 0).collect() }
}

/// The answer about a member.
#[derive(Debug)]
struct Answer {
    bytes: i64,
    /// The lines in it: whether the answer is longer with the line than without it, the line's number, and its record.
    lines: BinaryHeap<(bool, i64, usize)>,
}

#[derive(Debug)]
struct Fitting<'a> {
    /// Of each record its versions, in the order of the lines.
    records: Vec<&'a [Version]>,
    /// How many versions of each record are imported. The last of them is in effect.
    kept: Vec<usize>,
    /// Of the members whose answers may become too long.
    answers: BTreeMap<Place<'a>, Answer>,
}

impl<'a> Fitting<'a> {
    /// All lines are imported.
    fn of(versions: &'a [Version]) -> Self {
        let records: Vec<_> = versions.chunk_by(|a, b| (&a.guild, a.id) == (&b.guild, b.id)).collect();
        let kept = records.iter().map(|versions| versions.len()).collect();
        let answer = |version: &'a Version| {
            version.others.map(|bytes| (version.place(), Answer { bytes, lines: BinaryHeap::new() }))
        };
        let mut fitting = Fitting { kept, answers: versions.iter().filter_map(answer).collect(), records };
        for record in 0..fitting.records.len() {
            fitting.add(record);
        }
        fitting
    }

    fn in_effect(&self, record: usize) -> Option<&'a Version> {
        self.records[record][..self.kept[record]].last()
    }

    /// Adds the version in effect to its answer. Returns the member if the answer may be too long with it.
    fn add(&mut self, record: usize) -> Option<Place<'a>> {
        let (version, before) = self.records[record][..self.kept[record]].split_last()?;
        let answer = self.answers.get_mut(&version.place())?;
        answer.bytes += version.bytes;
        if version.line > 0 && version.bytes > 0 {
            let is_shorter = |before: &Version| before.place() != version.place() || before.bytes < version.bytes;
            answer.lines.push((before.last().is_none_or(is_shorter), version.line, record));
        }
        Some(version.place())
    }

    /// Takes the last lines out of each answer that is too long, until it fits; those that make it no longer only after all
    /// others. The version before such a line is then in effect, and may make the answer about another member too long.
    fn take_out(&mut self) {
        let mut places: Vec<_> = self.answers.keys().copied().collect();
        while let Some(place) = places.pop() {
            while let Some(answer) =
                self.answers.get_mut(&place).filter(|answer| answer.bytes > MAX_ORIGIN_ANSWER as i64)
                && let Some((.., record)) = answer.lines.pop()
            {
                self.kept[record] -= 1;
                answer.bytes -= self.records[record][self.kept[record]].bytes;
                places.extend(self.add(record));
            }
        }
    }

    /// Imports, in the order of the lines, each line that was taken out and fits after all. One that is imported may make
    /// room for one before it, so this is repeated. Returns the others.
    fn put_back(&mut self) -> Vec<&'a Version> {
        let taken_out =
            |(record, kept): (usize, &usize)| (*kept..self.records[record].len()).map(move |at| (record, at));
        let mut waiting: Vec<_> = self.kept.iter().enumerate().flat_map(taken_out).collect();
        waiting.sort_by_key(|&(record, at)| self.records[record][at].line);
        loop {
            let before = waiting.len();
            // A line is done with, too, if a later one about its record is imported.
            waiting.retain(|&(record, at)| at >= self.kept[record] && !self.takes(record, at));
            if waiting.len() == before {
                return waiting.into_iter().map(|(record, at)| &self.records[record][at]).collect();
            }
        }
    }

    /// Imports a version later than that in effect, if it fits.
    fn takes(&mut self, record: usize, at: usize) -> bool {
        let (version, before) = (&self.records[record][at], self.in_effect(record));
        let replaced = before.filter(|before| before.place() == version.place()).map_or(0, |before| before.bytes);
        let more = version.bytes - replaced;
        let fits =
            self.answers.get(&version.place()).is_none_or(|answer| answer.bytes + more <= MAX_ORIGIN_ANSWER as i64);
        if fits {
            if let Some(before) = before
                && let Some(answer) = self.answers.get_mut(&before.place())
            {
                answer.bytes -= before.bytes;
            }
            self.kept[record] = at + 1;
            self.add(record);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FULL: i64 = MAX_ORIGIN_ANSWER as i64;

    /// Versions of records, as record, line, member and bytes. Each member has `others` bytes of other records.
    fn versions(of: &[(i64, i64, i64, i64)], others: i64) -> Vec<Version> {
        let version = |&(id, line, member, bytes)| Version {
            guild: "81".to_owned(),
            id,
            line,
            member,
            bytes,
            others: Some(others),
        };
        of.iter().map(version).collect()
    }

    fn chosen(of: &[(i64, i64, i64, i64)], others: i64) -> (Vec<i64>, Vec<i64>) {
        let versions = versions(of, others);
        let choice = choose(&versions);
        (choice.left_out.iter().map(|version| version.line).collect(), choice.instead)
    }

    #[test]
    fn only_the_lines_that_do_not_fit_beside_those_before_them_are_left_out() {
        let lines = [(1, 1, 7, 1_000_000), (2, 2, 7, 200_000), (3, 3, 7, 10), (4, 4, 7, 10), (5, 5, 8, 1)];
        assert_eq!(chosen(&lines, 48_556), (vec![2], vec![]));
    }

    #[test]
    fn the_last_line_of_a_record_that_fits_counts() {
        let lines = [(1, 0, 9, 5), (1, 1, 8, 6), (1, 2, 8, 7), (1, 3, 7, 200), (1, 4, 7, 300), (2, 5, 8, 93)];
        assert_eq!(chosen(&lines, FULL - 100), (vec![3, 4], vec![2]));
        let none_fits = [(1, 0, 9, 5), (1, 1, 8, 200), (1, 2, 7, 200)];
        assert_eq!(chosen(&none_fits, FULL - 100), (vec![1, 2], vec![]));
    }

    #[test]
    fn a_line_that_makes_room_for_one_before_it_counts_also_where_another_line_is_left_out() {
        let lines = [(1, 1, 7, 500), (2, 2, 7, 450), (3, 0, 7, 600), (3, 3, 7, 100), (4, 4, 7, 10)];
        assert_eq!(chosen(&lines, FULL - 600), (vec![2, 4], vec![]));
    }

    #[test]
    fn records_that_two_full_members_exchange_move_although_a_line_after_them_is_left_out() {
        let exchange = [(1, 0, 7, 600), (1, 1, 8, 600), (2, 0, 8, 600), (2, 2, 7, 600), (3, 3, 7, 1)];
        assert_eq!(chosen(&exchange, FULL - 600), (vec![3], vec![]));
    }

    #[test]
    fn twenty_thousand_lines_may_be_left_out_one_because_of_the_other() {
        // Two full members exchange their records, and a line before gives one of them a record more.
        let moves = |id| [(id, 0, 7 + id % 2, 100), (id, id + 1, 8 - id % 2, 100)];
        let lines: Vec<_> = [(0, 1, 7, 1)].into_iter().chain((1..=20_000).flat_map(moves)).collect();
        let (left_out, _) = chosen(&lines, FULL - 100 * 10_000);
        assert_eq!(left_out.len(), 20_001);
    }

    proptest! {
        #[test]
        fn what_is_imported_fits_and_nothing_that_is_left_out_would(
            lines in prop::collection::vec((0i64..8, 0i64..4, 0i64..40), 1..40),
            others in prop::collection::vec(0i64..100, 4),
            stored in prop::collection::vec(prop::option::of((0i64..4, 0i64..40)), 8),
        ) {
            let stored = stored.iter().zip(0..).filter_map(|(at, id)| at.map(|(member, bytes)| (id, 0, member, bytes)));
            let lines = lines.iter().zip(1..).map(|(&(id, member, bytes), line)| (id, line, member, bytes));
            let mut all: Vec<_> = stored.chain(lines).collect();
            all.sort();
            let mut versions = versions(&all, 0);
            versions.iter_mut().for_each(|v| v.others = Some(FULL - 100 + others[v.member as usize]));
            let choice = choose(&versions);
            let is_left_out = |version: &Version| choice.left_out.iter().any(|left| left.line == version.line);
            // The last version of each record that is not left out.
            let in_effect: BTreeMap<i64, &Version> =
                versions.iter().filter(|v| !is_left_out(v)).map(|v| (v.id, v)).collect();
            let answer = |member: i64, without: i64| -> i64 {
                let of = in_effect.values().filter(|v| v.member == member && v.id != without);
                FULL - 100 + others[member as usize] + of.map(|v| v.bytes).sum::<i64>()
            };
            for version in in_effect.values().filter(|v| v.line > 0 && v.bytes > 0) {
                prop_assert!(answer(version.member, -1) <= FULL, "{version:?}");
            }
            for left in &choice.left_out {
                prop_assert!(answer(left.member, left.id) + left.bytes > FULL, "{left:?}");
            }
            let last = |id: i64| versions.iter().rfind(|v| v.id == id).unwrap().line;
            let instead = in_effect.values().filter(|v| v.line > 0 && v.line != last(v.id)).map(|v| v.line);
            prop_assert_eq!(choice.instead, instead.collect::<Vec<_>>());
        }
    }
}
