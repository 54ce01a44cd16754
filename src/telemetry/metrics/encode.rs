//! Encodes the values of a collector: one family of metrics in one call.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;

use super::requests::BOUNDS;

/// Exemplars are not used, but the encoder wants the type of their labels.
pub(super) type NoLabels = [(&'static str, &'static str); 0];

/// A counter without labels. `name` is without `_total`, which is added.
pub fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: impl EncodeCounterValue,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    family.encode_counter::<NoLabels, _, f64>(&value, None)
}

/// A counter for each set of labels.
pub fn counters<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in values {
        family.encode_family(&labels)?.encode_counter::<NoLabels, u64, f64>(&value, None)?;
    }
    Ok(())
}

/// A gauge without labels.
pub fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

/// A gauge for each set of labels.
pub fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        family.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

/// A histogram of latency that requests of several threads share: for what the origin or the store does, not for hits.
pub fn latency() -> Histogram {
    Histogram::new(BOUNDS.iter().map(std::time::Duration::as_secs_f64))
}

/// A histogram for each set of labels.
pub fn histograms<'h, L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, &'h Histogram)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, histogram) in values {
        histogram.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
