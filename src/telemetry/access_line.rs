//! Reads a line of the access log back, from text or JSON, whatever precedes it (such as what journald puts before each
//! line). A log is not trusted: every field has to be of its form, and control characters are escaped.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::outcome::{Outcome, micros};

/// What a line says of one request. Lines of older versions lack the last four fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLine {
    /// RFC 3339.
    pub time: String,
    pub client: IpAddr,
    pub operation: Option<String>,
    pub status: u16,
    pub code: Option<u8>,
    /// The key's id.
    pub key: Option<String>,
    pub cache: Option<String>,
    pub over_limit: Option<String>,
    pub over_candidate: bool,
    pub took_us: u64,
    pub request_id: String,
    pub tier: Option<String>,
    pub upstream: Option<String>,
    pub upstream_us: Option<u64>,
    pub config: Option<String>,
}

impl From<&Outcome> for AccessLine {
    fn from(outcome: &Outcome) -> Self {
        AccessLine {
            time: outcome.time(),
            client: outcome.client,
            operation: outcome.operation.map(|operation| operation.name().to_owned()),
            status: outcome.status,
            code: outcome.code,
            key: outcome.key.as_deref().map(str::to_owned),
            cache: outcome.cache.map(|cache| cache.name().to_owned()),
            over_limit: outcome.over_limit.map(str::to_owned),
            over_candidate: outcome.over_candidate,
            took_us: micros(outcome.took),
            request_id: outcome.id.to_string(),
            tier: outcome.tier.as_deref().map(str::to_owned),
            upstream: outcome.upstream.as_deref().map(str::to_owned),
            upstream_us: outcome.upstream_took.map(micros),
            config: Some(outcome.config.to_string()),
        }
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

impl AccessLine {
    /// The access line in `line`, if it has one and that is about the request `id`.
    pub fn of_request(line: &str, id: &str) -> Option<AccessLine> {
        let found = AccessLine::from_text(line).or_else(|| AccessLine::from_json(line))?;
        (found.request_id == id).then(|| found.cleaned())
    }

    /// Several braces are tried: what precedes the object may have some.
    fn from_json(line: &str) -> Option<AccessLine> {
        const MAX_BRACES: usize = 8;
        let parse = |at| serde_json::Deserializer::from_str(&line[at..]).into_iter().next()?.ok();
        line.match_indices('{').take(MAX_BRACES).find_map(|(at, _)| parse(at))
    }

    fn from_text(line: &str) -> Option<AccessLine> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let at = words.windows(6).position(|w| is_time(w[0]) && w[5].starts_with("key="))?;
        let [time, client, operation, status, code] = words[at..at + 5].try_into().ok()?;
        let named = |name: &str| words[at + 5..].iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let text = |name: &str| named(name).filter(|value| *value != "-").map(str::to_owned);
        // The only value that may have a space in it, and is in quotes then.
        let quoted = || Some(line.split_once(" upstream=\"")?.1.split_once('"')?.0.to_owned());
        Some(AccessLine {
            time: time.to_owned(),
            client: client.parse().ok()?,
            operation: (operation != "-").then(|| operation.to_owned()),
            status: status.parse().ok()?,
            code: if code == "-" { None } else { Some(code.parse().ok()?) },
            key: text("key"),
            cache: text("cache"),
            over_limit: text("over_limit"),
            over_candidate: words.contains(&"over_candidate"),
            took_us: named("took_us")?.parse().ok()?,
            request_id: named("id")?.to_owned(),
            tier: text("tier"),
            upstream: quoted().or_else(|| text("upstream")),
            upstream_us: named("upstream_us").and_then(|us| us.parse().ok()),
            config: text("config"),
        })
    }

    fn cleaned(mut self) -> AccessLine {
        for text in [&mut self.time, &mut self.request_id] {
            *text = printable(text);
        }
        let others = [
            &mut self.operation,
            &mut self.key,
            &mut self.cache,
            &mut self.over_limit,
            &mut self.tier,
            &mut self.upstream,
            &mut self.config,
        ];
        for text in others.into_iter().flatten() {
            *text = printable(text);
        }
        self
    }
}

fn is_time(word: &str) -> bool {
    word.parse::<jiff::Timestamp>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::CacheUse;
    use crate::wire::{Operation, RequestId};

    fn outcome(upstream: Option<&str>) -> Outcome {
        Outcome {
            unix_ms: 1_790_000_000_123,
            client: [10, 0, 0, 1].into(),
            operation: Some(Operation::SetPoints),
            status: 502,
            code: Some(20),
            key: Some("k1".into()),
            cache: Some(CacheUse::Write),
            over_limit: Some("rate"),
            over_candidate: true,
            took: std::time::Duration::from_micros(42),
            id: RequestId::random(),
            tier: Some("free".into()),
            upstream: upstream.map(Into::into),
            upstream_took: upstream.map(|_| std::time::Duration::from_micros(17)),
            config: Default::default(),
            #[cfg(feature = "otlp")]
            span: None,
        }
    }

    #[test]
    fn both_formats_say_the_same_whatever_precedes_them() {
        for upstream in [None, Some("http://10.0.0.7:3000"), Some("http://origin.example:80 (10.1.0.1:80)")] {
            let outcome = outcome(upstream);
            let id = outcome.id.to_string();
            let [text, json] = [false, true].map(|json| {
                let mut line = "Nov 22 15:50:33 host {guildgate}[7]: ".to_owned();
                outcome.write(json, &mut line);
                AccessLine::of_request(&line, &id).unwrap_or_else(|| panic!("{line}"))
            });
            assert_eq!((&text, &json), (&AccessLine::from(&outcome), &text));
            assert_eq!((text.upstream.as_deref(), text.code, text.over_candidate), (upstream, Some(20), true));
        }
    }

    #[test]
    fn a_line_of_an_older_version_is_read_and_other_lines_are_not() {
        let line = "2026-09-21T14:13:20.123Z 10.0.0.1 - 404 10 key=- cache=- took_us=9 id=abc";
        let read = AccessLine::of_request(line, "abc").unwrap();
        assert_eq!((read.operation, read.key, read.tier, read.config), (None, None, None, None));
        let others = [
            "2026-09-21T14:13:20.123Z WARN request to upstream failed request_id=abc upstream=http://x",
            "2026-09-21T14:13:20.123Z 10.0.0.1 - 404 10 key=- cache=- took_us=9 id=abcd",
            "2026-09-21T14:13:20.123Z 10.0.0.1 - xyz 10 key=- cache=- took_us=9 id=abc",
            r#"{"request_id":"abc"}"#,
            "",
        ];
        assert_eq!(others.map(|line| AccessLine::of_request(line, "abc")), [const { None }; 5]);
    }

    #[test]
    fn what_would_control_a_terminal_is_escaped() {
        let line = "2026-09-21T14:13:20.123Z 10.0.0.1 get\x1b[31m 404 10 key=k\u{202e}1 cache=- took_us=9 id=abc";
        let read = AccessLine::of_request(line, "abc").unwrap();
        assert_eq!(read.operation.unwrap(), "get\\u{1b}[31m");
        assert_eq!(read.key.unwrap(), "k\\u{202e}1");
    }
}
