use tracing_subscriber::filter::LevelFilter;

use crate::config::{Level, Log};

/// Sends the process's own log (not the access log) to stderr, as `[log]` says. The first call in
/// a process counts.
pub fn init(log: &Log) {
    let level = match log.level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    // Pingora, moka and refinery speak of their own life at info; an operator wants their worries.
    let quiet =
        ["pingora_core", "pingora_runtime", "refinery_core", "refinery"].map(|c| (c, LevelFilter::WARN.min(level)));
    let filter = tracing_subscriber::filter::Targets::new().with_default(level).with_targets(quiet);
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let set = if log.json {
        registry.with(layer.json()).try_init()
    } else {
        registry.with(layer.with_ansi(false).with_target(false)).try_init()
    };
    // Only tests start twice in one process; the first subscriber serves them all.
    let _ = set;
}
