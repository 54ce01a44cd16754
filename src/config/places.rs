//! Where in the text each value of the config stands, for the line and column of a fault.

use std::collections::HashMap;
use std::fmt;

use super::problem::Problem;

/// The text, the offset of each value in it by its path, such as `limits.tiers.free.burst`, and that of each name.
#[derive(Clone, Default)]
pub(super) struct Places {
    text: String,
    offsets: HashMap<String, usize>,
    names: Vec<(String, usize)>,
}

// The text may hold secrets.
impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Places(…)")
    }
}

impl Places {
    pub fn new(text: &str) -> Self {
        Places { text: text.to_owned(), ..Places::default() }
    }

    /// Notes that the value of this path stands at this byte.
    pub fn note(&mut self, path: &str, offset: usize) {
        self.offsets.insert(path.to_owned(), offset);
    }

    /// Notes that this name, in whichever table, stands at this byte.
    pub fn note_name(&mut self, name: &str, offset: usize) {
        self.names.push((name.to_owned(), offset));
    }

    /// Whether the operator wrote this.
    pub fn is_given(&self, path: &str) -> bool {
        self.offsets.contains_key(path)
    }

    /// The line on which the name, or the header of a table, at an offset was set before.
    pub fn line_set_before(&self, name: &str, offset: usize) -> Option<usize> {
        let without_comment = |line: &str| line.split('#').next().unwrap_or_default().trim().to_owned();
        let this = without_comment(self.text[line_start(&self.text, offset)..].lines().next().unwrap_or_default());
        if this.starts_with('[') {
            let first = self.text.lines().position(|line| without_comment(line) == this).map(|at| at + 1);
            return first.filter(|line| *line < self.line(offset));
        }
        let named = self.names.iter().filter(|(other, at)| other == name && *at < offset);
        named.map(|(_, at)| *at).max().map(|at| self.line(at))
    }

    /// A fault of the value at this path; where it is not written, it is placed at the table that would hold it.
    pub fn problem(&self, path: &str, message: impl Into<String>) -> Problem {
        let mut holder = path;
        let offset = loop {
            if let Some(&offset) = self.offsets.get(holder) {
                break offset;
            }
            match holder.rfind(['.', '[']) {
                Some(end) => holder = &holder[..end],
                None => break 0,
            }
        };
        self.problem_at(path.to_owned(), offset, message.into())
    }

    /// A fault at this byte of the text.
    pub fn problem_at(&self, path: String, offset: usize, message: String) -> Problem {
        let before = self.text.get(line_start(&self.text, offset)..offset).unwrap_or_default();
        let column = before.chars().count() + 1;
        Problem { path, line: self.line(offset), column, message }
    }

    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }
}

/// Where the line begins that holds this byte.
pub(super) fn line_start(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).rposition(|byte| byte == b'\n').map_or(0, |newline| newline + 1)
}

/// The path of a name in the table of a path.
pub(super) fn below(path: &str, name: &str) -> String {
    match path {
        "" => bare(name),
        path => format!("{path}.{}", bare(name)),
    }
}

/// A name as it is written in TOML: in quotes where it needs them.
pub(super) fn bare(name: &str) -> String {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if plain { name.to_owned() } else { format!("{name:?}") }
}
