//! Checks the value of `Host` (RFC 9110, 7.2: `uri-host [ ":" port ]`). Both versions of HTTP use it. Pure.

use http::uri::Authority;

/// Whether `value` is a host with or without a port. An empty value is: a client sends it if its target has no authority
/// (RFC 9112, 3.2).
pub(super) fn is_host(value: &[u8]) -> bool {
    let Ok(authority) = Authority::try_from(value) else { return value.is_empty() };
    let host = authority.host();
    // What is left holds a user, or a port, which may be empty (RFC 3986, 3.2.3).
    let is_port = |rest: &str| matches!(rest, "" | ":") || authority.port_u16().is_some();
    !host.is_empty() && authority.as_str().strip_prefix(host).is_some_and(is_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_with_or_without_a_port() {
        for host in ["", "a", "a.example:8080", "A-b_c.example", "127.0.0.1:1", "[::1]", "[::ffff:1.2.3.4]:80", "a:"] {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in
            [":", ":80", "a b", "u@x", "u:p@x:1", "@", "a/b", "a?b", "a\\b", "a:b", "a:1:2", "a:1 ", "é", "[::1", "::1"]
        {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
        for host in ["[::1]x", "a%20b", "\"a\"", "<a>", "a\tb", "a:65536", "[::1]:65536", "a:%31"] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }
}
