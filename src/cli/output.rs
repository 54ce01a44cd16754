//! What commands print: secrets, single records and lists, for a person or as JSON. Rows are printed from their fields as
//! serde has them, whatever they are of.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::error::CommandError;
use crate::model::{date_of, one_line, rough};

/// `--json`, of commands that list or show something.
#[derive(Clone, Copy, Debug, Args)]
pub struct JsonArg {
    /// Prints JSON instead of text: ids as strings, times as Unix seconds
    #[arg(long)]
    pub json: bool,
}

/// Prints rows as a table of these fields, or as one JSON array with all of them.
pub(super) fn print_rows<T: Serialize>(
    out: &mut dyn Write,
    JsonArg { json }: JsonArg,
    rows: &[T],
    fields: &[&str],
) -> Result<(), CommandError> {
    if json {
        let rows = rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        return Ok(writeln!(out, "[{}]", rows.join(",\n"))?);
    }
    Ok(out.write_all(table(rows, fields)?.as_bytes())?)
}

/// Prints a row as a line for each of these fields, or as one JSON object with all of them.
pub(super) fn print_row<T: Serialize>(
    out: &mut dyn Write,
    JsonArg { json }: JsonArg,
    row: &T,
    fields: &[&str],
) -> Result<(), CommandError> {
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(row)?)?);
    }
    let row = serde_json::to_value(row)?;
    let lines = fields.iter().map(|field| vec![field.replace('_', " "), in_words(field, &row[field])]);
    Ok(out.write_all(aligned(&lines.collect::<Vec<_>>()).as_bytes())?)
}

/// Rows as a table of these fields under their names.
pub(super) fn table<T: Serialize>(rows: &[T], fields: &[&str]) -> Result<String, CommandError> {
    let head = |field: &&str| field.trim_end_matches("_ms").to_uppercase().replace('_', " ");
    let mut lines = vec![fields.iter().map(head).collect()];
    for row in rows {
        let row = serde_json::to_value(row)?;
        lines.push(fields.iter().map(|field| in_words(field, &row[field])).collect());
    }
    Ok(aligned(&lines))
}

/// Lines of cells as aligned columns.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let cells = |line: &Vec<String>| line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}  ")).collect();
    lines.iter().map(cells).map(|line: String| line.trim_end().to_owned() + "\n").collect()
}

/// A field's value for a person, who sees no control character of what another process wrote.
fn in_words(field: &str, value: &Value) -> String {
    match (value, field) {
        (Value::Null, "expires" | "last_used") => "never".to_owned(),
        (Value::Null, _) => "-".to_owned(),
        (Value::Bool(yes), _) => if *yes { "yes" } else { "no" }.to_owned(),
        (Value::String(text), _) => one_line(text).into_owned(),
        (Value::Number(unix), "created" | "expires" | "last_used" | "previous_until") => {
            unix.as_i64().map(date_of).unwrap_or_default()
        }
        (Value::Number(ms), _) if field.ends_with("_ms") => rough(Duration::from_millis(ms.as_u64().unwrap_or(0))),
        (Value::Array(texts), _) if texts.is_empty() => "nothing".to_owned(),
        (Value::Array(texts), _) => texts.iter().map(|text| in_words(field, text)).collect::<Vec<_>>().join("; "),
        (other, _) => other.to_string(),
    }
}

/// Prints a line that contains a key. It is shown only once, so a closed stdout is an error here: it says what was
/// done (`outcome`) and what to do now (`next_step`).
pub(super) fn print_secret(
    out: &mut dyn Write,
    secret: &str,
    outcome: &str,
    next_step: &str,
) -> Result<(), CommandError> {
    let printed = writeln!(out, "{secret}").and_then(|()| out.flush());
    printed.map_err(|e| {
        CommandError::new(format!("{outcome}, but the secret could not be printed to stdout: {e}\n{next_step}"))
    })
}

/// Prints a line on stderr in one write. A closed stderr is ignored, where `eprintln!` would panic.
pub(super) fn print_to_stderr(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Treats a closed stdout as success: for what is printed last, or where the exit code reports what was found.
pub(super) fn ignore_broken_pipe(printed: io::Result<()>) -> io::Result<()> {
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_aligned_under_their_names_and_values_are_in_words() {
        let rows = [
            json!({"key": "k1", "last_used": null, "age_ms": 400, "left": false, "n": 7}),
            json!({"key": "a longer id\u{1b}", "last_used": 0, "age_ms": 90_000, "left": true, "n": 12345}),
        ];
        let text = "KEY           LAST USED             AGE    LEFT  N\n\
                    k1            never                 0.4 s  no    7\n\
                    a longer id   1970-01-01T00:00:00Z  90 s   yes   12345\n";
        assert_eq!(table(&rows, &["key", "last_used", "age_ms", "left", "n"]).unwrap(), text);
    }
}
