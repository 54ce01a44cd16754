use http::HeaderName;
use http::request::Parts;

use crate::edge::head::{Framing, MAX_FIELDS, Seen, framing};

/// What a field costs beside its name and value (RFC 9113, 6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// A request's fields and the length of its body, as far as it says one; `None` where they
/// contradict each other or the rules: 16. (What RFC 9113 calls malformed, connection-specific
/// fields and upper case among it, never comes this far: the crate resets its stream.)
pub(super) fn judge(parts: &Parts, max_header: usize, want_forwarded: bool) -> Option<(Seen<'_>, Option<u64>)> {
    let fields = || parts.headers.iter().map(|(name, value)| (HeaderName::as_str(name), value.as_bytes()));
    let of_fields: usize = fields().map(|(name, value)| name.len() + value.len() + FIELD_OVERHEAD).sum();
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if fields().count() > MAX_FIELDS || of_fields + target > max_header {
        return None;
    }
    let seen = Seen::read(fields(), want_forwarded);
    let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    let named = match (authority, seen.host) {
        (Some(authority), Some(host)) => authority.eq_ignore_ascii_case(host),
        (Some(authority), None) => !authority.contains(&b'@'),
        (None, host) => host.is_some(),
    };
    if seen.repeated || !named {
        return None;
    }
    let length = match (seen.length, framing(seen.length, seen.transfer, true)?) {
        (Some(_), Framing::Length(length)) => Some(length),
        (None, _) | (Some(_), Framing::Chunked) => None,
    };
    Some((seen, length))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn judged(uri: &str, fields: &[(&str, &str)]) -> Option<Option<u64>> {
        let request = fields.iter().fold(Request::post(uri), |r, (name, value)| r.header(*name, *value));
        judge(&request.body(()).unwrap().into_parts().0, 1024, false).map(|(_, length)| length)
    }

    #[test]
    fn one_authority_one_key_and_one_length() {
        let there = "https://a.example/getPoints";
        assert_eq!(judged(there, &[]), Some(None));
        assert_eq!(judged(there, &[("host", "A.example"), ("content-length", "7")]), Some(Some(7)));
        assert_eq!(judged("/getPoints", &[("host", "a")]), Some(None));
        for (uri, fields) in [
            (there, &[("host", "b.example")][..]),
            ("/getPoints", &[]),
            ("https://u@a.example/getPoints", &[]),
            (there, &[("host", "a.example"), ("host", "a.example")]),
            (there, &[("authorization", "x"), ("authorization", "x")]),
            (there, &[("content-length", "7"), ("content-length", "7")]),
            (there, &[("content-length", "+7")]),
            (there, &[("content-length", "")]),
            (there, &[("content-length", "7, 7")]),
        ] {
            assert_eq!(judged(uri, fields), None, "{uri} {fields:?}");
        }
    }

    #[test]
    fn a_header_has_its_bounds() {
        let many = |n: usize| vec![("x", "y"); n];
        assert!(judged("https://a/", &many(100)).is_none(), "100 small fields are over 1 KiB");
        let parts = |n: usize| {
            let request = many(n).iter().fold(Request::post("https://a/"), |r, (name, value)| r.header(*name, *value));
            request.body(()).unwrap().into_parts().0
        };
        assert!(judge(&parts(100), 1 << 20, false).is_some());
        assert!(judge(&parts(101), 1 << 20, false).is_none());
        assert!(judged("https://a/", &[("x", &"y".repeat(900))]).is_some());
        assert!(judged("https://a/", &[("x", &"y".repeat(1100))]).is_none());
    }
}
