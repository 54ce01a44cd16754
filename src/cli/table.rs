//! Prints rows as aligned columns. Some come from a file that another process wrote, or from Redis, so control characters
//! are replaced before anything is printed to a terminal.

use std::fmt::Write;

use crate::model::counted;
use crate::model::one_line;

/// The rows printed as text; JSON has all of them.
const MAX_ROWS: usize = 50;

/// The columns of names, aligned left; numbers and times are aligned right.
const NAME_COLUMNS: usize = 3;

/// A column: its head, and the cell of a row.
pub(super) type Column<R> = (&'static str, fn(&R) -> String);

/// The first rows as aligned columns, and a line that says how many are left out (`more`: what one of them is called).
pub(super) fn table<R>(rows: &[R], columns: &[Column<R>], more: &str) -> String {
    let mut lines: Vec<Vec<String>> = vec![columns.iter().map(|(head, _)| (*head).to_owned()).collect()];
    let cells = |row| columns.iter().map(|(_, cell)| one_line(&cell(row)).into_owned()).collect();
    lines.extend(rows.iter().take(MAX_ROWS).map(cells));
    let mut text = aligned(&lines, NAME_COLUMNS);
    if rows.len() > MAX_ROWS {
        let more = counted((rows.len() - MAX_ROWS) as u64, more);
        text += &format!("… and {more}: --json prints all of them\n");
    }
    text
}

/// Lines of cells as aligned columns; those after the first `left` are aligned right.
pub(super) fn aligned(lines: &[Vec<String>], left: usize) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            row += if column > 0 { "  " } else { "" };
            // Writing to a String does not fail.
            let _ = if column < left { write!(row, "{cell:<width$}") } else { write!(row, "{cell:>width$}") };
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_under_their_heads() {
        let rows = [["k1", "Ada", "gold", "7"], ["a longer id", "", "", "12345"]];
        let columns: [Column<[&str; 4]>; 4] = [
            ("KEY", |row| row[0].to_owned()),
            ("NAME", |row| row[1].to_owned()),
            ("TIER", |row| row[2].to_owned()),
            ("N", |row| row[3].to_owned()),
        ];
        let text = table(&rows, &columns, "more key");
        assert_eq!(
            text,
            "KEY          NAME  TIER      N\nk1           Ada   gold      7\na longer id              12345\n"
        );
    }

    #[test]
    fn control_characters_are_not_printed() {
        let text = table(&["\u{1b}[2J"], &[("KEY", |key| (*key).to_owned())], "more key");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
