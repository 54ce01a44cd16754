//! Parses the header of an upstream's answer (RFC 9112, sections 4 and 6.3). Where its body ends must be certain:
//! lengths that differ, a length besides a transfer coding, and codings other than `chunked` make it unusable. It reads
//! from a slice and keeps nothing. `fuzz` compares it with a second parser.

use std::mem::MaybeUninit;
use std::time::SystemTime;

use httparse::{ParserConfig, Response, Status};

use crate::wire::Framing;

/// Largest header of an upstream's answer; nginx accepts 4 to 8 KiB by default.
const MAX_HEADER: usize = 16 * 1024;

/// The most fields in the header of an upstream's answer.
const MAX_FIELDS: usize = 100;

/// The longest `Retry-After` of an origin that is passed on, in seconds: a day. More is a mistake or malice.
const MAX_RETRY_AFTER: u64 = 86_400;

/// What is used of an answer's header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AnswerHeader {
    pub(super) status: u16,
    /// `None`: the body ends with the connection.
    pub(super) framing: Option<Framing>,
    /// Whether the upstream keeps the connection open after the answer.
    pub(super) keep_alive: bool,
    /// `Retry-After` in seconds; `None` where it has neither of its two forms.
    pub(super) retry_after: Option<u64>,
    /// Bytes of the header, the empty line included.
    pub(super) length: usize,
}

const TOO_LONG: &str = "its header is longer than 16 KiB";
const BAD_FRAMING: &str = "its Content-Length and Transfer-Encoding do not say where its body ends";

impl AnswerHeader {
    /// Whether another header follows, which is the answer's (RFC 9110, 15.2). 101 ends HTTP on the connection.
    pub(super) fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..=199)
    }
}

/// Parses the header at the beginning of these bytes; `None` if more of it is to come. `Err`: why it is not usable.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<AnswerHeader>, String> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut answer = Response::new(&mut []);
    // It refuses a bare CR, NUL, folded lines, a space before a colon, and more fields than there is room for.
    let parsed = ParserConfig::default().parse_response_with_uninit_headers(&mut answer, bytes, &mut fields);
    let parsed = parsed.map_err(|error| format!("its header is malformed: {error}"))?;
    match (parsed, answer.code, answer.version) {
        (Status::Complete(length), Some(status), Some(version)) if length <= MAX_HEADER => {
            read_fields(answer.headers, length, status, version == 1).map(Some)
        }
        (Status::Partial, ..) if bytes.len() < MAX_HEADER => Ok(None),
        _ => Err(TOO_LONG.to_owned()),
    }
}

