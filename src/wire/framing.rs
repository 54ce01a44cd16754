//! How the length of a body is known (RFC 9112, 6.3), a caller's or an origin's. Pure.

/// How the length of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunked,
}

impl Framing {
    /// The length, where it is known.
    pub fn length(self) -> Option<u64> {
        match self {
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
        }
    }

    /// The framing that these two fields give; `None` where another reader could take them otherwise.
    pub fn of(length: Option<&[u8]>, transfer_encoding: Option<&[u8]>, is_http_11: bool) -> Option<Framing> {
        match (length, transfer_encoding) {
            (None, None) => Some(Framing::Length(0)),
            (Some(length), None) => {
                let digits = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
                let text = std::str::from_utf8(length).ok().filter(|_| digits)?;
                text.parse().ok().map(Framing::Length)
            }
            (None, Some(coding)) if is_http_11 && coding.eq_ignore_ascii_case(b"chunked") => Some(Framing::Chunked),
            (None | Some(_), Some(_)) => None,
        }
    }
}
