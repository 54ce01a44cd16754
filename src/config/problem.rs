//! The faults of a config file, each with its place, and the nearest valid name for a name that is misspelt.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use super::leaf::HumanSize;
use super::secret::Secret;
use crate::model::hide_keys;

/// Faults that are reported at once. A file with more is the wrong file, and finding the place of each costs time.
pub(crate) const MAX_PROBLEMS: usize = 100;

/// One fault of a config file, printed as `12:9: limits.tiers.free.burst: message` to be put after the file's name and a colon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {}", self.detail())]
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.lines())]
pub struct Problems {
    /// The file's name, as the operator gave it.
    pub name: String,
    pub list: Vec<Problem>,
}

impl Problems {
    fn lines(&self) -> String {
        let lines: Vec<String> = self.list.iter().map(|problem| format!("{}:{problem}", self.name)).collect();
        lines.join("\n")
    }
}

impl Problem {
    /// `limits.tiers.free.burst: message`, without a key that was typed as a name.
    pub fn detail(&self) -> String {
        let colon = if self.path.is_empty() { "" } else { ": " };
        hide_keys(&format!("{}{colon}{}", self.path, self.message))
    }
}

/// A fault that depends on this machine, such as a file that a setting names ([`super::Loaded::faults`] adds its place); or
/// what the operator should know of a setting, and need not change.
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
    pub warnings: Vec<SettingFault>,
}

impl Faults<'_> {
    pub fn add(&mut self, path: &str, message: impl AsRef<str>) {
        self.add_at(path, None, message.as_ref());
    }

    /// Adds a fault at this byte, or where the setting stands. A setting has one fault: what stands in for a faulty value is
    /// not judged as well. Nor is what the parser guesses of a line that is not TOML.
    pub fn add_at(&mut self, path: &str, offset: Option<usize>, message: &str) {
        if self.list.len() < MAX_PROBLEMS && !self.has(path) {
            let problem = self.places.problem(path, offset, message);
            if !self.list.iter().any(|known| known.path.is_empty() && known.line == problem.line) {
                self.list.push(problem);
            }
        }
    }

    /// Whether the setting, or an element of it, has a fault.
    pub fn has(&self, path: &str) -> bool {
        let is_below = |rest: &str| rest.is_empty() || rest.starts_with('[');
        !path.is_empty() && self.list.iter().any(|fault| fault.path.strip_prefix(path).is_some_and(is_below))
    }

    /// A setting that is accepted, and of which the operator should know something.
    pub fn warn(&mut self, path: &str, text: &str) {
        self.warnings.push(SettingFault::new(path, text));
    }

    pub fn size(&mut self, path: &str, bytes: u64, bounds: RangeInclusive<u64>) {
        if !bounds.contains(&bytes) {
            self.add(path, format!("must be from {} to {}", HumanSize(*bounds.start()), HumanSize(*bounds.end())));
        }
    }

    /// The value of a secret, wherever it is.
    pub fn secret(&self, secret: &Secret) -> Result<String, String> {
        secret.value(self.env)
    }
}

/// The text, and the offset in it of each value by its path, such as `limits.tiers.free.burst`.
#[derive(Clone)]
pub(crate) struct Places {
    text: String,
    offsets: HashMap<String, usize>,
}

// The text may hold secrets.
impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Places(…)")
    }
}

impl Places {
    pub fn new(text: &str) -> Self {
        Places { text: text.to_owned(), offsets: HashMap::new() }
    }

    /// Notes that the value of this path stands at this byte.
    pub fn note(&mut self, path: &str, offset: usize) {
        self.offsets.insert(path.to_owned(), offset);
    }

    /// Whether the operator wrote this.
    pub fn is_given(&self, path: &str) -> bool {
        self.offsets.contains_key(path)
    }

    /// Where a value stands, or else the table that would hold it.
    fn offset(&self, path: &str) -> usize {
        let holder = || path.rfind(['.', '[']).map_or(0, |end| self.offset(&path[..end]));
        self.offsets.get(path).copied().unwrap_or_else(holder)
    }

    /// A fault at this byte of the text, or where the setting stands.
    pub fn problem(&self, path: &str, offset: Option<usize>, message: &str) -> Problem {
        let before = self.text.get(..offset.unwrap_or_else(|| self.offset(path))).unwrap_or(&self.text);
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        let line = before.matches('\n').count() + 1;
        Problem { path: path.to_owned(), line, column, message: message.to_owned() }
    }
}

/// The path of a name in the table of a path.
pub(crate) fn below(path: &str, name: &str) -> String {
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
    fn a_key_that_was_typed_as_a_name_is_not_shown() {
        let key = format!("gg_{}", "7".repeat(49));
        let problem = Places::new("").problem(&below("keys", &key), None, &format!("unknown name `{key}`"));
        assert_eq!(problem.to_string(), "1:1: keys.gg_…: unknown name `gg_…`");
    }

    #[test]
    fn for_a_name_unlike_any_other_all_are_listed() {
        assert_eq!(nearest("colour", NAMES), None);
        assert_eq!(instead("colour", ["rate", "burst", "daily"]), "there are `rate`, `burst` and `daily`");
    }
}
