//! Where in the text each name of the config stands.

use std::collections::HashMap;
use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Problem;

/// The places of all that the operator wrote.
#[derive(Clone, Default)]
pub(super) struct Places {
    text: String,
    values: HashMap<String, usize>,
}

/// A way down the tree: a name, or an element of a list.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Name(String),
    Element(usize),
}

// The text may hold secrets.
impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Places(…)")
    }
}

impl Places {
    pub fn new(text: &str) -> Self {
        Places { text: text.to_owned(), values: HashMap::new() }
    }

    /// Whether the operator wrote this.
    pub fn given(&self, path: &str) -> bool {
        self.values.contains_key(path)
    }

    /// A fault of the value at this path; where it is not written, it is placed at what holds it.
    pub fn problem(&self, path: &str, message: impl Into<String>) -> Problem {
        let mut holder = path;
        let offset = loop {
            if let Some(&offset) = self.values.get(holder) {
                break offset;
            }
            match holder.rfind(['.', '[']) {
                Some(end) => holder = &holder[..end],
                None => break 0,
            }
        };
        self.problem_at(path.to_owned(), offset, message.into())
    }

    /// The line that holds this byte.
    pub fn line_around(&self, offset: usize) -> &str {
        let (before, after) = self.text.split_at_checked(offset).unwrap_or((&self.text, ""));
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let end = after.find('\n').map_or(self.text.len(), |newline| offset + newline);
        &self.text[start..end]
    }

    /// A fault at this byte of the text.
    pub fn problem_at(&self, path: String, offset: usize, message: String) -> Problem {
        let before = self.text.get(..offset).unwrap_or(&self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        Problem { path, line, column, message }
    }

    /// Takes down the place of each name below this way.
    pub fn note(&mut self, table: &DeTable<'_>, above: &mut Vec<Step>) {
        for (name, value) in table.iter() {
            above.push(Step::Name(name.get_ref().to_string()));
            self.note_value(value, above);
            above.pop();
        }
    }

    fn note_value(&mut self, value: &Spanned<DeValue<'_>>, path: &mut Vec<Step>) {
        self.values.insert(dotted(path), value.span().start);
        match value.get_ref() {
            DeValue::Table(table) => self.note(table, path),
            DeValue::Array(array) => {
                for (i, element) in array.iter().enumerate() {
                    path.push(Step::Element(i));
                    self.note_value(element, path);
                    path.pop();
                }
            }
            _ => {}
        }
    }
}

/// `limits.tiers.free.burst`, `server.listen[1]`.
pub(super) fn dotted(path: &[Step]) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            Step::Element(i) => out += &format!("[{i}]"),
            Step::Name(name) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out += &bare(name);
            }
        }
    }
    out
}

/// A name as it is written in TOML: in quotes where it needs them.
pub(super) fn bare(name: &str) -> String {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if plain { name.to_owned() } else { format!("{name:?}") }
}
