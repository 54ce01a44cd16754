//! Prints what `limits plan` and `limits suggest` found as aligned columns, with times in UTC. Key ids and tier names
//! come from a file that another process wrote, so control characters are replaced before anything is printed to a
//! terminal. It decides nothing.

use std::fmt::Write;

use serde::{Serialize, Serializer};

use crate::model::one_line;

/// Rows that are printed for a person; an array has all of them.
pub(super) const ROWS: usize = 50;

/// Cells as columns: so many of them, names, to the left, numbers and times to the right.
pub(super) fn columns<const N: usize>(
    head: [&str; N],
    names: usize,
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let mut lines = vec![head.map(str::to_owned)];
    // What another process wrote down as an id must not move a terminal's cursor.
    lines.extend(rows.map(|row| row.map(|cell| one_line(&cell).into_owned())));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in &lines {
        let mut row = String::new();
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            // A String takes everything.
            let _ = match column {
                0 => write!(row, "{cell:<width$}"),
                column if column < names => write!(row, "  {cell:<width$}"),
                _ => write!(row, "  {cell:>width$}"),
            };
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// `s` where there is not exactly one.
pub(super) fn s(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A moment, given in milliseconds since the Unix epoch, to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment(pub(super) i64);

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let time = jiff::Timestamp::from_millisecond(self.0).unwrap_or_default();
        write!(f, "{}", time.strftime("%Y-%m-%dT%H:%M:%SZ"))
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl Moment {
    /// The beginning of a minute, counted since the Unix epoch.
    pub(super) fn of_minute(minute: i64) -> Self {
        Moment(minute.saturating_mul(60_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heads() {
        let rows = [["k1", "gold", "7"], ["a longer id", "", "12345"]].map(|row| row.map(str::to_owned));
        let text = columns(["KEY", "TIER", "N"], 2, rows.into_iter());
        assert_eq!(text, "KEY          TIER      N\nk1           gold      7\na longer id        12345\n");
        let moving = columns(["KEY"], 1, [["\u{1b}[2J".to_owned()]].into_iter());
        assert!(!moving.contains('\u{1b}'), "{moving:?}");
    }

    #[test]
    fn a_moment_is_utc_to_the_second() {
        assert_eq!(Moment(1_790_000_000_999).to_string(), "2026-09-21T14:13:20Z");
        assert_eq!(Moment::of_minute(1_790_000_000 / 60).to_string(), "2026-09-21T14:13:00Z");
    }
}
