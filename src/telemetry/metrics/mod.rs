//! What `/metrics` shows (contract section 4). Requests are counted here, each thread in counters of its own; what
//! other parts of the process know is read when it is asked for: each of them is a [`Collector`] of the registry.

mod encode;
mod requests;
mod text;

pub use encode::{counter, counters, gauge, gauges, histograms, latency};
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::DescriptorEncoder;
pub use prometheus_client::metrics::histogram::Histogram;
pub use requests::{RequestMetrics, RequestTotals};
pub use text::{Format, Metrics};
