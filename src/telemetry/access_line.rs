//! One request in the access log: what its line says, its two formats (text and JSON), and how a line is read back,
//! whatever precedes it (such as what journald puts before each line). It holds a key's id and never a key or a body
//! (guarantee 9). Other programs read both formats, and a changed field name would break them. A log that is read is not
//! trusted: every field has to be of its form, and control characters are escaped.

use std::borrow::Cow;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::ConfigHash;
use crate::model::KeyId;
use crate::wire::{Operation, RequestId};

/// What became of one request. The JSON line has these fields in this order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AccessLine {
    /// When it was answered, in milliseconds since the Unix epoch.
    #[serde(rename = "time", with = "rfc3339")]
    pub unix_ms: i64,
    pub client: IpAddr,
    pub operation: Option<Operation>,
    pub status: u16,
    /// The code of the refusal.
    pub code: Option<u8>,
    pub key: Option<KeyId>,
    pub cache: Option<CacheUse>,
    /// The limit that it exceeded, whether it was refused or, in shadow, not.
    pub over_limit: Option<Cow<'static, str>>,
    /// Whether it exceeded the candidate limit.
    pub over_candidate: bool,
    /// From the arrival of the bytes that held its header to its answer.
    #[serde(rename = "took_us", with = "micros")]
    pub took: Duration,
    #[serde(rename = "request_id")]
    pub id: RequestId,
    /// The tier in force for the key.
    pub tier: Option<Arc<str>>,
    /// The upstream of an HTTP origin that was asked, the last one if it was several.
    pub upstream: Option<Arc<str>>,
    /// How many microseconds that upstream took, with the connection if a new one was needed.
    pub upstream_us: Option<u64>,
    /// What went wrong there, in a few words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_error: Option<Arc<str>>,
    /// Of the configuration under which it was answered.
    #[serde(default)]
    pub config: ConfigHash,
    /// The span of a sampled request.
    #[serde(skip)]
    pub span: Option<Arc<crate::wire::RequestSpan>>,
}

/// An upstream that was asked for an answer, and how long it took.
#[derive(Clone, Debug)]
pub struct UpstreamUse {
    /// As the metrics name it.
    pub name: Arc<str>,
    /// In microseconds.
    pub took_us: u64,
    /// Why it gave no whole answer.
    pub error: Option<Arc<str>>,
}

/// How the cache was used for an answer, as a word of the access log and a label of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheUse {
    Hit,
    /// A stale answer, while the origin is asked for a new one.
    StaleWhileRevalidate,
    /// A stale answer, because the origin failed.
    StaleIfError,
    /// The origin was asked, because the cached answer was too old.
    Stale,
    /// The origin was asked, because there was no cached answer.
    Miss,
    /// The request waited for the answer to another caller.
    Collapsed,
    /// A write, which always goes to the origin.
    #[serde(rename = "method")]
    Write,
    /// The request was refused before the cache was looked up.
    Refused,
    /// The request is no operation and was passed on.
    Bypass,
}

impl CacheUse {
    /// All of them, in the order of their [`CacheUse::index`].
    pub const ALL: [CacheUse; 9] = {
        use CacheUse::*;
        [Hit, StaleWhileRevalidate, StaleIfError, Stale, Miss, Collapsed, Write, Refused, Bypass]
    };

    const NAMES: [&str; 9] = [
        "hit",
        "stale-while-revalidate",
        "stale-if-error",
        "stale",
        "miss",
        "collapsed",
        "method",
        "refused",
        "bypass",
    ];

    pub const fn index(self) -> usize {
        self as usize
    }

    pub const fn name(self) -> &'static str {
        CacheUse::NAMES[self as usize]
    }
}

/// A time as RFC 3339 with milliseconds.
mod rfc3339 {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn of(unix_ms: i64) -> String {
        format!("{:.3}", jiff::Timestamp::from_millisecond(unix_ms).unwrap_or_default())
    }

    pub(super) fn parse(text: &str) -> Option<i64> {
        Some(text.parse::<jiff::Timestamp>().ok()?.as_millisecond())
    }

    pub(super) fn serialize<S: Serializer>(unix_ms: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&of(*unix_ms))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        parse(&String::deserialize(deserializer)?).ok_or_else(|| D::Error::custom("no time"))
    }
}

