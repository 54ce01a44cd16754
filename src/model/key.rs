//! What identifies a key without being the key: its public id, its scope, and its SHA-256 digest. The digest is the only
//! form in which a key is stored or compared (contract section 2, "Key format"); no type of this module holds the key
//! itself. Hides keys in text that is to be printed. Pure.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The public name of a key in logs, lists and commands; never the secret.
pub type KeyId = Arc<str>;

/// Which operations a key may use (contract section 1, code 15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Reads only.
    Read,
    /// Reads and setPoints.
    #[default]
    Write,
}

impl Scope {
    pub fn name(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "read" => Ok(Scope::Read),
            "write" => Ok(Scope::Write),
            other => Err(format!("'{other}' is no scope; it is read or write")),
        }
    }
}

/// The SHA-256 of a key: the only form in which a key is stored (contract section 2, "Key format").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of the value of `Authorization`.
    pub fn of(key: &[u8]) -> Self {
        Digest(Sha256::digest(key).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl FromStr for Digest {
    type Err = String;

    /// Reads `sha256:` and 64 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || "a digest is 'sha256:' and 64 hexadecimal digits; `guildgate key hash` makes one".to_owned();
        let is_digest = |hex: &&str| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit());
        let hex = text.strip_prefix("sha256:").filter(is_digest).ok_or_else(bad)?;
        let mut out = [0u8; 32];
        for (n, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).map_err(|_| bad())?;
        }
        Ok(Digest(out))
    }
}

/// `gg_` with at least so many characters after it is taken for a key, or for most of one.
const MIN_HIDDEN: usize = 20;

/// The text with all of our keys in it hidden: a message about a key that was typed instead of an id must not spread it
/// (guarantee 9).
pub fn hide_keys(text: &str) -> String {
    let mut parts = text.split("gg_");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_alphanumeric).count();
        let (hidden, rest) = if digits >= MIN_HIDDEN { ("…", &part[digits..]) } else { ("", part) };
        shown.extend(["gg_", hidden, rest]);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_what_it_prints() {
        let d = Digest::of(b"some key");
        assert_eq!(d.to_string().parse::<Digest>(), Ok(d));
    }

    #[test]
    fn a_digest_of_the_wrong_length_or_alphabet_is_refused() {
        for bad in ["", "sha256:", "sha256:zz", &format!("sha256:{}", "g".repeat(64)), &"a".repeat(64)] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_in_a_text_is_hidden_and_the_rest_is_not() {
        let key = format!("gg_{}", "7".repeat(49));
        let text = format!("there is no key '{key}'; gg_1 and {key}");
        assert_eq!(hide_keys(&text), "there is no key 'gg_…'; gg_1 and gg_…");
        assert_eq!(hide_keys("gg_gg_ é gg_"), "gg_gg_ é gg_");
    }
}
