//! The text of `/metrics`: OpenMetrics as the crate writes it, or the older Prometheus text format, in which a counter's
//! family has the name of its samples and an `info` is a gauge.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// A format of `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    /// The format that a request's `Accept` asks for: Prometheus text unless OpenMetrics is named.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Format::OpenMetrics } else { Format::Prometheus }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Everything that `/metrics` shows.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Metrics {
    pub fn new(collectors: Vec<Box<dyn Collector>>) -> Self {
        let mut registry = Registry::default();
        collectors.into_iter().for_each(|collector| registry.register_collector(collector));
        Metrics(registry)
    }

    /// The value of a metric without labels.
    pub fn value(&self, name: &str) -> Option<f64> {
        let text = self.encode(Format::OpenMetrics);
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// The values of this moment.
    pub fn encode(&self, format: Format) -> String {
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.0) {
            tracing::error!(%error, "a metric cannot be encoded");
        }
        match format {
            Format::OpenMetrics => text,
            Format::Prometheus => prometheus_text(&text),
        }
    }
}

/// OpenMetrics as Prometheus text 0.0.4.
fn prometheus_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help: Option<(&str, &str)> = None;
    for line in open_metrics.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            // The type, which decides on the name, follows.
            ["#", "HELP", name, rest] => help = Some((name, rest)),
            ["#", "TYPE", name, kind] => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    kind => ("", kind),
                };
                if let Some((_, rest)) = help.take().filter(|(of, _)| *of == name) {
                    text += &format!("# HELP {name}{suffix} {rest}\n");
                }
                text += &format!("# TYPE {name}{suffix} {kind}\n");
            }
            ["#", "UNIT" | "EOF", ..] => {}
            _ => {
                text += line;
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counters_family_is_named_as_its_samples_in_prometheus_text() {
        let open = "# HELP a Some requests.\n# TYPE a counter\n# UNIT a x\na_total{b=\"c d\"} 1\n# HELP i Build.\n# TYPE i info\n\
                    i_info{v=\"1\"} 1\n# EOF\n";
        let text = "# HELP a_total Some requests.\n# TYPE a_total counter\na_total{b=\"c d\"} 1\n# HELP i_info Build.\n\
                    # TYPE i_info gauge\ni_info{v=\"1\"} 1\n";
        assert_eq!(prometheus_text(open), text);
    }
}
