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
        #[schemars(extend("items" = { "type": "string", "format": "page" }))]
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

/// An origin as browsers send it, since the two are compared byte for byte: in lower case, without the scheme's own port, a
/// path or a query.
pub(super) fn page(text: &str) -> Result<String, String> {
    let url = Url::parse(text).ok();
    let sent = url.as_ref().and_then(|url| {
        let host = url.host_str().filter(|host| !host.is_empty() && !host.contains(['*', '%']))?;
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        Some(format!("{}://{host}{port}", url.scheme()))
    });
    let is_page = text == "*" || sent.is_some_and(|sent| sent == text);
    is_page.then(|| text.to_owned()).ok_or_else(|| {
        format!(
            "{} is no origin as browsers send it, such as `https://shop.example`, without a path; \"*\": every page",
            shown(text)
        )
    })
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
            assert_eq!(page(text).as_deref(), Ok(text));
        }
        for text in [
            "https://shop.example/",
            "https://shop.example/a?b",
            "https://Shop.Example",
            "https://shop.example:443",
            "http://shop.example:080",
            "http://[0:0::1]",
            "shop.example",
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
            assert!(page(text).is_err(), "{text}");
        }
    }
}
