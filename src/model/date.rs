//! Dates as people write and read them (RFC 3339). Everywhere else a point in time is in Unix seconds. Pure.

use chrono::{DateTime, SecondsFormat};

/// The last second that a date can express, 9999-12-31T23:59:59Z: a year has four digits (RFC 3339).
pub const LATEST_DATE: i64 = 253_402_300_799;

/// Unix seconds as a date in UTC; as a number where no date can express them.
pub fn date_of(unix: i64) -> String {
    match DateTime::from_timestamp_secs(unix) {
        Some(time) if unix <= LATEST_DATE => time.to_rfc3339_opts(SecondsFormat::Secs, true),
        _ => unix.to_string(),
    }
}

/// The Unix seconds of a day (its first second in UTC) or of a date with time and offset; a fraction of a second is
/// rounded up.
pub fn unix_of(date: &str) -> Option<i64> {
    let first_second = format!("{date}T00:00:00Z");
    let parsed = DateTime::parse_from_rfc3339(date).or_else(|_| DateTime::parse_from_rfc3339(&first_second));
    parsed.ok().map(|time| time.timestamp() + i64::from(time.timestamp_subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_its_first_second_and_a_time_has_its_offset() {
        for (text, expected) in [
            ("2026-12-24", 1_798_070_400),
            ("2026-12-24T00:00:00Z", 1_798_070_400),
            ("2026-12-24T01:00:00+01:00", 1_798_070_400),
            ("2026-12-24T00:00:00.001Z", 1_798_070_401),
            ("2026-12-24T23:59:00+23:59", 1_798_070_400),
            ("9999-12-31T23:59:59Z", LATEST_DATE),
        ] {
            assert_eq!(unix_of(text), Some(expected), "{text}");
        }
        assert_eq!((date_of(1_798_070_400), date_of(i64::MAX)), ("2026-12-24T00:00:00Z".into(), i64::MAX.to_string()));
        assert_eq!(date_of(LATEST_DATE), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in ["2026-12-24T00:00:00+24:00", "2026-12-24T00:00:00-25:00", "2026-12-24T00:00", "10000-01-01"] {
            assert_eq!(unix_of(text), None, "{text}");
        }
        for text in ["2026-12-32", "2026-02-30", "2026-12-24T18:00:00", "24-12-2026", "2026-12", "tomorrow-", "--"] {
            assert_eq!(unix_of(text), None, "{text}");
        }
    }
}
