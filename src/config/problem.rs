//! The faults of a config file, each with its place, and the nearest valid name for a name that is misspelt.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use super::leaf::HumanSize;
use super::secret::{self, Secret, Source};

/// Faults that are reported at once. A file with more is the wrong file, and finding the place of each costs time.
pub(crate) const MAX_PROBLEMS: usize = 100;

/// One fault of a config file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The setting, such as `limits.tiers.free.burst`; empty where the text is not TOML.
    pub path: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub message: String,
}

/// All faults of one file, in order of place; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// The file's name, as the operator gave it.
    pub name: String,
    pub list: Vec<Problem>,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.list.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{problem}", self.name)?;
        }
        Ok(())
    }
}

impl Problem {
    /// `limits.tiers.free.burst: message`
    pub fn detail(&self) -> String {
        match self.path.as_str() {
            "" => self.message.clone(),
            path => format!("{path}: {}", self.message),
        }
    }
}

impl fmt::Display for Problem {
    /// `12:9: limits.tiers.free.burst: message`, to be put after the file's name and a colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.detail())
    }
}

impl Error for Problems {}

/// A fault that depends on this machine, such as a file that a setting names. [`super::Loaded::faults`] adds its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {message}")]
pub struct SettingFault {
    /// Such as `server.tls.certificate`.
    pub setting: String,
    pub message: String,
}

impl SettingFault {
    pub fn new(setting: impl Into<String>, message: impl Into<String>) -> Self {
        SettingFault { setting: setting.into(), message: message.into() }
    }
}

/// The name that was probably meant, if one is near enough: about a third of its letters may be wrong.
pub(crate) fn nearest<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let distance = |known: &str| strsim::damerau_levenshtein(name, known);
    let (distance, known) = names.into_iter().map(|known| (distance(known), known)).min()?;
    (distance <= known.chars().count().div_ceil(3)).then_some(known)
}

/// The end of a message about an unknown name: the one that was probably meant, or else all valid ones.
pub(crate) fn instead<'n>(name: &str, names: impl IntoIterator<Item = &'n str> + Clone) -> String {
    if let Some(known) = nearest(name, names.clone()) {
        return format!("did you mean `{known}`?");
    }
    there_are(names)
}

/// All valid names.
pub(super) fn there_are<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let names: Vec<_> = names.into_iter().map(|known| format!("`{known}`")).collect();
    match names.as_slice() {
        [] => "no more can be set here".to_owned(),
        [only] => format!("there is {only}"),
        [most @ .., last] => format!("there are {} and {last}", most.join(", ")),
    }
}

/// Collects faults and warnings.
pub(super) struct Faults<'t> {
    pub places: Places,
    /// Where relative paths start.
    pub folder: &'t Path,
    /// Looks up an environment variable.
    pub env: &'t dyn Fn(&str) -> Option<String>,
    pub list: Vec<Problem>,
    pub warnings: Vec<super::Warning>,
}

impl Faults<'_> {
    /// A setting has one fault: what stands in for a faulty value or element is not judged as well.
    pub fn add(&mut self, path: &str, message: impl Into<String>) {
        if self.list.len() < MAX_PROBLEMS && !self.has(path) {
            self.list.push(self.places.problem(path, message));
        }
    }

    /// Whether the setting, or an element of it, has a fault.
    pub fn has(&self, path: &str) -> bool {
        let is_below = |rest: &str| rest.is_empty() || rest.starts_with('[');
        self.list.iter().any(|fault| fault.path.strip_prefix(path).is_some_and(is_below))
    }

    /// The paths of the valid elements of a list.
    pub fn elements(&self, list: &str, count: usize) -> Vec<String> {
        let paths = (0..).map(|i| format!("{list}[{i}]"));
        paths.filter(|path| self.list.iter().all(|fault| fault.path != *path)).take(count).collect()
    }

    /// A setting that is accepted and does nothing, because it protects nothing.
    pub fn warn(&mut self, path: &str, text: &str) {
        self.warnings.push(super::Warning { path: path.to_owned(), text: text.to_owned() });
    }

    /// Warns of each of these settings of a section that the file names.
    pub fn warn_given(&mut self, section: &str, names: &[&str], text: &str) {
        for path in names.iter().map(|name| format!("{section}.{name}")) {
            if self.places.is_given(&path) {
                self.warn(&path, text);
            }
        }
    }

    pub fn size(&mut self, path: &str, bytes: u64, bounds: RangeInclusive<u64>) {
        if !bounds.contains(&bytes) {
            self.add(path, format!("must be from {} to {}", HumanSize(*bounds.start()), HumanSize(*bounds.end())));
        }
    }

    /// The value of a secret, wherever it is.
    pub fn secret(&self, secret: &Secret) -> Result<String, String> {
        match secret.source() {
            Source::Written(text) => secret::clean("its value", text),
            Source::File(path) => secret::read_file(Path::new(path)),
            Source::Env(name) => secret::of_variable(name, (self.env)(name)),
        }
    }
}

/// The text, the offset of each value in it by its path, such as `limits.tiers.free.burst`, and that of each name.
#[derive(Clone, Default)]
pub(crate) struct Places {
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

    pub fn line(&self, offset: usize) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 5] = ["rate", "burst", "write_rate", "write_burst", "daily"];

    #[test]
    fn the_nearest_name_is_found_for_a_misspelt_one() {
        for (typed, meant) in
            [("brust", "burst"), ("write-rate", "write_rate"), ("writerate", "write_rate"), ("dayly", "daily")]
        {
            assert_eq!(nearest(typed, NAMES), Some(meant));
        }
    }

    #[test]
    fn for_a_name_unlike_any_other_all_are_listed() {
        assert_eq!(nearest("colour", NAMES), None);
        assert_eq!(instead("colour", ["rate", "burst", "daily"]), "there are `rate`, `burst` and `daily`");
    }
}
