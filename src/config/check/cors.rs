//! Checks `answers.cors_origins`: each is an origin exactly as browsers send it, since the two are compared byte for
//! byte.

use std::net::Ipv6Addr;

use super::Checker;
use crate::config::leaf::shown;
use crate::config::usable::CorsOrigins;

impl Checker<'_> {
    pub(super) fn cors_origins(&mut self, texts: &[String]) -> CorsOrigins {
        let mut found = CorsOrigins::default();
        for (i, text) in texts.iter().enumerate() {
            match fault(text) {
                Some(message) => self.fault(&format!("answers.cors_origins[{i}]"), message),
                None if text == "*" => found.any = true,
                None => found.listed.push(text.clone()),
            }
        }
        found
    }
}

fn fault(text: &str) -> Option<String> {
    let sent = as_sent(text);
    if text == "*" || sent.as_deref() == Some(text) {
        return None;
    }
    let form = "write scheme://host or scheme://host:port in lower case, without a path, or \"*\" alone for every page";
    Some(match sent {
        _ if text == "null" => {
            "`null` is what every sandboxed frame and every local file sends; name the page's own origin".to_owned()
        }
        Some(sent) => format!("{} is not what a browser sends; did you mean {}?", shown(text), shown(&sent)),
        None => format!("{} is not an origin; {form}", shown(text)),
    })
}

/// The nearest origin in the form of the Fetch standard: in lower case, without the scheme's own port, a path or a
/// query. `None`: there is nothing like an origin in the text.
fn as_sent(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let (scheme, rest) = lower.split_once("://").unwrap_or(("https", &lower));
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    if !scheme.starts_with(|c: char| c.is_ascii_lowercase()) || !scheme.chars().all(is_of_scheme) {
        return None;
    }
    let authority = rest.split(['/', '?', '#']).next()?;
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (format!("[{}]", address.parse::<Ipv6Addr>().ok()?), port),
        None => {
            let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            let is_of_host = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            (!host.is_empty() && host.chars().all(is_of_host)).then(|| (host.to_owned(), port))?
        }
    };
    let own_port = match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    let port = match port.strip_prefix(':') {
        Some(digits) => Some(digits.parse::<u16>().ok()?).filter(|port| own_port != Some(*port)),
        None if port.is_empty() => None,
        None => return None,
    };
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    Some(format!("{scheme}://{host}{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_written_as_browsers_send_it() {
        for text in [
            "*",
            "https://shop.example",
            "http://127.0.0.1:3000",
            "http://[::1]:3000",
            "http://localhost",
            "https://xn--mnchen-3ya.example",
            "moz-extension://0c7e",
        ] {
            assert_eq!(fault(text), None, "{text}");
        }
        for (text, sent) in [
            ("https://shop.example/", "https://shop.example"),
            ("https://shop.example/a?b", "https://shop.example"),
            ("https://Shop.Example", "https://shop.example"),
            ("https://shop.example:443", "https://shop.example"),
            ("http://shop.example:080", "http://shop.example"),
            ("http://[0:0::1]", "http://[::1]"),
            ("shop.example", "https://shop.example"),
        ] {
            let expected = format!("`{text}` is not what a browser sends; did you mean `{sent}`?");
            assert_eq!(fault(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "null",
            "://a",
            "https://",
            "https://*.shop.example",
            "https://user@shop.example",
            "https://shop.example:",
            "https://shop.example:99999",
            "https://[::1]x",
            "https://m\u{fc}nchen.example",
            "https://a b",
        ] {
            assert!(fault(text).is_some(), "{text}");
        }
    }
}
