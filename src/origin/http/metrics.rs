//! What `/metrics` and the dashboard show of an HTTP origin: its permits, and each of its backends.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::HttpOrigin;
use super::backend::Backend;
use crate::origin::UpstreamStatus;
use crate::telemetry::metrics::{DescriptorEncoder, counters, gauge, gauges, histograms};

impl HttpOrigin {
    pub(in crate::origin) fn upstreams(&self) -> Vec<UpstreamStatus> {
        let status = |b: &Arc<Backend>| UpstreamStatus {
            name: b.name.to_string(),
            is_up: b.health.is_up(self.settings.health.is_some()),
            in_flight: b.in_flight.load(Ordering::Relaxed) as u64,
            failures: b.failures.load(Ordering::Relaxed),
        };
        self.backends.load().iter().map(status).collect()
    }

    pub(in crate::origin) fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (held, waiting) = self.permits.counts();
        gauge(encoder, "guildgate_origin_in_flight", "Requests that have a permit at the origin", held as f64)?;
        gauge(encoder, "guildgate_origin_in_flight_max", "origin.max_in_flight", self.settings.max_in_flight as f64)?;
        gauge(encoder, "guildgate_origin_waiting", "Requests that wait for a permit at the origin", waiting as f64)?;
        let (backends, upstreams) = (self.backends.load(), self.upstreams());
        let label = |name: &str| [("upstream", name.to_owned())];
        let up = upstreams.iter().map(|u| (label(&u.name), if u.is_up { 1.0 } else { 0.0 }));
        let help = "1: it answers; 0: its last requests or health checks failed";
        gauges(encoder, "guildgate_upstream_up", help, up)?;
        let in_flight = upstreams.iter().map(|u| (label(&u.name), u.in_flight as f64));
        gauges(encoder, "guildgate_upstream_in_flight", "Requests under way at the upstream", in_flight)?;
        let failures = upstreams.iter().map(|u| (label(&u.name), u.failures));
        let help = "Requests that the upstream did not answer, or not whole";
        counters(encoder, "guildgate_upstream_failures", help, failures)?;
        let answers = backends.iter().map(|b| (label(&b.name), &b.answers));
        let help = "How long the upstream took to answer, with the connection if a new one was needed";
        histograms(encoder, "guildgate_upstream_duration_seconds", help, answers)
    }
}
