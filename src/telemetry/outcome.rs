//! What the access log tells of one request, and how it is written as a line of text or of JSON. It holds a key's id
//! and never a key or a body (guarantee 9). Other programs read both formats, and a changed field name would break
//! them. Plain data: it is filled in by `edge` and written by `access`.

use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use crate::model::KeyId;
use crate::wire::RequestId;

/// What became of one request: enough for the access log, and never a key or a body (guarantee 9).
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Milliseconds since the Unix epoch, when it was answered.
    pub unix_ms: i64,
    pub client: IpAddr,
    pub operation: Option<&'static str>,
    pub status: u16,
    /// The refusal's code.
    pub code: Option<u8>,
    pub key: Option<KeyId>,
    /// The part the cache had, in one word.
    pub cache: Option<&'static str>,
    /// The limit it was over, refused or (in shadow) not.
    pub over_limit: Option<&'static str>,
    /// Over the limit that is being tried out.
    pub over_candidate: bool,
    /// From the arrival of the bytes that held its header to its answer.
    pub took: Duration,
    pub id: RequestId,
}

/// The line as JSON names its fields.
#[derive(Serialize)]
struct Line<'o> {
    time: &'o str,
    client: IpAddr,
    operation: Option<&'static str>,
    status: u16,
    code: Option<u8>,
    key: Option<&'o str>,
    cache: Option<&'static str>,
    over_limit: Option<&'static str>,
    over_candidate: bool,
    took_us: u64,
    request_id: &'o str,
}

impl Outcome {
    /// Appends the access line, newline included.
    pub fn write(&self, json: bool, out: &mut String) {
        let time = jiff::Timestamp::from_millisecond(self.unix_ms).unwrap_or_default();
        let time = format!("{time:.3}");
        let took_us = u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX);
        let id = self.id.to_string();
        if json {
            let line = Line {
                time: &time,
                client: self.client,
                operation: self.operation,
                status: self.status,
                code: self.code,
                key: self.key.as_deref(),
                cache: self.cache,
                over_limit: self.over_limit,
                over_candidate: self.over_candidate,
                took_us,
                request_id: &id,
            };
            match serde_json::to_string(&line) {
                Ok(text) => out.push_str(&text),
                Err(error) => tracing::error!(%error, "an access line could not be written as JSON"),
            }
        } else {
            let operation = self.operation.unwrap_or("-");
            let key = self.key.as_deref().unwrap_or("-");
            let cache = self.cache.unwrap_or("-");
            let _ = write!(out, "{time} {} {operation} {} ", self.client, self.status);
            let _ = match self.code {
                Some(code) => write!(out, "{code:02}"),
                None => write!(out, "-"),
            };
            let _ = write!(out, " key={key} cache={cache} took_us={took_us} id={id}");
            if let Some(limit) = self.over_limit {
                let _ = write!(out, " over_limit={limit}");
            }
            if self.over_candidate {
                out.push_str(" over_candidate");
            }
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        Outcome {
            unix_ms: 1_790_000_000_123,
            client: [10, 0, 0, 1].into(),
            operation: Some("getPoints"),
            status: 429,
            code: Some(12),
            key: Some("k1".into()),
            cache: None,
            over_limit: Some("rate"),
            over_candidate: true,
            took: Duration::from_micros(42),
            id: RequestId::random(),
        }
    }

    #[test]
    fn a_text_line_reads_from_left_to_right() {
        let (o, mut line) = (outcome(), String::new());
        o.write(false, &mut line);
        let id = o.id;
        assert_eq!(
            line,
            format!(
                "2026-09-21T14:13:20.123Z 10.0.0.1 getPoints 429 12 key=k1 cache=- took_us=42 id={id} over_limit=rate over_candidate\n"
            )
        );
    }

    #[test]
    fn a_json_line_is_one_object() {
        let (o, mut line) = (outcome(), String::new());
        o.write(true, &mut line);
        let value: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        assert_eq!(value["key"], "k1");
        assert_eq!(value["code"], 12);
        assert_eq!((&value["over_limit"], &value["over_candidate"]), (&"rate".into(), &true.into()));
        assert_eq!(value["took_us"], 42);
    }
}
