//! Checks the header of an HTTP/2 request after the `h2` crate has accepted it. The header is measured as HTTP/1.1
//! would write it, and `Host`, lengths and targets follow the same rules, so that both versions accept and refuse the
//! same requests. It is pure: it resets no stream and reads no body.

use http::header::HOST;
use http::request::Parts;
use http::{HeaderMap, HeaderName};

use crate::edge::host::is_host;
use crate::edge::request::{MAX_FIELDS, RequestFields};
use crate::wire::Framing;

/// What HTTP/1.1 adds to a method and a target, to a field, and at the end of a header.
const REQUEST_LINE: usize = "  HTTP/1.1\r\n".len();
const FIELD: usize = ": \r\n".len();
const EMPTY_LINE: usize = "\r\n".len();

/// A request's fields and the length of its body, if the header gives one; `None` if they contradict each other or the
/// rules: 16. What RFC 9113 calls malformed, such as connection-specific fields, is not seen here: the crate resets the
/// stream.
pub(super) fn check(
    parts: &Parts,
    max_header: usize,
    from_trusted_proxy: bool,
) -> Option<(RequestFields<'_>, Option<u64>)> {
    let target = parts.uri.path_and_query().map(|target| target.as_str())?; // CONNECT has none
    let is_target = target.is_ascii() && target.starts_with('/') || target == "*";
    if !is_target || !is_http(parts) || !is_trimmed(&parts.headers) || !is_within_bounds(parts, target, max_header) {
        return None;
    }
    let headers = parts.headers.iter().map(|(name, value)| (HeaderName::as_str(name), value.as_bytes()));
    let fields = RequestFields::read(headers, from_trusted_proxy);
    let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    let host = match (authority, fields.host) {
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => return None,
        (authority, host) => host.or(authority)?,
    };
    if fields.repeated || !is_host(host) {
        return None;
    }
    let framing = Framing::of(fields.content_length, fields.transfer_encoding, true)?;
    let length = match (fields.content_length, framing) {
        (Some(_), Framing::Length(length)) => Some(length),
        (None, _) | (Some(_), Framing::Chunked) => None,
    };
    Some((fields, length))
}

/// Whether the scheme, if there is one, is one that HTTP/1.1 accepts in a target too.
fn is_http(parts: &Parts) -> bool {
    parts.uri.scheme_str().is_none_or(|scheme| ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)))
}

/// Whether no value begins or ends with a blank (RFC 9113, 8.2.1), which the crate does not check.
pub(super) fn is_trimmed(fields: &HeaderMap) -> bool {
    fields.values().all(|value| value.as_bytes().trim_ascii().len() == value.len())
}

/// Whether the header would be within its bounds in HTTP/1.1, where the authority is the field `Host`.
fn is_within_bounds(parts: &Parts, target: &str, max_header: usize) -> bool {
    let authority = parts.uri.authority().filter(|_| !parts.headers.contains_key(HOST));
    let host = authority.map(|authority| HOST.as_str().len() + authority.as_str().len() + FIELD);
    let start = parts.method.as_str().len() + target.len() + REQUEST_LINE + EMPTY_LINE;
    let (mut count, mut length) = (usize::from(host.is_some()), start + host.unwrap_or(0));
    for (name, value) in &parts.headers {
        count += 1;
        length += name.as_str().len() + value.len() + FIELD;
    }
    count <= MAX_FIELDS && length <= max_header
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn checked(uri: &str, fields: &[(&str, &str)]) -> Option<Option<u64>> {
        let request = fields.iter().fold(Request::post(uri), |r, (name, value)| r.header(*name, *value));
        check(&request.body(()).unwrap().into_parts().0, 1024, false).map(|(_, length)| length)
    }

    #[test]
    fn one_authority_one_key_and_one_length() {
        let there = "https://a.example/getPoints";
        assert_eq!(checked(there, &[]), Some(None));
        assert_eq!(checked(there, &[("host", "A.example"), ("content-length", "7")]), Some(Some(7)));
        assert_eq!(checked("/getPoints", &[("host", "a")]), Some(None));
        for (uri, fields) in [
            (there, &[("host", "b.example")][..]),
            ("/getPoints", &[]),
            ("https://u@a.example/getPoints", &[]),
            ("/getPoints", &[("host", "u@a.example")]),
            ("/getPoints", &[("host", "a b")]),
            (there, &[("host", "a.example"), ("host", "a.example")]),
            (there, &[("authorization", "x"), ("authorization", "x")]),
            (there, &[("content-length", "7"), ("content-length", "7")]),
            (there, &[("content-length", "+7")]),
            (there, &[("content-length", "")]),
            (there, &[("content-length", "7, 7")]),
            (there, &[("authorization", " x")]),
            (there, &[("authorization", "x\t")]),
        ] {
            assert_eq!(checked(uri, fields), None, "{uri} {fields:?}");
        }
    }

    fn parts(request: http::request::Builder) -> Parts {
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_header_is_as_long_as_http_1_1_would_write_it() {
        let written = "POST /x?y=z HTTP/1.1\r\nhost: a.example\r\nn: 12345\r\n\r\n".len();
        for request in [
            Request::post("https://a.example/x?y=z").header("n", "12345"),
            Request::post("/x?y=z").header("host", "a.example").header("n", "12345"),
            Request::post("https://a.example/x?y=z").header("n", "12345").header("host", "a.example"),
        ] {
            let parts = parts(request);
            assert!(check(&parts, written, false).is_some());
            assert!(check(&parts, written - 1, false).is_none());
        }
    }

    #[test]
    fn the_authority_is_one_of_a_hundred_fields() {
        let many = |uri: &str, n: usize| parts((0..n).fold(Request::post(uri), |r, _| r.header("x", "y")));
        assert!(check(&many("https://a/", 99), 1 << 20, false).is_some());
        assert!(check(&many("https://a/", 100), 1 << 20, false).is_none());
        let with_host = |n: usize| {
            let mut parts = many("https://a/", n);
            parts.headers.insert(HOST, "a".parse().unwrap());
            parts
        };
        assert!(check(&with_host(99), 1 << 20, false).is_some());
        assert!(check(&with_host(100), 1 << 20, false).is_none());
    }

    #[test]
    fn a_target_is_a_path_under_http() {
        assert!(checked("*", &[("host", "a")]).is_some());
        assert!(checked("HTTP://a/", &[]).is_some());
        assert!(checked("ftp://a/", &[]).is_none());
        assert!(check(&parts(Request::connect("a:443")), 1024, false).is_none());
    }
}
