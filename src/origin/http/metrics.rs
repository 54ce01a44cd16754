//! What `/metrics` and the dashboard show of an HTTP origin: its permits, and each of its backends.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::HttpOrigin;
use super::backend::Backend;
use crate::origin::{UpstreamState, UpstreamStatus};
use crate::telemetry::metrics::{DescriptorEncoder, counters, gauge, gauges, histograms};

impl HttpOrigin {
    pub(in crate::origin) fn upstreams(&self) -> Vec<UpstreamStatus> {
        let backends = self.backends.list();
        let status = |b: &Arc<Backend>| UpstreamStatus {
            name: b.to_string(),
            state: self.backends.state(b),
            in_flight: b.in_flight() as u64,
            failures: b.failures.load(Ordering::Relaxed),
        };
        backends.iter().map(status).collect()
    }

    pub(in crate::origin) fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (held, waiting) = self.permits.counts();
        gauge(encoder, "guildgate_origin_in_flight", "Requests that have a permit at the origin", held as f64)?;
        gauge(encoder, "guildgate_origin_in_flight_max", "origin.max_in_flight", self.settings.max_in_flight as f64)?;
        gauge(encoder, "guildgate_origin_waiting", "Requests that wait for a permit at the origin", waiting as f64)?;
        let backends = self.backends.list();
        let labelled: Vec<_> = backends.iter().map(|backend| ([("upstream", backend.to_string())], backend)).collect();
        let labels = |of: &[(&'static str, String); 1]| of.clone();
        gauges(
            encoder,
            "guildgate_upstream_up",
            "1: it answers; 0: its last requests or health checks failed",
            labelled.iter().map(|(label, b)| {
                let is_up = self.backends.state(b) == UpstreamState::Up;
                (labels(label), f64::from(u8::from(is_up)))
            }),
        )?;
        gauges(
            encoder,
            "guildgate_upstream_in_flight",
            "Requests under way at the upstream",
            labelled.iter().map(|(label, b)| (labels(label), b.in_flight() as f64)),
        )?;
        counters(
            encoder,
            "guildgate_upstream_failures",
            "Requests that the upstream did not answer, or not usably",
            labelled.iter().map(|(label, b)| (labels(label), b.failures.load(Ordering::Relaxed))),
        )?;
        histograms(
            encoder,
            "guildgate_upstream_duration_seconds",
            "How long the upstream took to answer, with the connection if a new one was needed",
            labelled.iter().map(|(label, b)| (labels(label), &b.answers)),
        )
    }
}
