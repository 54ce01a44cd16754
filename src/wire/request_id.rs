//! The id of one request, in the answer, at the origin and in the logs. It is always 32 hexadecimal digits, so that it
//! can stand in a header field without a check. It is random but not secret, so it is not made by a cryptographic
//! generator, and nothing may be authorised by it.

use std::fmt;

/// 128 random bits as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RequestId([u8; 32]);

impl RequestId {
    pub fn random() -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut bits = fastrand::u128(..);
        let mut text = [0; 32];
        for digit in &mut text {
            *digit = DIGITS[(bits & 15) as usize];
            bits >>= 4;
        }
        RequestId(text)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| fmt::Write::write_char(f, char::from(*b)))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
