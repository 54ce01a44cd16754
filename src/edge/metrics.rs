//! What `/metrics` shows of connections and of the certificate.

use std::fmt;

use super::Edge;
use crate::telemetry::metrics::{Collector, DescriptorEncoder, counter, gauge};

impl Collector for Edge {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        gauge(encoder, "guildgate_connections", "Connections that are open", self.connections.open() as f64)?;
        let help = "Connections that were closed at accept, because there were too many";
        counter(encoder, "guildgate_connections_refused", help, self.connections.refused())?;
        let help = "Connections that were closed, because no PROXY header of a trusted proxy came in time";
        counter(encoder, "guildgate_proxy_headers_refused", help, self.connections.unproxied())?;
        if let Some(expires) = self.tls.as_ref().and_then(|tls| tls.certificate_expires()) {
            let help = "When the certificate expires, in Unix seconds";
            gauge(encoder, "guildgate_certificate_expires_timestamp_seconds", help, expires as f64)?;
        }
        Ok(())
    }
}
