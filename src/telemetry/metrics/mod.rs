//! What `/metrics` shows (contract section 4). Requests are counted here, each thread in counters of its own; what
//! other parts of the process know is read when it is asked for: each of them is a [`Collector`] of the registry.

mod encode;
mod requests;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

pub use encode::{counter, counters, gauge, gauges, histograms, latency};
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::DescriptorEncoder;
pub use prometheus_client::metrics::histogram::Histogram;
pub use requests::{RequestMetrics, RequestTotals};

/// The type of the content of `/metrics`.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything that `/metrics` shows.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Metrics {
    pub fn new(collectors: Vec<Box<dyn Collector>>) -> Self {
        let mut registry = Registry::default();
        collectors.into_iter().for_each(|collector| registry.register_collector(collector));
        Metrics(registry)
    }

    /// The value of a metric without labels. Everything is read for it.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.encode().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// The values of this moment.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.0) {
            tracing::error!(%error, "a metric cannot be encoded");
        }
        text
    }
}
