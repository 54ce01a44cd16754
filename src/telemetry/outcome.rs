//! What the access log has of one request, and its line as text or as JSON. It holds a key's id and never a key or a
//! body (guarantee 9). Other programs read both formats, and a changed field name would break them. Plain data: `edge`
//! fills it in and `access` writes it.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::config::ConfigHash;
use crate::model::KeyId;
use crate::wire::{Operation, RequestId};

/// What became of one request. The JSON line has these fields in this order.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// When it was answered, in milliseconds since the Unix epoch.
    #[serde(rename = "time", serialize_with = "serialize_time")]
    pub unix_ms: i64,
    pub client: IpAddr,
    #[serde(serialize_with = "serialize_operation")]
    pub operation: Option<Operation>,
    pub status: u16,
    /// The code of the refusal.
    pub code: Option<u8>,
    #[serde(serialize_with = "serialize_key")]
    pub key: Option<KeyId>,
    #[serde(serialize_with = "serialize_cache")]
    pub cache: Option<CacheUse>,
    /// The limit that it exceeded, whether it was refused or, in shadow, not.
    pub over_limit: Option<&'static str>,
    /// Whether it exceeded the candidate limit.
    pub over_candidate: bool,
    /// From the arrival of the bytes that held its header to its answer.
    #[serde(rename = "took_us", serialize_with = "serialize_micros")]
    pub took: Duration,
    #[serde(rename = "request_id", serialize_with = "serialize_text")]
    pub id: RequestId,
    /// The tier in force for the key.
    #[serde(serialize_with = "serialize_key")]
    pub tier: Option<Arc<str>>,
    /// The upstream of an HTTP origin that was asked, the last one if it was several.
    #[serde(serialize_with = "serialize_key")]
    pub upstream: Option<Arc<str>>,
    /// How long that upstream took, with the connection if a new one was needed.
    #[serde(rename = "upstream_us", serialize_with = "serialize_some_micros")]
    pub upstream_took: Option<Duration>,
    /// Of the configuration under which it was answered.
    #[serde(serialize_with = "serialize_text")]
    pub config: ConfigHash,
    /// The span of a sampled request.
    #[cfg(feature = "otlp")]
    #[serde(skip)]
    pub span: Option<Arc<crate::wire::RequestSpan>>,
}

/// An upstream that was asked for an answer, and how long it took.
#[derive(Clone, Debug)]
pub struct UpstreamUse {
    /// As the metrics name it.
    pub name: Arc<str>,
    pub took: Duration,
}

/// How the cache was used for an answer, as a word of the access log and a label of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    Hit,
    /// A stale answer, while the origin is asked for a new one.
    WhileRevalidating,
    /// A stale answer, because the origin failed.
    IfError,
    /// The origin was asked, because the cached answer was too old.
    Stale,
    /// The origin was asked, because there was no cached answer.
    Miss,
    /// The request waited for the answer to another caller.
    Collapsed,
    /// A write, which always goes to the origin.
    Write,
    /// The request was refused before the cache was looked up.
    Refused,
}

impl CacheUse {
    /// All of them, in the order of their [`CacheUse::index`].
    pub const ALL: [CacheUse; 8] = [
        CacheUse::Hit,
        CacheUse::WhileRevalidating,
        CacheUse::IfError,
        CacheUse::Stale,
        CacheUse::Miss,
        CacheUse::Collapsed,
        CacheUse::Write,
        CacheUse::Refused,
    ];

    pub const fn index(self) -> usize {
        self as usize
    }

    pub const fn name(self) -> &'static str {
        match self {
            CacheUse::Hit => "hit",
            CacheUse::WhileRevalidating => "stale-while-revalidate",
            CacheUse::IfError => "stale-if-error",
            CacheUse::Stale => "stale",
            CacheUse::Miss => "miss",
            CacheUse::Collapsed => "collapsed",
            CacheUse::Write => "method",
            CacheUse::Refused => "refused",
        }
    }
}

fn rfc3339(unix_ms: i64) -> String {
    format!("{:.3}", jiff::Timestamp::from_millisecond(unix_ms).unwrap_or_default())
}

pub(super) fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

fn serialize_time<S: Serializer>(unix_ms: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&rfc3339(*unix_ms))
}

fn serialize_micros<S: Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(micros(*took))
}

fn serialize_some_micros<S: Serializer>(took: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    took.map(micros).serialize(serializer)
}

