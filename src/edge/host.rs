//! Checks the value of `Host` (RFC 9110, 7.2: `uri-host [ ":" port ]`, with the characters of RFC 3986, 3.2.2). Both
//! versions of HTTP use it. Pure.

use std::net::Ipv6Addr;

/// Whether a registered name or an IPv4 address may have this character, besides percent-encoded ones: unreserved,
/// sub-delims.
const fn is_name_char(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&'..=b',' | b';' | b'=')
}

/// Whether `value` is a host with or without a port. An empty value is: a client sends it if its target has no authority
/// (RFC 9112, 3.2).
pub(super) fn is_host(value: &[u8]) -> bool {
    if value.starts_with(b":") {
        return false; // a port without a host
    }
    let rest = match value.strip_prefix(b"[") {
        Some(literal) => match literal.iter().position(|b| *b == b']').map(|end| literal.split_at(end)) {
            Some((address, [_, rest @ ..])) if is_address(address) => rest,
            _ => return false,
        },
        None => match name_length(value) {
            Some(length) => &value[length..],
            None => return false,
        },
    };
    match rest {
        [] => true,
        [b':', port @ ..] => is_port(port),
        _ => false,
    }
}

/// The length of the name at the beginning of `value`; `None`: a percent sign in it does not encode an octet.
fn name_length(value: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += value[at..].iter().position(|b| !is_name_char(*b)).unwrap_or(value.len() - at);
        match &value[at..] {
            [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => at += 3,
            [b'%', ..] => return None,
            _ => return Some(at),
        }
    }
}

/// Whether this may stand between brackets: an IPv6 address, or `v`, a version, `.` and an address of that version.
fn is_address(literal: &[u8]) -> bool {
    if let [b'v' | b'V', future @ ..] = literal {
        let version = future.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        let is_char = |b: &u8| is_name_char(*b) || *b == b':';
        return version > 0
            && matches!(&future[version..], [b'.', rest @ ..] if !rest.is_empty() && rest.iter().all(is_char));
    }
    std::str::from_utf8(literal).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// A port may be empty and may begin with zeros (RFC 3986, 3.2.3).
fn is_port(digits: &[u8]) -> bool {
    let value = |port: u32, digit: &u8| {
        digit.is_ascii_digit().then(|| port.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
    };
    digits.iter().try_fold(0, value).is_some_and(|port| port <= u32::from(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_addresses_and_their_ports_are_hosts() {
        for host in [
            "",
            "a",
            "a.example:8080",
            "A-b_c.example",
            "127.0.0.1:1",
            "[::1]",
            "[::ffff:1.2.3.4]:80",
            "a:",
            "a%20b",
            "%C3%a9:1",
            "a:65535",
            "a:000080",
            "[v1.x:y]:1",
            "[VF.~]",
        ] {
            assert!(is_host(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn what_holds_more_than_a_host_is_none() {
        for host in [
            ":",
            ":80",
            "a b",
            "u@x",
            "a/b",
            "a?b",
            "a#b",
            "a\\b",
            "a:b",
            "a:1:2",
            "a:1 ",
            "é",
            "[::1",
            "[]",
            "[::1]x",
            "::1",
            "a[::1]",
            "\"a\"",
            "<a>",
            "a\tb",
            "[zz]",
            "[1.2.3.4]",
            "[::1%25eth0]",
            "[::1]]",
            "[v.a]",
            "[v1.]",
            "[v1a]",
            "[v1./]",
            "a%",
            "a%z",
            "a%2",
            "a%zz",
            "a%2g",
            "a:65536",
            "a:99999999999999999999",
            "[::1]:65536",
            "a:%31",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }
}
