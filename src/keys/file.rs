//! The key file: `[[key]]` tables, read whole or not at all, with the place of every fault. It reads the file and nothing
//! else. A message repeats nothing that may be a secret.

use std::collections::HashMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ListedKey;
use crate::config::{MAX_PROBLEMS, Places, Problem, Problems, instead, shown};
use crate::files::read_file;
use crate::model::{Digest, GuildId, KeyId, Scope, unix_of};

/// The largest key file: room for about 200,000 keys, each of which takes about 1 KB while the file is read.
const MAX_FILE: u64 = 24 << 20;

/// The longest id, which is in each line of the access log.
const MAX_ID: usize = 64;

/// The settings of a `[[key]]` (contract section 3, `[keys] file`).
const NAMES: [&str; 6] = ["id", "digest", "guild", "tier", "scope", "expires"];

/// The forms of `expires`.
const WANTED_EXPIRY: &str = "wants Unix seconds, a date such as 2027-01-31 (its first second, UTC), or one with time and offset, such as 2027-01-31T12:00:00Z, all of them without quotes";

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read, or is no text that could hold keys; why, with its path.
    #[error("{0}")]
    Unusable(String),
    /// The faults in it, a line each.
    #[error(transparent)]
    Faults(#[from] Problems),
}

/// Reads a key file.
pub fn read_key_file(path: &Path) -> Result<Vec<ListedKey>, KeyFileError> {
    let text = read_text(path)?;
    let name = path.display().to_string();
    Ok(parse(&text).map_err(|list| Problems { name, list })?)
}

fn read_text(path: &Path) -> Result<String, KeyFileError> {
    let refused = |why: &str| KeyFileError::Unusable(format!("{} {why}", path.display()));
    let bytes = read_file(path, MAX_FILE).map_err(|e| refused(&format!("cannot be read: {e}")))?;
    let bytes = bytes.ok_or_else(|| refused("is larger than 24 MiB; keep the keys in a store"))?;
    String::from_utf8(bytes).map_err(|_| refused("is not UTF-8 text"))
}

fn parse(text: &str) -> Result<Vec<ListedKey>, Vec<Problem>> {
    let (tree, faults) = DeTable::parse_recoverable(text);
    let (problems, keys) = (Vec::new(), Vec::new());
    let mut reader = KeyFileReader { places: Places::new(text), problems, keys, first: HashMap::new() };
    for fault in faults {
        let offset = fault.span().map_or(text.len(), |span| span.start);
        reader.fault("", offset, fault.message());
    }
    // The tree of a text that is not TOML is a guess, and messages about it would mislead.
    if reader.problems.is_empty() {
        reader.file(tree.get_ref());
    }
    if reader.problems.is_empty() {
        return Ok(reader.keys);
    }
    reader.problems.sort_by_key(|p| (p.line, p.column));
    Err(reader.problems)
}

/// Reads the tree of a key file, and collects keys and faults. Where there is a fault, no key counts.
struct KeyFileReader {
    places: Places,
    problems: Vec<Problem>,
    keys: Vec<ListedKey>,
    /// The offset at which each id and digest occurs first.
    first: HashMap<(&'static str, String), usize>,
}

impl KeyFileReader {
    fn fault(&mut self, path: &str, offset: usize, message: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(self.places.problem(path, Some(offset), &message.into()));
        }
    }

    fn file(&mut self, root: &DeTable<'_>) {
        for (name, value) in root.iter() {
            match (name.get_ref().as_ref(), value.get_ref()) {
                ("key", DeValue::Array(keys)) => {
                    for (n, key) in keys.iter().enumerate() {
                        match key.get_ref() {
                            DeValue::Table(table) => self.key(n, key.span().start, table),
                            _ => self.fault(&format!("key[{n}]"), key.span().start, "must be a table: write [[key]]"),
                        }
                    }
                }
                ("key", _) => {
                    self.fault("key", value.span().start, "must be a list of tables: write [[key]] above each key");
                }
                (unknown, _) => {
                    let unknown = shown(unknown);
                    let message = format!("unknown name {unknown}; each key is a table of its own: write [[key]]");
                    self.fault("", name.span().start, message);
                }
            }
        }
    }

