//! Parses the header of an HTTP/1.1 request strictly (RFC 9112; contract section 1, "Framing"). Everything that an
//! origin could frame in another way is refused with 16: repeated or contradicting lengths, bare CR or LF, folded lines,
//! a wrong `Host`. It reads from a slice and keeps nothing from one request to the next.

use std::mem::MaybeUninit;

use memchr::memmem::Finder;
use memchr::{memchr_iter, memchr2};

use crate::edge::host::is_host;
use crate::edge::request::{MAX_FIELDS, RequestFields};
use crate::wire::Framing;

/// Bytes of an unfinished header that are checked. The whole header is checked once; this prefix is checked again with
/// each read, so it is short.
const CHECKED_PREFIX: usize = 256;

/// A request's header, borrowed from the bytes it came in.
pub(super) struct Header<'b> {
    pub(super) method: &'b [u8],
    /// The target, without its authority if it is absolute.
    pub(super) target: &'b [u8],
    /// The same without its query.
    pub(super) path: &'b [u8],
    pub(super) fields: RequestFields<'b>,
    pub(super) is_http_11: bool,
    pub(super) keep_alive: bool,
    /// `None` if the fields contradict each other or the rules: 16, then close.
    pub(super) framing: Option<Framing>,
    /// Bytes of the header, the empty line included.
    pub(super) length: usize,
}

/// What the bytes read so far are.
#[expect(clippy::large_enum_variant, reason = "a box would cost each request an allocation, and it lives shortly")]
pub(super) enum Parsed<'b> {
    /// The beginning of a header that may still be valid.
    Partial,
    Whole(Header<'b>),
    /// No header of HTTP/1.1, or one that is too long: 16, then close.
    Malformed,
}

/// Reads HTTP/1.2 to 1.9 as HTTP/1.1 (RFC 9110, 2.5), which is the latest version that the parser knows: changes the last digit
/// of the request line that begins here, or of what has come of it.
pub(super) fn read_minor_version_as_1(bytes: &mut [u8]) {
    let end = memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
    if let [.., b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ b'2'..=b'9'] = &mut bytes[..end] {
        *minor = b'1';
    }
}

/// Parses one header. The first `searched` bytes were [`Parsed::Partial`] before, so that a header that comes byte by byte
/// is searched once.
pub(super) fn parse(bytes: &[u8], searched: usize, max_header: usize, from_trusted_proxy: bool) -> Parsed<'_> {
    let Some(length) = end_of_header(bytes, searched) else {
        let is_bad = bytes.len() >= max_header || has_bare_lf(bytes, searched) || !can_begin(bytes);
        return if is_bad { Parsed::Malformed } else { Parsed::Partial };
    };
    if length > max_header || has_bare_lf(&bytes[..length], searched) {
        return Parsed::Malformed;
    }
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    // httparse refuses the rest: bare CR, NUL, obs-fold, a space before a colon, 101 fields.
    match request.parse_with_uninit_headers(&bytes[..length], &mut fields) {
        Ok(httparse::Status::Complete(n)) if n == length => {}
        Ok(_) | Err(_) => return Parsed::Malformed,
    }
    match read_fields(&request, length, from_trusted_proxy) {
        Some(header) => Parsed::Whole(header),
        None => Parsed::Malformed,
    }
}

fn read_fields<'b>(request: &httparse::Request<'_, 'b>, length: usize, from_trusted_proxy: bool) -> Option<Header<'b>> {
    let is_http_11 = request.version? == 1;
    let mut fields =
        RequestFields::read(request.headers.iter().map(|field| (field.name, field.value)), from_trusted_proxy);
    fields.expect_continue &= is_http_11;
    let (target, authority) = split_target(request.path?.as_bytes())?;
    let path = match target.iter().position(|b| *b == b'?').map_or(target, |query| &target[..query]) {
        [] => b"/",
        path => path,
    };
    let authority_agrees = authority.is_none_or(|a| fields.host.is_some_and(|host| host.eq_ignore_ascii_case(a)));
    let host_is_valid = fields.host.map_or(!is_http_11, is_host);
    let is_consistent = !fields.repeated && host_is_valid && authority_agrees;
    let framing =
        is_consistent.then(|| Framing::of(fields.content_length, fields.transfer_encoding, is_http_11)).flatten();
    Some(Header {
        method: request.method?.as_bytes(),
        target,
        path,
        is_http_11,
        keep_alive: !fields.close && (is_http_11 || fields.keep_alive),
        framing,
        length,
        fields,
    })
}

/// A target without its authority, and that, if the target is absolute. What is not ASCII is to be written as `%XX`
/// (RFC 3986, 2.1).
fn split_target(target: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    if !target.is_ascii() {
        return None;
    }
    // `*` is a valid target, though it names no operation (RFC 9112, 3.2).
    if target.starts_with(b"/") || target == b"*" {
        return Some((target, None));
    }
    for scheme in [&b"http://"[..], b"https://"] {
        let Some((start, rest)) = target.split_at_checked(scheme.len()) else { continue };
        if start.eq_ignore_ascii_case(scheme) {
            let end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
            let (authority, rest) = rest.split_at(end);
            // An http URI must have a host (RFC 9110, 4.2.1).
            if matches!(authority, [] | [b':', ..]) {
                return None;
            }
            return Some((rest, Some(authority)));
        }
    }
    None
}

