//! What `/metrics` shows of the process itself: version, age, memory, open files, and reloads. The names that begin with
//! `process_` are those that Prometheus's own libraries use.

use std::fmt;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::param::page_size;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::admin::{ProcessState, Reloads};
use crate::store::Store;
use crate::telemetry::metrics::{Collector, DescriptorEncoder, counter, counters, gauge, gauges};

/// Reads what is known of the process.
#[derive(Debug)]
pub(super) struct ProcessMetrics {
    /// When it was, in Unix seconds.
    pub(super) started: i64,
    pub(super) state: Arc<ProcessState>,
    pub(super) store: Option<Arc<Store>>,
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let version = [([("version", env!("CARGO_PKG_VERSION"))], 1.0)];
        gauges(encoder, "guildgate_build_info", "The version that runs", version)?;
        let config = [([("hash", self.state.config.read().loaded.config.hash.to_string())], 1.0)];
        gauges(encoder, "guildgate_config_info", "The hash of the configuration in force", config)?;
        let Reloads { accepted, rejected, since, .. } = &self.state.reloads;
        let results = [("accepted", accepted), ("rejected", rejected)];
        let reloads = results.map(|(result, n)| ([("result", result)], n.load(Ordering::Relaxed)));
        counters(encoder, "guildgate_config_reloads", "Reloads of gateway.toml; rejected files", reloads)?;
        let help = "Since when the configuration in force is, in Unix seconds";
        let since = since.load(Ordering::Relaxed);
        gauge(encoder, "guildgate_config_in_force_since_timestamp_seconds", help, since as f64)?;
        if let Some(store) = &self.store {
            let help = "1: the last write to the store failed, and none has succeeded since";
            let is_failing = store.write_fault().is_some();
            gauge(encoder, "guildgate_store_write_failing", help, f64::from(u8::from(is_failing)))?;
        }
        let help = "When the process started, in Unix seconds";
        gauge(encoder, "process_start_time_seconds", help, self.started as f64)?;
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
        counter(encoder, "process_cpu_seconds", "User and system time", tv_sec as f64 + tv_nsec as f64 / 1e9)?;
        if let Some(bytes) = resident_bytes() {
            gauge(encoder, "process_resident_memory_bytes", "Resident memory", bytes as f64)?;
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            gauge(encoder, "process_open_fds", "Open file descriptors", files.count() as f64)?;
        }
        Ok(())
    }
}

fn resident_bytes() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(page_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_uses_memory() {
        assert!(resident_bytes().unwrap() > 1 << 20);
    }
}
