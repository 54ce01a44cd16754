//! A member's id: a value of at most 2^63-1 from which leading zeros were dropped, so that one member has one id in
//! answers, cache, store and origin. Text is stored through `one_line`, so that an answer stays on one line. Pure.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A member's id: 0 to 2^63-1. `007` and `7` are one member (contract section 1, "Parameters").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")] // JSON numbers lose digits in many readers
pub struct MemberId(u64);

impl MemberId {
    pub const ZERO: Self = MemberId(0);

    /// The id of this value, if it is within the spec's `long`.
    pub const fn new(value: u64) -> Option<Self> {
        if value <= i64::MAX as u64 { Some(MemberId(value)) } else { None }
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    /// The value of a signed 64-bit column in a database.
    pub const fn as_i64(self) -> i64 {
        self.0 as i64
    }
}

impl TryFrom<String> for MemberId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        text.parse()
    }
}

impl From<MemberId> for String {
    fn from(id: MemberId) -> String {
        id.to_string()
    }
}

impl FromStr for MemberId {
    type Err = &'static str;

    /// ASCII digits and nothing else, though Rust's parser accepts a `+` too; leading zeros are dropped.
    fn from_str(text: &str) -> Result<Self, &'static str> {
        let value = if text.starts_with('+') { None } else { text.parse().ok() };
        value.and_then(MemberId::new).ok_or("a member id is digits, at most 9223372036854775807")
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The longest name of a member, in bytes. It is part of setPoints' answer, which is at most 1 MiB (contract section 1).
pub const MAX_MEMBER_NAME: usize = 64 * 1024;

/// `text` with a space for each control character, so that an answer stays on one line.
pub fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) { Cow::Owned(text.replace(char::is_control, " ")) } else { Cow::Borrowed(text) }
}