/// A duration as whole microseconds.
mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn of(took: Duration) -> u64 {
        u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn serialize<S: Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(of(*took))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_micros)
    }
}

impl AccessLine {
    /// When it was answered, in RFC 3339.
    pub fn time(&self) -> String {
        rfc3339::of(self.unix_ms)
    }

    /// Appends the access line, newline included.
    pub fn write(&self, json: bool, out: &mut String) {
        if json {
            out.push_str(&serde_json::to_string(self).unwrap_or_default()); // texts and numbers can be written as JSON
        } else {
            // A String takes every write.
            let _ = self.write_text(out);
        }
        out.push('\n');
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let operation = self.operation.map_or("-", Operation::name);
        write!(out, "{} {} {operation} {} ", self.time(), self.client, self.status)?;
        match self.code {
            Some(code) => write!(out, "{code:02}")?,
            None => out.push('-'),
        }
        let (key, cache) = (self.key.as_deref().unwrap_or("-"), self.cache.map_or("-", CacheUse::name));
        write!(out, " key={key} cache={cache} took_us={} id={}", micros::of(self.took), self.id)?;
        if let Some(limit) = &self.over_limit {
            write!(out, " over_limit={limit}")?;
        }
        if self.over_candidate {
            out.push_str(" over_candidate");
        }
        if let Some(tier) = &self.tier {
            write!(out, " tier={tier}")?;
        }
        for (name, value) in [("upstream", &self.upstream), ("upstream_error", &self.upstream_error)] {
            if let Some(value) = value {
                // An upstream that has a name is followed by its address in parentheses.
                let quote = if value.contains(' ') { "\"" } else { "" };
                write!(out, " {name}={quote}{value}{quote}")?;
            }
        }
        if let Some(took) = self.upstream_us {
            write!(out, " upstream_us={took}")?;
        }
        write!(out, " config={}", self.config)
    }
    /// The access line in `line`, if it has one and that is about the request `id`.
    pub fn of_request(line: &str, id: &str) -> Option<AccessLine> {
        let mut found = AccessLine::from_text(line).or_else(|| AccessLine::from_json(line))?;
        let AccessLine { key, tier, upstream, upstream_error, .. } = &mut found;
        for text in [key, tier, upstream, upstream_error].into_iter().flatten() {
            *text = printable(text).into();
        }
        found.over_limit = found.over_limit.map(|text| printable(&text).into());
        (found.id.as_bytes() == id.as_bytes()).then_some(found)
    }

    /// Several braces are tried: what precedes the object may have some.
    fn from_json(line: &str) -> Option<AccessLine> {
        const MAX_BRACES: usize = 8;
        let parse = |at| serde_json::Deserializer::from_str(&line[at..]).into_iter().next()?.ok();
        line.match_indices('{').take(MAX_BRACES).find_map(|(at, _)| parse(at))
    }

    /// Its words are the fields of the JSON line.
    fn from_text(line: &str) -> Option<AccessLine> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let at = words.windows(6).position(|w| w[5].starts_with("key=") && rfc3339::parse(w[0]).is_some())?;
        // Values that may have a space in them, and are in quotes then.
        let quoted = |name| Some((name, line.split_once(&format!(" {name}=\""))?.1.split_once('"')?.0));
        let quoted = ["upstream", "upstream_error"].into_iter().filter_map(quoted);
        let first = ["time", "client", "operation", "status", "code"].into_iter().zip(words[at..].iter().copied());
        let named = words[at + 5..].iter().filter_map(|word| word.split_once('='));
        let mut fields = Map::from_iter([("over_candidate".to_owned(), words.contains(&"over_candidate").into())]);
        for (name, value) in first.chain(quoted).chain(named) {
            let value = match name {
                _ if value == "-" => Value::Null,
                "status" | "code" | "took_us" | "upstream_us" => value.parse::<u64>().ok()?.into(),
                _ => value.into(),
            };
            let name = if name == "id" { "request_id" } else { name };
            fields.entry(name).or_insert(value);
        }
        serde_json::from_value(fields.into()).ok()
    }
}

