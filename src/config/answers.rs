//! `[answers]`: what answers contain in addition to the data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use super::file::section;
use super::leaf::shown;
use super::problem::Faults;
use crate::wire::Wording;

/// Longest text of the operator's in a refusal, in bytes. A refusal is one short line.
const MAX_WORDS: usize = 256;

section! {
    /// `[answers]`
    pub struct Answers {
        #[serde(flatten)]
        pub wording: Wording = Wording::default(),
        /// "http": a refusal has its own status; "ok": 200, for callers that read bodies only.
        pub error_status: ErrorStatus = ErrorStatus::Http,
        /// The optional headers that answers carry.
        pub headers: Vec<AnswerHeader> = AnswerHeader::ALL.to_vec(),
        /// Origins of pages that may call from a browser, such as `https://shop.example`; "*": every page.
        pub cors_origins: Vec<String> = Vec::new(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ErrorStatus {
    Http,
    Ok,
}

/// An optional header of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerHeader {
    CacheStatus,
    Ratelimit,
    RequestId,
    Age,
}

impl AnswerHeader {
    const ALL: [Self; 4] = [Self::CacheStatus, Self::Ratelimit, Self::RequestId, Self::Age];
}

impl Answers {
    pub(super) fn check(&self, faults: &mut Faults<'_>) {
        let Wording { service_name, key_command } = &self.wording;
        for (path, words) in [("answers.service_name", service_name), ("answers.key_command", key_command)] {
            if words.contains(char::is_control) {
                faults.add(path, "must be one line without control characters, since a refusal is one line");
            }
            if words.len() > MAX_WORDS {
                faults.add(path, format!("must be at most {MAX_WORDS} bytes long"));
            }
        }
        let paths = faults.elements("answers.cors_origins", self.cors_origins.len());
        for (origin, path) in self.cors_origins.iter().zip(&paths) {
            if let Some(message) = fault(origin) {
                faults.add(path, message);
            }
        }
    }

    /// Whether answers carry this header.
    pub fn has(&self, header: AnswerHeader) -> bool {
        self.headers.contains(&header)
    }

    /// The value of `Access-Control-Allow-Origin` for a page of this origin; `None`: it must not read the answer.
    pub fn allow_origin(&self, origin: &[u8]) -> Option<&str> {
        if self.cors_origins.iter().any(|listed| listed == "*") {
            return (!origin.is_empty()).then_some("*");
        }
        self.cors_origins.iter().map(String::as_str).find(|listed| listed.as_bytes() == origin)
    }
}

/// Why this is no origin as browsers send it. The two are compared byte for byte.
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
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let url = Url::parse(&with_scheme).ok()?;
    let host = url.host_str().filter(|host| !host.is_empty() && !host.contains(['*', '%']))?;
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    Some(format!("{}://{host}{port}", url.scheme()))
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