    fn key(&mut self, n: usize, offset: usize, table: &DeTable<'_>) {
        let called = match table.get("id").map(Spanned::get_ref) {
            Some(DeValue::String(id)) if !id.is_empty() => format!("key {}", shown(id)),
            _ => format!("key[{n}]"),
        };
        for (name, _) in table.iter().filter(|(name, _)| !NAMES.contains(&name.get_ref().as_ref())) {
            let free = NAMES.into_iter().filter(|known| !table.contains_key(*known));
            let message = format!("unknown name {}; {}", shown(name.get_ref()), instead(name.get_ref(), free));
            self.fault(&called, name.span().start, message);
        }
        for needed in ["id", "digest", "guild"].into_iter().filter(|name| !table.contains_key(*name)) {
            self.fault(&called, offset, format!("needs `{needed}`"));
        }
        let id = self.read(&called, table, "id", id_of);
        self.once(&called, table, "id", id.as_ref().map(ToString::to_string));
        let digest: Option<Digest> = self.read(&called, table, "digest", |value| text_of(value)?.parse());
        self.once(&called, table, "digest", digest.as_ref().map(ToString::to_string));
        let guild = self.read(&called, table, "guild", guild_of);
        let tier = self.read(&called, table, "tier", |value| text_of(value).map(Into::into));
        let scope = self.read(&called, table, "scope", scope_of).unwrap_or_default();
        let expires = self.read(&called, table, "expires", expiry);
        if let (Some(id), Some(digest), Some(guild)) = (id, digest, guild) {
            self.keys.push(ListedKey { id, digest, guild, guild_departed: false, tier, scope, expires });
        }
    }

    /// Reads one setting of a key; `None`: it is not there, or has a fault.
    fn read<T>(
        &mut self,
        called: &str,
        table: &DeTable<'_>,
        name: &str,
        of: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        let value = table.get(name)?;
        of(value.get_ref()).map_err(|fault| self.fault(&format!("{called}: {name}"), value.span().start, fault)).ok()
    }

    /// No two keys have the same value of this setting.
    fn once(&mut self, called: &str, table: &DeTable<'_>, name: &'static str, value: Option<String>) {
        let (Some(value), Some(at)) = (value, table.get(name).map(|value| value.span().start)) else { return };
        let first = *self.first.entry((name, value)).or_insert(at);
        if first != at {
            self.fault(
                &format!("{called}: {name}"),
                at,
                format!("is already on line {}", self.places.problem("", Some(first), "").line),
            );
        }
    }
}

fn id_of(value: &DeValue<'_>) -> Result<KeyId, String> {
    let id = text_of(value)?;
    if id.is_empty() {
        return Err("must not be empty: logs and lists name the key by it".into());
    }
    if id.len() > MAX_ID || id.contains(char::is_control) {
        return Err(format!("must be at most {MAX_ID} bytes long, without control characters"));
    }
    Ok(id.into())
}

fn guild_of(value: &DeValue<'_>) -> Result<GuildId, String> {
    text_of(value)?.parse().map_err(str::to_owned)
}

fn scope_of(value: &DeValue<'_>) -> Result<Scope, String> {
    let text = text_of(value)?;
    let unknown = |_| format!("unknown value {}; {}", shown(text), instead(text, ["read", "write"]));
    text.parse().map_err(unknown)
}

fn text_of<'v>(value: &'v DeValue<'_>) -> Result<&'v str, String> {
    match value {
        DeValue::String(text) => Ok(text),
        _ => Err("must be a string: write it in quotes".into()),
    }
}

