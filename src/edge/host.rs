//! What a `Host` may be (RFC 9110, 7.2: `uri-host [ ":" port ]`, in the letters of RFC 3986, 3.2.2).

use std::net::Ipv6Addr;

/// Letters of a registered name or an IPv4 address that stand for themselves: unreserved, sub-delims.
const NAME: [bool; 256] = letters(b"-._~!$&'()*+,;=");

/// Of what a version of the Internet Protocol that is to come may write between brackets.
const FUTURE: [bool; 256] = letters(b"-._~!$&'()*+,;=:");

const fn letters(more: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut n = 0;
    while n < more.len() {
        table[more[n] as usize] = true;
        n += 1;
    }
    table
}

/// Whether `value` is a host, with or without a port. An empty one is: it is what a client sends whose
/// target has no authority (RFC 9112, 3.2).
pub(super) fn is_host(value: &[u8]) -> bool {
    if value.starts_with(b":") {
        return false; // a port of nobody
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

/// How much of `value` is a name; `None`: a percent sign in it stands for no octet.
fn name_length(value: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += value[at..].iter().position(|b| !NAME[usize::from(*b)]).unwrap_or(value.len() - at);
        match &value[at..] {
            [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => at += 3,
            [b'%', ..] => return None,
            _ => return Some(at),
        }
    }
}

/// What may stand between brackets: an IPv6 address, or `v`, a version, `.` and what that has to say.
fn is_address(literal: &[u8]) -> bool {
    if let [b'v' | b'V', future @ ..] = literal {
        let version = future.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        return version > 0
            && matches!(&future[version..], [b'.', said @ ..] if !said.is_empty() && said.iter().all(|b| FUTURE[usize::from(*b)]));
    }
    std::str::from_utf8(literal).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// A port may be left out behind its colon, and may begin with zeros (RFC 3986, 3.2.3).
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
