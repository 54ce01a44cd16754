//! Words for counts in messages.

/// A count with its noun: `1 key`, `2 keys`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The verb for a count: `1 was`, `2 were`.
pub fn was(count: u64) -> &'static str {
    if count == 1 { "was" } else { "were" }
}