/// Unix seconds, a TOML date, or a TOML date-time with an offset.
fn expiry(value: &DeValue<'_>) -> Result<i64, String> {
    match value {
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).map_err(|_| WANTED_EXPIRY.to_owned())
        }
        DeValue::Datetime(date) => unix_of(&date.to_string()).ok_or_else(|| WANTED_EXPIRY.to_owned()),
        _ => Err(WANTED_EXPIRY.to_owned()),
    }
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
            + &entry("b", "kb", "scope = \"read\"\ntier = \"gold\"\nexpires = 2027-01-31T12:00:00Z")
            + &entry("c", "kc", "expires = 2027-01-31")
            + &entry("d", "kd", "expires = 9999-12-31");
        let keys = parse(&text).unwrap();
        assert_eq!(keys[0].scope, Scope::Write);
        assert_eq!((keys[0].expires, keys[0].tier.as_deref()), (None, None));
        assert_eq!((keys[1].scope, keys[1].expires), (Scope::Read, Some(1_801_396_800)));
        assert_eq!(keys[2].expires, Some(1_801_396_800 - 12 * 3600));
        assert_eq!(keys[3].expires, Some(253_402_214_400));
        assert!(parse("").unwrap().is_empty());
    }

    fn faults(text: &str) -> Vec<String> {
        parse(text).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_fault_of_a_key_file_is_named_with_its_place() {
        let text = entry("a", "ka", "")
            + &entry("a", "kb", "")
            + &entry("c", "ka", "exprires = 1\nscope = \"reed\"")
            + "[[key]]\nid = \"d\"\ndigest = \"md5:x\"\nguild = 81384788765712384\nexpires = \"90d\"\n"
            + "[[key]]\nexpires = \"2027-01-31T12:00:00Z\"\n[[keys]]\n";
        let faults = faults(&text);
        let expected = [
            "7:6: key `a`: id: is already on line 2",
            "13:10: key `c`: digest: is already on line 3",
            "15:1: key `c`: unknown name `exprires`; did you mean `expires`?",
            "16:9: key `c`: scope: unknown value `reed`; did you mean `read`?",
            "19:10: key `d`: digest: a digest is",
            "20:9: key `d`: guild: must be a string: write it in quotes",
            "21:11: key `d`: expires: wants Unix seconds, a date such as 2027-01-31 (its first second, UTC), or one \
             with time and offset, such as 2027-01-31T12:00:00Z, all of them without quotes",
            "22:1: key[4]: needs `id`",
            "22:1: key[4]: needs `digest`",
            "22:1: key[4]: needs `guild`",
            "23:11: key[4]: expires: wants Unix seconds, a date",
            "24:3: unknown name `keys`; each key is a table of its own: write [[key]]",
        ];
        assert_eq!(faults.len(), expected.len(), "{faults:#?}");
        for (fault, expected) in faults.iter().zip(expected) {
            assert!(fault.starts_with(expected), "{fault}\nis not\n{expected}");
        }
    }

    #[test]
    fn text_that_is_no_toml_is_named_with_its_place_and_without_a_guess() {
        assert_eq!(faults("[[key]]\nid = \"a\"\ndigest = \n").len(), 1);
        assert!(faults("[[key]]\nid = \"a\"\ndigest = \n")[0].starts_with("3:10: "));
    }

    #[test]
    fn of_very_many_faults_the_first_are_named() {
        let faults = faults(&"[[key]]\nid = \"a\"\n".repeat(1000));
        assert_eq!(faults.len(), MAX_PROBLEMS);
    }

    #[test]
    fn an_unknown_name_or_a_bad_guild_is_refused() {
        let control = entry("a", "ka", "").replace("\"a\"", "\"a\\nFAKE\"");
        assert!(faults(&control)[0].contains("control characters"));
        for rest in ["teir = \"gold\"", "scope = \"admin\"", "expires = 2027-01-31T12:00:00"] {
            assert!(parse(&entry("a", "ka", rest)).is_err(), "{rest}");
        }
        assert!(parse("[[key]]\nid = \"a\"\nguild = \"\"\ndigest = \"x\"\n").is_err());
    }
}
