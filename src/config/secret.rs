//! Values that may be secret: written in the config, or `env:NAME`, or `file:PATH` (contract section 3). Nothing here
//! prints one.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::files::{BYTE_ORDER_MARK, read_at_most, read_file};

/// Largest file of a secret, in bytes. A URL or a token has some hundred.
const MAX_VALUE: u64 = 16 << 10;

/// A value that no debug print, no fault and no serialised config shows, unless it only names where the secret is.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(extend("format" = "secret"))]
pub struct Secret(String);

/// What is serialised instead of a secret that is written in the config file.
pub(super) const HIDDEN: &str = "…";

/// Where a secret's value is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source<'s> {
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

    pub(crate) fn source(&self) -> Source<'_> {
        if let Some(name) = self.0.strip_prefix("env:") {
            Source::Env(name)
        } else if let Some(path) = self.0.strip_prefix("file:") {
            Source::File(path)
        } else {
            Source::Written(&self.0)
        }
    }

    /// Its value, wherever it is; `env` looks up an environment variable.
    ///
    /// # Errors
    /// Why it cannot be used, without any of it.
    pub fn value(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
        match self.source() {
            Source::Written(text) if text.starts_with('$') => {
                Err("begins with `$`; write \"env:NAME\" for an environment variable".to_owned())
            }
            Source::Written(text) => clean("its value", text),
            Source::File(path) => of_bytes(&format!("the file {path}"), read_file(Path::new(path), MAX_VALUE)),
            Source::Env(name) => {
                let named = format!("the environment variable `{}`", name.escape_debug());
                clean(&named, &env(name).ok_or_else(|| format!("{named} is not set or not UTF-8"))?)
            }
        }
    }
}

/// The secret in `source`, which messages call `named`.
///
/// # Errors
/// Why it cannot be used.
pub fn read(named: &str, source: impl Read) -> Result<String, String> {
    of_bytes(named, read_at_most(source, MAX_VALUE))
}

fn of_bytes(named: &str, bytes: io::Result<Option<Vec<u8>>>) -> Result<String, String> {
    let bytes = bytes.map_err(|e| format!("{named} cannot be read: {e}"))?;
    let bytes =
        bytes.ok_or_else(|| format!("{named} is larger than {MAX_VALUE} bytes; it must hold only the secret"))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{named} is not UTF-8 text"))?;
    clean(named, &text)
}

/// A secret as it was meant, wherever it comes from: without the byte-order mark and the one line end that editors and
/// commands add unseen. Nobody could find out why a secret does not fit that has more that cannot be seen: it is refused.
///
/// # Errors
/// What is wrong with it, without any of it.
pub fn clean(named: &str, text: &str) -> Result<String, String> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let text = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
    let is_blank = |c: char| c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2060}' | BYTE_ORDER_MARK);
    if text.is_empty() {
        return Err(format!("{named} is empty; it must hold the secret"));
    }
    if text.contains(char::is_control) {
        return Err(format!(
            "{named} has several lines or control characters; it must hold only the secret, on one line"
        ));
    }
    if text.starts_with(is_blank) || text.ends_with(is_blank) {
        return Err(format!("{named} begins or ends with blanks; remove them, or make a secret without them"));
    }
    Ok(text.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }

    #[test]
    fn a_secret_is_read_by_a_link_to_a_file_and_from_no_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "hunter2\n").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        let read = |path: &Path| Secret::new(&format!("file:{}", path.display())).value(&|_| None);
        assert_eq!(read(&at("link")).as_deref(), Ok("hunter2"));
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for no_file in [at("pipe"), folder.path().to_owned()] {
            let why = format!("the file {} cannot be read: it is not a file", no_file.display());
            assert_eq!(read(&no_file), Err(why));
        }
    }

    #[test]
    fn a_secret_says_where_its_value_is() {
        assert!(Secret::new("env:TOKEN").source() == Source::Env("TOKEN"));
        assert!(Secret::new("file:admin.token").source() == Source::File("admin.token"));
        assert!(Secret::new("hunter2").source() == Source::Written("hunter2"));
    }
}
