//! Parses the header of an HTTP/1.1 request strictly (RFC 9112; contract section 1, "Framing"), and reads the fields
//! that the gateway needs, for HTTP/2 too. Everything that an origin could frame in another way is refused with 16:
//! repeated or contradicting lengths, bare CR or LF, folded lines, a wrong `Host`. It reads from a slice and keeps
//! nothing from one request to the next.

use std::mem::MaybeUninit;
use std::net::IpAddr;

use memchr::memchr_iter;
use memchr::memmem::Finder;

use super::host::is_host;
use crate::gateway::Head;
use crate::keys::InFlightPlace;

/// Header fields in one request; more is 16 (contract section 1, "Framing").
pub(super) const MAX_FIELDS: usize = 100;

/// First bytes of a header that are judged before its end has come. The whole is judged once; these
/// are with each piece that comes, so they are few.
const BEGINNING: usize = 256;

/// A request's header, borrowed from the bytes it came in.
pub(super) struct RequestHead<'b> {
    pub(super) method: &'b [u8],
    /// Of the target, without the query; of an absolute target, without its authority too.
    pub(super) path: &'b [u8],
    pub(super) seen: Seen<'b>,
    pub(super) is_http_11: bool,
    pub(super) keep_alive: bool,
    /// `None` where the fields contradict each other or the rules: 16, then close.
    pub(super) framing: Option<Framing>,
    /// Bytes of the header, the empty line included.
    pub(super) length: usize,
}

/// How long the body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
}

/// What the bytes so far are.
pub(super) enum Parsed<'b> {
    /// The beginning of a header that may still be good.
    Partial,
    Whole(RequestHead<'b>),
    /// No header of HTTP/1.1, or one that is too long: 16, then close.
    Malformed,
}

/// Reads one header, strictly: an edge that disagrees with its origin is a smuggling hole.
pub(super) fn parse(bytes: &[u8], max_header: usize, want_forwarded: bool) -> Parsed<'_> {
    let Some(length) = end_of_header(bytes) else {
        let is_bad = bytes.len() >= max_header || has_bare_lf(bytes) || !can_begin(bytes);
        return if is_bad { Parsed::Malformed } else { Parsed::Partial };
    };
    if length > max_header || has_bare_lf(&bytes[..length]) {
        return Parsed::Malformed;
    }
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    // httparse refuses what is left: bare CR, NUL, obs-fold, a space before a colon, 101 fields.
    match request.parse_with_uninit_headers(&bytes[..length], &mut fields) {
        Ok(httparse::Status::Complete(n)) if n == length => {}
        Ok(_) | Err(_) => return Parsed::Malformed,
    }
    match read_fields(&request, length, want_forwarded) {
        Some(head) => Parsed::Whole(head),
        None => Parsed::Malformed,
    }
}

/// A request's fields, as far as anything here or below looks at them, whichever version of HTTP
/// they came in.
#[derive(Default)]
pub(super) struct Seen<'b> {
    pub(super) host: Option<&'b [u8]>,
    pub(super) authorization: Option<&'b [u8]>,
    pub(super) content_type: Option<&'b [u8]>,
    pub(super) content_encoded: bool,
    /// `X-Forwarded-For` in the order it came, where the reader was asked to look for it.
    pub(super) forwarded_for: Vec<&'b [u8]>,
    pub(super) expect_continue: bool,
    pub(super) length: Option<&'b [u8]>,
    pub(super) transfer: Option<&'b [u8]>,
    /// A field of which there may be one came twice: 16.
    pub(super) repeated: bool,
    close: bool,
    keep: bool,
}

impl<'b> Seen<'b> {
    pub(super) fn read(fields: impl Iterator<Item = (&'b str, &'b [u8])>, want_forwarded: bool) -> Self {
        let mut seen = Seen::default();
        for (name, value) in fields {
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            match name.len() {
                4 if is("host") => seen.repeated |= seen.host.replace(value).is_some(),
                6 if is("expect") => seen.expect_continue |= value.eq_ignore_ascii_case(b"100-continue"),
                10 if is("connection") => {
                    for token in value.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
                        seen.close |= token.eq_ignore_ascii_case(b"close");
                        seen.keep |= token.eq_ignore_ascii_case(b"keep-alive");
                    }
                }
                12 if is("content-type") => {
                    // Two types are not one type: neither is taken.
                    seen.content_type = Some(if seen.content_type.is_some() { b"two" } else { value });
                }
                13 if is("authorization") => seen.repeated |= seen.authorization.replace(value).is_some(),
                14 if is("content-length") => seen.repeated |= seen.length.replace(value).is_some(),
                15 if want_forwarded && is("x-forwarded-for") => seen.forwarded_for.push(value),
                16 if is("content-encoding") => seen.content_encoded = true,
                17 if is("transfer-encoding") => seen.repeated |= seen.transfer.replace(value).is_some(),
                _ => {}
            }
        }
        seen
    }

    /// What the rules see of it.
    pub(super) fn head<'h>(
        &'h self,
        method: &'h [u8],
        path: &'h [u8],
        content_length: Option<u64>,
        client: IpAddr,
        in_flight: &'h InFlightPlace,
    ) -> Head<'h> {
        Head {
            method,
            path,
            authorization: self.authorization,
            content_type: self.content_type,
            content_encoded: self.content_encoded,
            content_length,
            client,
            in_flight,
        }
    }
}