fn end_of_header(bytes: &[u8], searched: usize) -> Option<usize> {
    // Building the searcher has a cost, so each thread builds one.
    thread_local! {
        static EMPTY_LINE: Finder<'static> = Finder::new(b"\r\n\r\n");
    }
    let from = searched.saturating_sub(3);
    EMPTY_LINE.with(|finder| finder.find(&bytes[from..])).map(|at| from + at + 4)
}

/// Whether the first of these bytes may begin a request, so that a TLS hello, for example, is refused at once and not
/// after `header_timeout`.
fn can_begin(bytes: &[u8]) -> bool {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let first = &bytes[..bytes.len().min(CHECKED_PREFIX)];
    httparse::Request::new(&mut []).parse_with_uninit_headers(first, &mut fields).is_ok()
}

fn has_bare_lf(bytes: &[u8], searched: usize) -> bool {
    memchr_iter(b'\n', &bytes[searched..]).any(|at| bytes[..searched + at].last() != Some(&b'\r'))
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 16 * 1024;

    fn framing_of(text: &str) -> Option<Option<Framing>> {
        match parse(text.as_bytes(), 0, MAX, false) {
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
        match parse(text.as_bytes(), 0, MAX, false) {
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
            "POST / HTTP/2.0",
            "POST /g\u{e9}t HTTP/1.1",
            "POST http://a/g\u{e9}t HTTP/1.1",
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
    fn a_later_minor_version_is_read_as_1_however_the_request_line_comes() {
        for (line, read) in [
            ("POST /x HTTP/1.2\r\nHost: a\r\n", "POST /x HTTP/1.1\r\nHost: a\r\n"),
            ("POST /x HTTP/1.9", "POST /x HTTP/1.1"),
            ("POST /x HTTP/1.0\r\n", "POST /x HTTP/1.0\r\n"),
            ("POST /HTTP/1.2", "POST /HTTP/1.2"),
            ("POST /x HTTP/2.2\r\n", "POST /x HTTP/2.2\r\n"),
            ("POST /x HTTP/1.1\r\nX: HTTP/1.2\r\n", "POST /x HTTP/1.1\r\nX: HTTP/1.2\r\n"),
            ("", ""),
        ] {
            let mut bytes = line.as_bytes().to_vec();
            read_minor_version_as_1(&mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), read);
        }
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
        assert!(matches!(parse(long.as_bytes(), 0, 1024, false), Parsed::Malformed));
        assert!(matches!(parse(long.as_bytes(), 0, MAX, false), Parsed::Partial));
        assert!(matches!(parse(b"POST / HTTP/1.1\nHost", 0, MAX, false), Parsed::Malformed));
        assert!(matches!(parse(b"POST / HTTP/1.1\r\nHost", 0, MAX, false), Parsed::Partial));
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
        assert_eq!(path_of("/get\u{e9}", "a"), None);
        assert_eq!(path_of("http:///getPoints", ""), None);
        assert_eq!(path_of("http://:80/getPoints", ":80"), None);
    }

    #[test]
    fn a_connection_is_kept_as_the_version_and_the_caller_say() {
        let keep = |text: &str| match parse(text.as_bytes(), 0, MAX, false) {
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
            let _ = parse(&bytes, 0, 256, true);
        }

        #[test]
        fn a_header_that_comes_in_parts_is_what_it_is_in_one(text in "([aP /:]|\r\n|\r|\n){0,20}", parts in proptest::collection::vec(0usize..40, 0..4)) {
            let kind = |parsed| match parsed {
                Parsed::Partial => None,
                Parsed::Malformed => Some(None),
                Parsed::Whole(header) => Some(Some(header.length)),
            };
            let bytes = [b"POST / HTTP/1.1\r\nHost: a\r\n", text.as_bytes()].concat();
            let mut searched = 0;
            let mut ends: Vec<usize> = parts.into_iter().map(|end| end.min(bytes.len())).collect();
            ends.sort_unstable();
            for end in ends.into_iter().chain([bytes.len()]) {
                let parsed = kind(parse(&bytes[..end], searched, MAX, false));
                prop_assert_eq!(parsed, kind(parse(&bytes[..end], 0, MAX, false)));
                if parsed.is_some() {
                    break;
                }
                searched = end;
            }
        }

        #[test]
        fn no_mangled_header_panics(at in 0usize..80, byte: u8) {
            let mut text = b"POST http://a/x?y HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\nConnection: close\r\n\r\n".to_vec();
            let at = at % text.len();
            text[at] = byte;
            let _ = parse(&text, 0, MAX, true);
        }
    }
}
