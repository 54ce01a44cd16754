//! Values that may be secret: written in the config, or `env:NAME`, or `file:PATH` (contract section 3). Nothing here
//! prints one.

use std::fmt;
use std::fs::File;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::files::read_at_most;

/// Largest file of a secret, in bytes. A URL or a token has some hundred.
const MAX_VALUE: u64 = 16 << 10;

/// A value that no debug print, no fault and no serialised config shows, unless it only names where the secret is.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct Secret(String);

/// What is serialised instead of a secret that is written in the config file.
const HIDDEN: &str = "…";

/// Where a secret's value is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Source<'s> {
    /// In the config file itself.
    Written(&'s str),
    /// In this environment variable.
    Env(&'s str),
    /// In the file of this name.
    File(&'s str),
}

impl Secret {
    pub fn new(text: &str) -> Self {
        Secret(text.to_owned())
    }

    pub fn source(&self) -> Source<'_> {
        if let Some(name) = self.0.strip_prefix("env:") {
            Source::Env(name)
        } else if let Some(path) = self.0.strip_prefix("file:") {
            Source::File(path)
        } else {
            Source::Written(&self.0)
        }
    }
}

/// Reads a secret from its file: one line, without its end. No message repeats any of it.
///
/// # Errors
/// Why it cannot be used, with the file's name.
pub fn read_file(path: &Path) -> Result<String, String> {
    let named = path.display();
    let bytes = File::open(path).and_then(|file| read_at_most(file, MAX_VALUE));
    let bytes = bytes.map_err(|e| format!("the file {named} cannot be read: {e}"))?.ok_or_else(|| {
        format!("the file {named} is larger than {MAX_VALUE} bytes; it must contain only the value, on one line")
    })?;
    let text = String::from_utf8(bytes).map_err(|_| format!("the file {named} is not UTF-8 text"))?;
    let value = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    if value.is_empty() {
        return Err(format!("the file {named} is empty; it must contain the value"));
    }
    if value.contains(char::is_control) {
        return Err(format!(
            "the file {named} has several lines or control characters; it must contain only the value"
        ));
    }
    Ok(value.to_owned())
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(match self.source() {
            Source::Written(_) => HIDDEN,
            Source::Env(_) | Source::File(_) => &self.0,
        })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Written(_) => f.write_str("Written(…)"),
            Source::Env(name) => write!(f, "Env({name})"),
            Source::File(path) => write!(f, "File({path})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }

    #[test]
    fn a_secret_says_where_its_value_is() {
        assert!(Secret::new("env:TOKEN").source() == Source::Env("TOKEN"));
        assert!(Secret::new("file:admin.token").source() == Source::File("admin.token"));
        assert!(Secret::new("hunter2").source() == Source::Written("hunter2"));
    }
}
