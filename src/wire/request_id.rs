//! The id of one request, in the answer, at the origin and in the logs. It has only characters that can stand in a header
//! field and in a log without a check. It is random but not secret, so it is not made by a cryptographic generator, and
//! nothing may be authorised by it.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest id that is taken over from a proxy, in bytes. An id is held in place, so that it costs no allocation.
const MAX: usize = 64;

/// 128 random bits as 32 hexadecimal digits, or what a trusted proxy sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    length: u8,
    /// Zero behind `length`.
    text: [u8; MAX],
}

/// No id yet.
impl Default for RequestId {
    fn default() -> Self {
        RequestId { length: 0, text: [0; MAX] }
    }
}

impl RequestId {
    pub fn random() -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut bits = fastrand::u128(..);
        let mut text = [0; MAX];
        for digit in &mut text[..32] {
            *digit = DIGITS[(bits & 15) as usize];
            bits >>= 4;
        }
        RequestId { length: 32, text }
    }

    /// The id that a trusted proxy sent, if it is 1 to 64 letters, digits, dots, underscores and hyphens.
    pub fn from_proxy(value: &[u8]) -> Option<Self> {
        let is_valid = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if value.is_empty() || !value.iter().all(is_valid) {
            return None;
        }
        let mut text = [0; MAX];
        text.get_mut(..value.len())?.copy_from_slice(value);
        Some(RequestId { length: u8::try_from(value.len()).ok()?, text })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.length)]
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|b| fmt::Write::write_char(f, char::from(*b)))
    }
}

impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        RequestId::from_proxy(text.as_bytes()).ok_or_else(|| D::Error::custom("no request id"))
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