fn read_fields(
    fields: &[httparse::Header<'_>],
    length: usize,
    status: u16,
    is_http_11: bool,
) -> Result<AnswerHeader, String> {
    if status < 100 {
        return Err("its status is below 100".to_owned());
    }
    let (mut content_length, mut transfer_encoding, mut differs) = (None, None, false);
    let (mut close, mut keep_alive, mut retry) = (false, is_http_11, None);
    for httparse::Header { name, value } in fields {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        let tokens = || value.split(|b| *b == b',').map(<[u8]>::trim_ascii);
        match name.len() {
            10 if is("connection") => {
                close |= tokens().any(|token| token.eq_ignore_ascii_case(b"close"));
                keep_alive |= tokens().any(|token| token.eq_ignore_ascii_case(b"keep-alive"));
            }
            11 if is("retry-after") && retry.is_none() => retry = Some(retry_after(value, SystemTime::now())),
            // The same length may be repeated (RFC 9110, 8.6).
            14 if is("content-length") => {
                differs |= tokens().any(|token| content_length.replace(token).is_some_and(|other| other != token));
            }
            17 if is("transfer-encoding") => differs |= transfer_encoding.replace(*value).is_some(),
            _ => {}
        }
    }
    let framing = match (status, content_length, transfer_encoding) {
        (100..=199 | 204 | 304, ..) => Some(Framing::Length(0)),
        (_, None, None) => None,
        _ => Some(Framing::of(content_length, transfer_encoding, is_http_11).ok_or(BAD_FRAMING)?),
    };
    if differs {
        return Err(BAD_FRAMING.to_owned());
    }
    let keep_alive = keep_alive && !close && framing.is_some() && status != 101;
    Ok(AnswerHeader { status, framing, keep_alive, retry_after: retry.flatten(), length })
}

/// `Retry-After` in seconds, from either of its two forms (RFC 9110, 10.2.3).
fn retry_after(value: &[u8], now: SystemTime) -> Option<u64> {
    let value = std::str::from_utf8(value.trim_ascii()).ok()?;
    let seconds = if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // Only a number that exceeds a `u64` cannot be parsed.
        value.parse().unwrap_or(u64::MAX)
    } else {
        let then = httpdate::parse_http_date(value).ok()?;
        then.duration_since(now).map_or(0, |d| d.as_secs() + 1)
    };
    Some(seconds.clamp(1, MAX_RETRY_AFTER))
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    /// The header of an answer with these fields.
    fn with(fields: &str) -> Result<AnswerHeader, String> {
        parse(format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes()).map(Option::unwrap)
    }

    fn framing(fields: &str) -> Option<Framing> {
        with(fields).unwrap().framing
    }

    #[test]
    fn a_body_is_framed_in_one_way_only() {
        assert_eq!(framing(""), None);
        assert_eq!(framing("Content-Length: 7\r\n"), Some(Framing::Length(7)));
        assert_eq!(framing("Content-Length: 7\r\ncontent-length: 7 , 7\r\n"), Some(Framing::Length(7)));
        assert_eq!(framing("transfer-encoding: Chunked\r\n"), Some(Framing::Chunked));
        for fields in [
            "Content-Length: 7\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 7\r\nContent-Length: 8\r\n",
            "Content-Length: 7, 8\r\n",
            "Content-Length: 7,\r\n",
            "Content-Length: +7\r\n",
            "Content-Length: 0x7\r\n",
            "Content-Length:\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Transfer-Encoding: gzip\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding:\r\n",
        ] {
            assert_eq!(with(fields), Err(BAD_FRAMING.to_owned()), "{fields:?}");
        }
    }

    #[test]
    fn lines_are_held_to_their_form() {
        let malformed =
            |text: &str| matches!(parse(text.as_bytes()), Err(why) if why.starts_with("its header is malformed"));
        for field in ["X: a\rb", "X: a\0b", "X: a\r\n b", "X : a", ": a", "X"] {
            assert!(malformed(&format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n")), "{field:?}");
        }
        for line in ["HTTP/1.2 200 OK", "HTTP/2 200", "HTTP/1.1 20 OK", "HTTP/1.1  200 OK", "SSH-2.0-OpenSSH_9.2"] {
            assert!(malformed(&format!("{line}\r\n\r\n")), "{line}");
        }
        assert_eq!(parse(b"HTTP/1.1 099 \r\n\r\n"), Err("its status is below 100".to_owned()));
        assert_eq!(parse(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), Err(BAD_FRAMING.to_owned()));
        assert!(parse(b"HTTP/1.1 200\r\n\r\n").unwrap().is_some(), "a reason is optional");
    }

    #[test]
    fn a_header_over_its_bounds_is_refused_before_it_ends() {
        let begun = |length: usize| format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(length - 20));
        assert_eq!(parse(begun(MAX_HEADER - 1).as_bytes()), Ok(None));
        assert_eq!(parse(begun(MAX_HEADER).as_bytes()), Err(TOO_LONG.to_owned()));
        let whole = |length: usize| format!("{}\r\n\r\n", begun(length - 4));
        assert!(parse(whole(MAX_HEADER).as_bytes()).unwrap().is_some());
        assert_eq!(parse(whole(MAX_HEADER + 1).as_bytes()), Err(TOO_LONG.to_owned()));
        assert!(with(&"X: y\r\n".repeat(MAX_FIELDS)).is_ok());
        assert!(with(&"X: y\r\n".repeat(MAX_FIELDS + 1)).is_err());
    }

    #[test]
    fn some_statuses_have_no_body_and_interim_ones_are_no_answer() {
        let of = |status: u16| {
            let text = format!("HTTP/1.1 {status} Some\r\nContent-Length: 5\r\n\r\n");
            parse(text.as_bytes()).unwrap().unwrap()
        };
        for (status, length, is_interim) in
            [(100, 0, true), (103, 0, true), (101, 0, false), (204, 0, false), (304, 0, false), (404, 5, false)]
        {
            let header = of(status);
            assert_eq!((header.framing, header.is_interim()), (Some(Framing::Length(length)), is_interim), "{status}");
        }
        assert!(of(404).keep_alive && !of(101).keep_alive);
    }

    #[test]
    fn a_connection_is_kept_as_the_version_and_the_upstream_say() {
        let keeps = |line: &str, fields: &str| {
            let text = format!("{line}\r\nContent-Length: 0\r\n{fields}\r\n");
            parse(text.as_bytes()).unwrap().unwrap().keep_alive
        };
        assert!(keeps("HTTP/1.1 200 OK", ""));
        assert!(!keeps("HTTP/1.1 200 OK", "Connection: x, Close\r\nConnection: keep-alive\r\n"));
        assert!(!keeps("HTTP/1.0 200 OK", ""));
        assert!(keeps("HTTP/1.0 200 OK", "Connection: Keep-Alive\r\n"));
        assert!(!with("").unwrap().keep_alive, "its body ends with the connection");
    }

    #[test]
    fn a_retry_after_is_a_day_at_most_and_what_is_no_number_or_date_counts_as_missing() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:30 GMT").unwrap();
        let endless = "9".repeat(1000);
        for value in ["86401", "18446744073709551615", "18446744073709551616", &endless] {
            assert_eq!(retry_after(value.as_bytes(), now), Some(MAX_RETRY_AFTER), "{value}");
        }
        for value in ["soon", "+70", "-70", "70.5", "70 s", "0x70", "", "Fri, 99 Feb 2093 08:49:37 GMT"] {
            assert_eq!(retry_after(value.as_bytes(), now), None, "{value}");
        }
        for (value, kept) in [
            ("7", 7),
            ("0", 1),
            ("0086400", MAX_RETRY_AFTER),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 8),
            ("Sun, 06 Nov 1994 08:49:29 GMT", 1),
            ("Mon, 07 Nov 1994 08:49:37 GMT", MAX_RETRY_AFTER),
        ] {
            assert_eq!(retry_after(value.as_bytes(), now), Some(kept), "{value}");
        }
        assert_eq!(with("Retry-After: 7\r\nRetry-After: 8\r\n").unwrap().retry_after, Some(7));
    }
}
