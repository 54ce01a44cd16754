//! What a `Host` may be (RFC 9110, 7.2: `uri-host [ ":" port ]`, in the letters of RFC 3986, 3.2.2).

/// Letters of a registered name or an IPv4 address: unreserved, sub-delims, `%`.
const NAME: [bool; 256] = letters(b"-._~!$&'()*+,;=%");

/// Of what stands between the brackets of an IP literal: hexadecimal groups, an IPv4 tail, and what a
/// version to come may hold.
const LITERAL: [bool; 256] = letters(b"-._~!$&'()*+,;=:");

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
    let rest = match value.strip_prefix(b"[") {
        Some(literal) => {
            let end = literal.iter().position(|b| !LITERAL[usize::from(*b)]);
            match end.map(|end| literal.split_at(end)) {
                Some(([_, ..], [b']', rest @ ..])) => rest,
                _ => return false,
            }
        }
        None => &value[value.iter().position(|b| !NAME[usize::from(*b)]).unwrap_or(value.len())..],
    };
    match rest {
        [] => true,
        [b':', port @ ..] => port.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_addresses_and_their_ports_are_hosts() {
        for host in
            ["", "a", "a.example:8080", "A-b_c.example", "127.0.0.1:1", "[::1]", "[::ffff:1.2.3.4]:80", "a:", "a%20b"]
        {
            assert!(is_host(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn what_holds_more_than_a_host_is_none() {
        for host in [
            "a b", "u@x", "a/b", "a?b", "a#b", "a\\b", "a:b", "a:1:2", "a:1 ", "é", "[::1", "[]", "[::1]x", "::1",
            "a[::1]", "\"a\"", "<a>", "a\tb",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }
}
