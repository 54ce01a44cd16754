//! An answer as a test sees it, already checked for what every answer must fulfil: only header fields of the contract,
//! none of them twice, a well-formed status line. A test then asserts a success, a refusal with its code, or the part
//! that the cache had.

/// The headers an answer may carry: the contract's (section 1, "Headers on answers" and the table
/// of refusals) and those HTTP itself needs. Any other fails the test that met it; `Server` too.
const ALLOWED: [&str; 18] = [
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "access-control-max-age",
    "age",
    "allow",
    "cache-control",
    "cache-status",
    "connection",
    "content-length",
    "content-type",
    "date",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "vary",
    "x-request-id",
];

pub const NO_KEY: &str = "01 | No api key provided! Create it using: /apikey create";
pub const INCORRECT_KEY: &str = "02 | Incorrect API key!";
pub const TOO_LARGE: &str = "14 | Body is too large!";
pub const MALFORMED: &str = "16 | Malformed request!";
pub const PLAIN_HTTP: &str = "16 | Malformed request! This port speaks TLS: use https instead of http.";
pub const TOO_SLOW: &str = "17 | Request took too long!";
pub const NO_ANSWER: &str = "20 | The service gave no usable answer. Try again later.";

/// A whole answer, already held to what every answer must be.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    /// Reads status line and header fields (without the empty line); panics on what no answer may be.
    pub fn head(head: &str) -> Answer {
        let mut lines = head.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {head:?}"));
        let headers: Vec<(String, String)> = lines
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("no header field: {line:?}"));
                (name.to_owned(), value.trim().to_owned())
            })
            .collect();
        for (i, (name, _)) in headers.iter().enumerate() {
            let name = name.to_ascii_lowercase();
            assert!(ALLOWED.contains(&&*name), "the contract knows no header {name:?}: {head}");
            assert!(!headers[..i].iter().any(|(n, _)| n.eq_ignore_ascii_case(&name)), "{name:?} twice: {head}");
        }
        Answer { status, headers, body: String::new() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Asserts a success with exactly this body.
    #[track_caller]
    pub fn is(&self, body: &str) -> &Self {
        assert_eq!((self.status, self.body.as_str()), (200, body), "{self:#?}");
        self.is_plain_text();
        assert!(self.header("retry-after").is_none() && self.header("allow").is_none(), "{self:#?}");
        self
    }

    /// Asserts a refusal with this status and line, and the headers that its code calls for.
    #[track_caller]
    pub fn is_refused(&self, status: u16, line: &str) -> &Self {
        assert_eq!((self.status, self.body.as_str()), (status, line), "{self:#?}");
        self.is_a_refusal()
    }

    /// Asserts 12 and gives `n`, which stands in the line and in `Retry-After` alike.
    #[track_caller]
    pub fn is_too_many(&self) -> u64 {
        let n = self.retry_after();
        self.is_refused(429, &format!("12 | Too many requests! Try again in {n} s."));
        n
    }

    /// Asserts 21 and gives its `Retry-After`.
    #[track_caller]
    pub fn is_unavailable(&self) -> u64 {
        self.is_refused(503, "21 | The service is not available. Try again later.");
        self.retry_after()
    }

    #[track_caller]
    fn retry_after(&self) -> u64 {
        let n = self.header("retry-after").and_then(|n| n.parse().ok());
        let n = n.unwrap_or_else(|| panic!("no Retry-After in seconds: {self:#?}"));
        assert!(n >= 1, "Retry-After is at least 1: {self:#?}");
        n
    }

    /// Asserts the answer to a preflight, which a page of this origin may call after.
    #[track_caller]
    pub fn is_preflight(&self, allowed: &str) -> &Self {
        assert_eq!((self.status, self.body.as_str()), (204, ""), "{self:#?}");
        for (name, value) in [
            ("access-control-allow-origin", Some(allowed)),
            ("access-control-allow-methods", Some("POST")),
            ("access-control-allow-headers", Some("authorization, content-type")),
            ("access-control-max-age", Some("600")),
            ("vary", Some("Origin")),
            ("cache-control", Some("no-store")),
            ("content-length", None),
            ("content-type", None),
        ] {
            assert_eq!(self.header(name), value, "{name}: {self:#?}");
        }
        self
    }

    /// Asserts what every refusal has in common, whatever its status.
    #[track_caller]
    pub fn is_a_refusal(&self) -> &Self {
        let code = self.code().unwrap_or_else(|| panic!("no line of the form `<code> | <message>`: {self:#?}"));
        self.is_plain_text();
        assert_eq!(self.header("retry-after").is_some(), matches!(code, 12 | 21), "Retry-After: {self:#?}");
        assert_eq!(self.header("allow"), (code == 11).then_some("POST"), "Allow: {self:#?}");
        self
    }

    /// The code at the beginning of a refusal's line.
    pub fn code(&self) -> Option<u8> {
        let (code, message) = self.body.split_once(" | ")?;
        let form = code.len() == 2 && !message.is_empty() && !self.body.contains(char::is_control);
        if form { code.parse().ok() } else { None }
    }

    #[track_caller]
    pub fn is_hit(&self) -> &Self {
        let status = self.cache_status();
        assert!(status.starts_with("guildgate; hit; ttl="), "no hit: {status}");
        self
    }

    #[track_caller]
    pub fn is_miss(&self) -> &Self {
        let status = self.cache_status();
        assert!(status.starts_with("guildgate; fwd="), "no miss: {status}");
        self
    }

    pub fn was_hit(&self) -> bool {
        self.header("cache-status").is_some_and(|s| s.starts_with("guildgate; hit"))
    }

    #[track_caller]
    pub fn cache_status(&self) -> &str {
        self.header("cache-status").unwrap_or_else(|| panic!("no Cache-Status: {self:#?}"))
    }

    pub fn closes(&self) -> bool {
        self.header("connection").is_some_and(|c| c.eq_ignore_ascii_case("close"))
    }

    #[track_caller]
    fn is_plain_text(&self) {
        assert_eq!(self.header("content-type"), Some("text/plain; charset=utf-8"), "{self:#?}");
        assert_eq!(self.header("content-length"), Some(&*self.body.len().to_string()), "{self:#?}");
        assert_eq!(self.header("cache-control"), Some("no-store"), "{self:#?}");
    }
}
