//! Words for counts and times in messages.

use std::time::Duration;

/// A count with its noun: `1 key`, `2 keys`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A time with one digit after the point below ten seconds, and in one unit: `0.4 s`, `59 s`, `3 min`, `5 h`, `9 d`.
pub fn rough(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// The verb for a count: `1 was`, `2 were`.
pub fn was(count: u64) -> &'static str {
    if count == 1 { "was" } else { "were" }
}