fn read_fields<'b>(
    request: &httparse::Request<'_, 'b>,
    length: usize,
    want_forwarded: bool,
) -> Option<RequestHead<'b>> {
    let is_http_11 = request.version? == 1;
    let mut seen = Seen::read(request.headers.iter().map(|field| (field.name, field.value)), want_forwarded);
    seen.expect_continue &= is_http_11;
    let (path, authority) = split_target(request.path?.as_bytes())?;
    let authority_agrees = authority.is_none_or(|a| seen.host.is_some_and(|h| h.eq_ignore_ascii_case(a)));
    let host_given = seen.host.map_or(!is_http_11, is_host);
    let is_one = !seen.repeated && host_given && authority_agrees;
    Some(RequestHead {
        method: request.method?.as_bytes(),
        path,
        is_http_11,
        keep_alive: !seen.close && (is_http_11 || seen.keep),
        framing: if is_one { framing(seen.length, seen.transfer, is_http_11) } else { None },
        length,
        seen,
    })
}

/// The body's framing; `None` where an origin could read it otherwise.
pub(super) fn framing(length: Option<&[u8]>, transfer: Option<&[u8]>, is_http_11: bool) -> Option<Framing> {
    match (length, transfer) {
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

/// A target's path without its query, and its authority where the target is absolute.
fn split_target(target: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let without_query = |t: &'_ [u8]| t.iter().position(|b| *b == b'?').unwrap_or(t.len());
    if target.starts_with(b"/") {
        return Some((&target[..without_query(target)], None));
    }
    for scheme in [&b"http://"[..], b"https://"] {
        let Some((start, rest)) = target.split_at_checked(scheme.len()) else { continue };
        if start.eq_ignore_ascii_case(scheme) {
            let end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
            let (authority, rest) = rest.split_at(end);
            // Such a URI has a host (RFC 9110, 4.2.1).
            if matches!(authority, [] | [b':', ..]) {
                return None;
            }
            let path = &rest[..without_query(rest)];
            return Some((if path.is_empty() { b"/" } else { path }, Some(authority)));
        }
    }
    // `*` names no operation, but is a target; anything else is none (RFC 9112, 3.2).
    (target == b"*").then_some((target, None))
}

fn end_of_header(bytes: &[u8]) -> Option<usize> {
    // A searcher costs a little to make; one a thread serves.
    thread_local! {
        static EMPTY_LINE: Finder<'static> = Finder::new(b"\r\n\r\n");
    }
    EMPTY_LINE.with(|finder| finder.find(bytes)).map(|at| at + 4)
}

/// Whether these bytes may be the beginning of a request, as far as their first ones tell. A TLS
/// hello, say, is refused at once, and not waited for until its time is over.
fn can_begin(bytes: &[u8]) -> bool {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let first = &bytes[..bytes.len().min(BEGINNING)];
    httparse::Request::new(&mut []).parse_with_uninit_headers(first, &mut fields).is_ok()
}

fn has_bare_lf(bytes: &[u8]) -> bool {
    memchr_iter(b'\n', bytes).any(|at| at == 0 || bytes[at - 1] != b'\r')
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 16 * 1024;

    fn framing_of(text: &str) -> Option<Option<Framing>> {
        match parse(text.as_bytes(), MAX, false) {
            Parsed::Whole(head) => Some(head.framing),
            Parsed::Malformed => None,
            Parsed::Partial => panic!("partial: {text:?}"),
        }
    }

    fn refused(text: &str) -> bool {
        matches!(framing_of(text), None | Some(None))
    }

    fn path_of(target: &str, host: &str) -> Option<String> {
        let text = format!("POST {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        match parse(text.as_bytes(), MAX, false) {
            Parsed::Whole(head) if head.framing.is_some() => Some(String::from_utf8(head.path.to_vec()).unwrap()),
            _ => None,
        }
    }

    #[test]
    fn a_body_is_framed_in_one_way_only() {
        let post = |fields: &str| framing_of(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        assert_eq!(post(""), Some(Some(Framing::Length(0))));
        assert_eq!(post("Content-Length: 7\r\n"), Some(Some(Framing::Length(7))));
        assert_eq!(post("transfer-encoding: Chunked\r\n"), Some(Some(Framing::Chunked)));
        for fields in [
            "Content-Length: 7\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 7\r\nContent-Length: 7\r\n",
            "Content-Length: 7, 7\r\n",
            "Content-Length: +7\r\n",
            "Content-Length: -7\r\n",
            "Content-Length: 0x7\r\n",
            "Content-Length:\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Transfer-Encoding: gzip\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding:\r\n",
            "Authorization: a\r\nAuthorization: a\r\n",
            "Host: a\r\n",
            "X: a\rb\r\n",
            "X: a\0b\r\n",
            "X: a\nY: b\r\n",
            "X: a\r\n b\r\n",
            "X : a\r\n",
            ": a\r\n",
            "X\r\n",
        ] {
            assert!(matches!(post(fields), None | Some(None)), "{fields:?}");
        }
    }

    #[test]
    fn a_request_line_is_held_to_its_form() {
        for line in [
            "POST / HTTP/1.2",
            "POST / HTTP/2.0",
            "POST  / HTTP/1.1",
            "POST /",
            "POST / HTTP/1.1 ",
            "PO ST / HTTP/1.1",
            "PRI * HTTP/2.0",
        ] {
            assert!(refused(&format!("{line}\r\nHost: a\r\n\r\n")), "{line}");
        }
        assert!(refused("POST / HTTP/1.1\r\n\r\n"), "no Host");
        assert!(!refused("POST / HTTP/1.1\r\nHost: \t a.example:80 \t\r\n\r\n"), "blanks around it are none of it");
        assert!(refused("POST / HTTP/1.1\r\nHost: u@a\r\n\r\n"), "no host");
        assert!(refused("POST http://u@a/ HTTP/1.1\r\nHost: u@a\r\n\r\n"), "no host");
        assert!(!refused("POST / HTTP/1.0\r\n\r\n"));
        assert!(refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"));
        assert!(refused("POST / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"));
    }

    #[test]
    fn a_hundred_fields_are_taken_and_one_more_is_not() {
        let with = |n: usize| format!("POST / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(n - 1));
        assert!(!refused(&with(100)));
        assert!(refused(&with(101)));
    }

    #[test]
    fn a_header_over_its_bound_is_refused_before_it_ends() {
        let long = format!("POST / HTTP/1.1\r\nX: {}", "y".repeat(2000));
        assert!(matches!(parse(long.as_bytes(), 1024, false), Parsed::Malformed));
        assert!(matches!(parse(long.as_bytes(), MAX, false), Parsed::Partial));
        assert!(matches!(parse(b"POST / HTTP/1.1\nHost", MAX, false), Parsed::Malformed));
        assert!(matches!(parse(b"POST / HTTP/1.1\r\nHost", MAX, false), Parsed::Partial));
    }

    #[test]
    fn a_target_is_its_path_alone() {
        assert_eq!(path_of("/getPoints?memberID=7", "a").as_deref(), Some("/getPoints"));
        assert_eq!(path_of("http://a:80/getPoints?x", "A:80").as_deref(), Some("/getPoints"));
        assert_eq!(path_of("HTTPS://a/getPoints", "a").as_deref(), Some("/getPoints"));
        assert_eq!(path_of("http://a?x", "a").as_deref(), Some("/"));
        assert_eq!(path_of("*", "a").as_deref(), Some("*"));
        assert_eq!(path_of("http://b/getPoints", "a"), None);
        assert_eq!(path_of("http://u@a/getPoints", "a"), None);
        assert_eq!(path_of("getPoints", "a"), None);
        assert_eq!(path_of("http:///getPoints", ""), None);
        assert_eq!(path_of("http://:80/getPoints", ":80"), None);
    }

    #[test]
    fn a_connection_is_kept_as_the_version_and_the_caller_say() {
        let keep = |text: &str| match parse(text.as_bytes(), MAX, false) {
            Parsed::Whole(head) => head.keep_alive,
            _ => panic!("{text}"),
        };
        assert!(keep("POST / HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(!keep("POST / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n"));
        assert!(!keep("POST / HTTP/1.0\r\n\r\n"));
        assert!(keep("POST / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes, 256, true);
        }

        #[test]
        fn no_mangled_header_panics(at in 0usize..80, byte: u8) {
            let mut text = b"POST http://a/x?y HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\nConnection: close\r\n\r\n".to_vec();
            let at = at % text.len();
            text[at] = byte;
            let _ = parse(&text, MAX, true);
        }
    }
}
