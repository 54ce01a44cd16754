//! Bars that show on a terminal how far a command is (indicatif). Elsewhere nothing is shown.

use indicatif::{ProgressBar, ProgressStyle};

const BYTES: &str = "{prefix}{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
const RECORDS: &str = "{prefix}{bar:30} {human_pos}/{human_len} records, {per_sec}, {eta} left";

/// A bar for this many bytes. It is hidden if stderr is no terminal, and cleared when it is dropped.
pub(super) fn byte_bar(total: u64) -> ProgressBar {
    bar(BYTES, total)
}

/// As [`byte_bar`], for records.
pub(super) fn record_bar(total: u64) -> ProgressBar {
    bar(RECORDS, total)
}

fn bar(template: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style)
}
