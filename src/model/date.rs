//! Dates as people write and read them (RFC 3339). Everywhere else a point in time is in Unix seconds. Pure.

use jiff::SignedDuration;
use jiff::civil::{DateTime, Time};
use jiff::fmt::temporal::Pieces;

/// Unix second 0.
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// The last second that a date can express, 9999-12-31T23:59:59Z: a year has four digits (RFC 3339).
pub const LATEST_DATE: i64 = 253_402_300_799;

/// Unix seconds as a date in UTC.
pub fn date_of(unix: i64) -> String {
    // Not `Timestamp`, which ends 26 hours before the year 9999 does.
    match EPOCH.checked_add(SignedDuration::from_secs(unix)) {
        Ok(time) => format!("{time}Z"),
        // Beyond the year 9999, or before the year -9999.
        Err(_) => unix.to_string(),
    }
}

/// The Unix seconds of a day (its first second in UTC) or of a date with time and offset; a fraction of a second is
/// rounded up.
pub fn unix_of(date: &str) -> Option<i64> {
    let pieces = Pieces::parse(date).ok()?;
    let (time, offset) = match (pieces.time(), pieces.to_numeric_offset()) {
        (None, None) if date.len() == "2026-12-24".len() => (Time::midnight(), 0),
        // An offset is less than a day.
        (Some(time), Some(offset)) if offset.seconds().abs() < 86_400 => (time, i64::from(offset.seconds())),
        _ => return None,
    };
    let since = pieces.date().to_datetime(time).duration_since(EPOCH);
    Some(since.as_secs() - offset + i64::from(since.subsec_nanos() > 0))
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
