//! The id of one request, in the answer, at the origin and in the logs. It has only characters that can stand in a header
//! field and in a log without a check. It is random but not secret, so it is not made by a cryptographic generator, and
//! nothing may be authorised by it.

use std::fmt::{self, Write as _};

use arrayvec::ArrayString;
use serde::{Deserialize, Serialize};

/// Longest id that is taken over from a proxy, in bytes. An id is held in place, so that it costs no allocation.
const MAX: usize = 64;

/// 128 random bits as 32 hexadecimal digits, or what a trusted proxy sent. Empty: no id yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct RequestId(ArrayString<MAX>);

impl RequestId {
    pub fn random() -> Self {
        let mut id = ArrayString::new();
        let _ = write!(id, "{:032x}", fastrand::u128(..)); // there is room
        RequestId(id)
    }

    /// The id that a trusted proxy sent, if it is 1 to 64 letters, digits, dots, underscores and hyphens.
    pub fn from_proxy(value: &[u8]) -> Option<Self> {
        let is_valid = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let text = std::str::from_utf8(value).ok().filter(|_| !value.is_empty() && value.iter().all(is_valid))?;
        ArrayString::from(text).ok().map(RequestId)
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for RequestId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        RequestId::from_proxy(text.as_bytes()).ok_or("no request id")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_proxy_is_taken_over_if_it_is_harmless() {
        let longest = "x".repeat(64);
        for id in ["a", "7f3c.A_b-9", &longest] {
            assert_eq!(RequestId::from_proxy(id.as_bytes()).unwrap().to_string(), id);
        }
        let too_long = "x".repeat(65);
        for id in ["", "a b", "a\"b", "a/b", "\u{e9}", "a\0", &too_long] {
            assert!(RequestId::from_proxy(id.as_bytes()).is_none(), "{id:?}");
        }
        assert_eq!(RequestId::random().as_bytes().len(), 32);
    }
}