/// A text that may be printed on a terminal: characters that control it, or the direction of its text, are escaped.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
                shown.extend(c.escape_unicode());
            }
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A line whose fields all have a value.
    pub(in crate::telemetry) fn example() -> AccessLine {
        AccessLine {
            unix_ms: 1_790_000_000_123,
            client: [10, 0, 0, 1].into(),
            operation: Some(Operation::GetPoints),
            status: 429,
            code: Some(12),
            key: Some("k1".into()),
            cache: Some(CacheUse::Refused),
            over_limit: Some("rate".into()),
            over_candidate: true,
            took: Duration::from_micros(42),
            id: RequestId::random(),
            tier: Some("free".into()),
            upstream: Some("http://origin.example:80 (10.1.0.1:80)".into()),
            upstream_us: Some(17),
            upstream_error: Some("connection refused".into()),
            config: ConfigHash::default(),
            span: None,
        }
    }

    fn written(line: &AccessLine, json: bool) -> String {
        let mut text = String::new();
        line.write(json, &mut text);
        text
    }

    #[test]
    fn a_text_line_reads_from_left_to_right() {
        let line = example();
        assert_eq!(
            written(&line, false),
            format!(
                "2026-09-21T14:13:20.123Z 10.0.0.1 getPoints 429 12 key=k1 cache=refused took_us=42 id={} over_limit=rate \
                 over_candidate tier=free upstream=\"http://origin.example:80 (10.1.0.1:80)\" \
                 upstream_error=\"connection refused\" upstream_us=17 config={}\n",
                line.id, line.config
            )
        );
    }

    #[test]
    fn a_json_line_is_one_object() {
        let value: serde_json::Value = serde_json::from_str(written(&example(), true).trim_end()).unwrap();
        assert_eq!((&value["time"], &value["key"]), (&"2026-09-21T14:13:20.123Z".into(), &"k1".into()));
        assert_eq!((&value["operation"], &value["cache"]), (&"getPoints".into(), &"refused".into()));
        assert_eq!((&value["code"], &value["took_us"], &value["upstream_us"]), (&12.into(), &42.into(), &17.into()));
        assert_eq!((&value["over_limit"], &value["over_candidate"]), (&"rate".into(), &true.into()));
        assert_eq!((&value["tier"], &value["config"]), (&"free".into(), &"000000000000".into()));
        assert_eq!(value["upstream"], "http://origin.example:80 (10.1.0.1:80)");
    }

    #[test]
    fn both_formats_say_the_same_whatever_precedes_them() {
        let full = example();
        let least = AccessLine {
            operation: None,
            code: None,
            key: None,
            cache: None,
            over_limit: None,
            over_candidate: false,
            tier: None,
            upstream: None,
            upstream_us: None,
            upstream_error: None,
            ..example()
        };
        let of_cache = CacheUse::ALL.map(|cache| AccessLine { cache: Some(cache), ..example() });
        for line in [full, least].into_iter().chain(of_cache) {
            for json in [false, true] {
                let text = format!("Nov 22 15:50:33 host {{guildgate}}[7]: {}", written(&line, json));
                let read = AccessLine::of_request(&text, &line.id.to_string()).unwrap_or_else(|| panic!("{text}"));
                assert_eq!(written(&read, true), written(&line, true));
            }
        }
    }

    #[test]
    fn other_lines_are_not_read() {
        let good = "2026-09-21T14:13:20.123Z 10.0.0.1 - 404 10 key=- cache=- took_us=9 id=abc config=0123456789ab";
        assert!(AccessLine::of_request(good, "abc").is_some());
        for line in [
            "2026-09-21T14:13:20.123Z WARN request to upstream failed request_id=abc upstream=http://x",
            &good.replace("id=abc", "id=abcd"),
            &good.replace("404", "xyz"),
            &good.replace(" - 404", " getx 404"),
            r#"{"request_id":"abc"}"#,
            "",
        ] {
            assert!(AccessLine::of_request(line, "abc").is_none(), "{line}");
        }
    }

    #[test]
    fn what_would_control_a_terminal_is_escaped() {
        let line = "2026-09-21T14:13:20.123Z 10.0.0.1 - 404 10 key=k\u{202e}1 cache=- took_us=9 id=abc tier=a\x1b[31m \
                    config=0123456789ab";
        let read = AccessLine::of_request(line, "abc").unwrap();
        assert_eq!((&*read.key.unwrap(), &*read.tier.unwrap()), ("k\\u{202e}1", "a\\u{1b}[31m"));
    }
}
