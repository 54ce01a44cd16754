//! The faults of a config file, each with its place, and the nearest valid name for a name that is misspelt.

use std::error::Error;
use std::fmt;

/// Faults that are reported at once. A file with more is the wrong file, and finding the place of each costs time.
pub(super) const MAX_PROBLEMS: usize = 100;

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

impl fmt::Display for Problem {
    /// `12:9: limits.tiers.free.burst: message`, to be put after the file's name and a colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { path, line, column, message } = self;
        match path.as_str() {
            "" => write!(f, "{line}:{column}: {message}"),
            path => write!(f, "{line}:{column}: {path}: {message}"),
        }
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