fn serialize_key<S: Serializer>(key: &Option<KeyId>, serializer: S) -> Result<S::Ok, S::Error> {
    key.as_deref().serialize(serializer)
}

fn serialize_operation<S: Serializer>(operation: &Option<Operation>, serializer: S) -> Result<S::Ok, S::Error> {
    operation.map(Operation::name).serialize(serializer)
}

fn serialize_cache<S: Serializer>(cache: &Option<CacheUse>, serializer: S) -> Result<S::Ok, S::Error> {
    cache.map(CacheUse::name).serialize(serializer)
}

fn serialize_text<S: Serializer>(text: &impl std::fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(text)
}

impl Outcome {
    /// When it was answered, in RFC 3339.
    pub fn time(&self) -> String {
        rfc3339(self.unix_ms)
    }

    /// Appends the access line, newline included.
    pub fn write(&self, json: bool, out: &mut String) {
        if json {
            match serde_json::to_string(self) {
                Ok(text) => out.push_str(&text),
                Err(error) => tracing::error!(%error, "an access line could not be written as JSON"),
            }
        } else {
            // A String takes every write.
            let _ = self.write_text(out);
        }
        out.push('\n');
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let operation = self.operation.map_or("-", Operation::name);
        write!(out, "{} {} {operation} {} ", rfc3339(self.unix_ms), self.client, self.status)?;
        match self.code {
            Some(code) => write!(out, "{code:02}")?,
            None => out.push('-'),
        }
        let (key, cache) = (self.key.as_deref().unwrap_or("-"), self.cache.map_or("-", CacheUse::name));
        write!(out, " key={key} cache={cache} took_us={} id={}", micros(self.took), self.id)?;
        if let Some(limit) = self.over_limit {
            write!(out, " over_limit={limit}")?;
        }
        if self.over_candidate {
            out.push_str(" over_candidate");
        }
        if let Some(tier) = &self.tier {
            write!(out, " tier={tier}")?;
        }
        if let Some(upstream) = &self.upstream {
            // An upstream that has a name is followed by its address in parentheses.
            let quote = if upstream.contains(' ') { "\"" } else { "" };
            write!(out, " upstream={quote}{upstream}{quote}")?;
        }
        if let Some(took) = self.upstream_took {
            write!(out, " upstream_us={}", micros(took))?;
        }
        write!(out, " config={}", self.config)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An outcome whose fields all have a value, but for the use of the cache.
    pub(in crate::telemetry) fn example() -> Outcome {
        Outcome {
            unix_ms: 1_790_000_000_123,
            client: [10, 0, 0, 1].into(),
            operation: Some(Operation::GetPoints),
            status: 429,
            code: Some(12),
            key: Some("k1".into()),
            cache: None,
            over_limit: Some("rate"),
            over_candidate: true,
            took: Duration::from_micros(42),
            id: RequestId::random(),
            tier: Some("free".into()),
            upstream: Some("http://origin.example:80 (10.1.0.1:80)".into()),
            upstream_took: Some(Duration::from_micros(17)),
            config: ConfigHash::default(),
            #[cfg(feature = "otlp")]
            span: None,
        }
    }

    #[test]
    fn a_text_line_reads_from_left_to_right() {
        let (o, mut line) = (example(), String::new());
        o.write(false, &mut line);
        let id = o.id;
        assert_eq!(
            line,
            format!(
                "2026-09-21T14:13:20.123Z 10.0.0.1 getPoints 429 12 key=k1 cache=- took_us=42 id={id} over_limit=rate over_candidate \
                 tier=free upstream=\"http://origin.example:80 (10.1.0.1:80)\" upstream_us=17 config={}\n",
                o.config
            )
        );
    }

    #[test]
    fn a_json_line_is_one_object() {
        let (o, mut line) = (example(), String::new());
        o.write(true, &mut line);
        let value: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        assert_eq!(value["key"], "k1");
        assert_eq!(value["code"], 12);
        assert_eq!((&value["over_limit"], &value["over_candidate"]), (&"rate".into(), &true.into()));
        assert_eq!(value["took_us"], 42);
        assert_eq!((&value["tier"], &value["upstream_us"]), (&"free".into(), &17.into()));
        assert_eq!(value["upstream"], "http://origin.example:80 (10.1.0.1:80)");
        assert!(value["config"].is_string());
    }
}
