use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Listed, hide_keys};
use crate::model::{Digest, GuildId, Scope};

/// The most keys a file may list: about 1 KB each while it is read, 200 MB. More belong into a store.
const MAX_KEYS: usize = 200_000;

/// Largest key file that is read: room for so many keys, with every setting of each.
const MAX_FILE: u64 = 64 << 20;

/// The longest id. It stands in each line of the access log.
const MAX_ID: usize = 64;

/// What is wrong with a key file: all of it, a line each.
#[derive(Debug, thiserror::Error)]
#[error("{}", .faults.iter().map(|f| format!("{}: {f}", .path.display())).collect::<Vec<_>>().join("\n"))]
pub struct KeyFileError {
    path: PathBuf,
    faults: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    key: Vec<toml::Spanned<Written>>,
}

/// One `[[key]]` (contract section 3, `[keys] file`).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: String,
    digest: String,
    guild: GuildId,
    tier: Option<String>,
    #[serde(default)]
    scope: Scope,
    expires: Option<Expiry>,
}

/// Unix seconds, or a TOML date-time with an offset.
#[derive(Deserialize)]
#[serde(untagged)]
enum Expiry {
    Unix(i64),
    Date(toml::value::Datetime),
}

impl Expiry {
    fn unix(&self) -> Result<i64, String> {
        match self {
            Expiry::Unix(seconds) => Ok(*seconds),
            Expiry::Date(date) => date
                .to_string()
                .parse::<jiff::Timestamp>()
                .map(|t| t.as_second())
                .map_err(|_| format!("'{date}' is no moment; write Unix seconds or 2027-01-31T12:00:00Z")),
        }
    }
}

/// Reads a key file, whole or not at all.
pub fn read_key_file(path: &Path) -> Result<Vec<Listed>, KeyFileError> {
    let fail = |faults| KeyFileError { path: path.to_owned(), faults };
    let text = read_text(path).map_err(|e| fail(vec![e]))?;
    parse(&text).map_err(fail)
}

fn read_text(path: &Path) -> Result<String, String> {
    let unreadable = |e: std::io::Error| format!("cannot be read: {e}");
    // Looked at before it is opened: a pipe would be waited for.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("is not a file".into());
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE {
        return Err("is larger than 64 MiB; a store holds more keys".into());
    }
    Ok(text)
}

fn parse(text: &str) -> Result<Vec<Listed>, Vec<String>> {
    let line_ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let line_of = |offset: usize| line_ends.partition_point(|end| *end < offset) + 1;
    let file: KeyFile = toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(1, |span| line_of(span.start));
        vec![format!("line {line}: {}", hide_keys(e.message()))]
    })?;
    if file.key.len() > MAX_KEYS {
        return Err(vec![format!("lists {} keys; {MAX_KEYS} is the most, a store holds more", file.key.len())]);
    }
    let mut faults = Vec::new();
    let mut seen_ids = std::collections::HashMap::new();
    let mut seen_digests = std::collections::HashMap::new();
    let mut listed = Vec::with_capacity(file.key.len());
    for spanned in file.key {
        let line = line_of(spanned.span().start);
        let key = spanned.into_inner();
        let shown = hide_keys(&key.id.escape_debug().to_string());
        let mut fault = |text: String| faults.push(format!("line {line}: key '{shown}': {text}"));
        if key.id.is_empty() {
            fault("an id is needed, by which logs and lists call it".into());
        } else if key.id.len() > MAX_ID || key.id.contains(char::is_control) {
            fault(format!("an id is at most {MAX_ID} bytes long, without control characters"));
        }
        if let Some(first) = seen_ids.insert(key.id.clone(), line) {
            fault(format!("this id stands already on line {first}"));
        }
        let expires = match key.expires.as_ref().map(Expiry::unix).transpose() {
            Ok(expires) => expires,
            Err(e) => {
                fault(e);
                None
            }
        };
        match key.digest.parse::<Digest>() {
            Ok(digest) => {
                if let Some(first) = seen_digests.insert(digest, line) {
                    fault(format!("this digest stands already on line {first}"));
                }
                listed.push(Listed {
                    id: key.id.as_str().into(),
                    digest,
                    guild: key.guild,
                    guild_gone: false,
                    tier: key.tier.map(Into::into),
                    scope: key.scope,
                    expires,
                });
            }
            Err(e) => fault(e),
        }
    }
    if faults.is_empty() { Ok(listed) } else { Err(faults) }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, key: &str, rest: &str) -> String {
        format!("[[key]]\nid = \"{id}\"\ndigest = \"{}\"\nguild = \"1\"\n{rest}\n", Digest::of(key.as_bytes()))
    }

    #[test]
    fn a_key_file_is_read_with_its_defaults() {
        let text = entry("a", "ka", "")
            + &entry("b", "kb", "scope = \"read\"\ntier = \"gold\"\nexpires = 2027-01-31T12:00:00Z");
        let keys = parse(&text).unwrap();
        assert_eq!(keys[0].scope, Scope::Write);
        assert_eq!((keys[0].expires, keys[0].tier.as_deref()), (None, None));
        assert_eq!((keys[1].scope, keys[1].expires), (Scope::Read, Some(1_801_396_800)));
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn every_fault_of_a_key_file_is_named_with_its_line() {
        let text = entry("a", "ka", "")
            + &entry("a", "kb", "")
            + &entry("c", "ka", "")
            + "[[key]]\nid = \"d\"\ndigest = \"md5:x\"\nguild = \"1\"\n";
        let faults = parse(&text).unwrap_err();
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[0].starts_with("line 6: key 'a': this id stands already on line 1"), "{faults:?}");
        assert!(faults[1].starts_with("line 11: key 'c': this digest stands already on line 1"), "{faults:?}");
        assert!(faults[2].starts_with("line 16: key 'd': a digest is"), "{faults:?}");
    }

    #[test]
    fn an_unknown_name_or_a_bad_guild_is_refused() {
        let control = entry("a", "ka", "").replace("\"a\"", "\"a\\nFAKE\"");
        assert!(parse(&control).unwrap_err()[0].contains("control characters"));
        for rest in ["teir = \"gold\"", "scope = \"admin\"", "expires = 2027-01-31"] {
            assert!(parse(&entry("a", "ka", rest)).is_err(), "{rest}");
        }
        assert!(parse("[[key]]\nid = \"a\"\nguild = \"\"\ndigest = \"x\"\n").is_err());
    }
}
