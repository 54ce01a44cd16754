//! `--expires`: a point in time, or how long from now; and how points in time are printed.

use std::str::FromStr;

use jiff::SignedDuration;
use jiff::civil::{DateTime, Time};
use jiff::fmt::temporal::Pieces;

use super::error::CommandError;

/// Where Unix seconds begin.
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// When something ends, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expires {
    /// Unix seconds.
    At(i64),
    /// Seconds from now.
    In(i64),
}

/// When something that may also last for ever ends, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    At(Expires),
    Never,
}

/// The latest end, 9999-12-31T23:59:59Z: a date has four digits for its year (RFC 3339).
const LATEST: i64 = 253_402_300_799;

/// How an end is typed.
const USAGE: &str = "an end is a while from now such as 90d, 24h, 15m or 90s, a day such as 2026-12-24 (from its first \
    second on, UTC), a time such as 2026-12-24T18:00:00Z, or Unix seconds; the latest is 9999-12-31T23:59:59Z";

impl Expires {
    /// In Unix seconds, `now` being so too.
    pub fn unix(self, now: i64) -> i64 {
        match self {
            Expires::At(seconds) => seconds,
            Expires::In(seconds) => now.saturating_add(seconds),
        }
    }

    /// In Unix seconds, if it is after `now` and not after the last second of the year 9999; where it is not in the future, `otherwise` tells what would come of it.
    pub fn still_to_come(self, now: i64, otherwise: &str) -> Result<i64, CommandError> {
        let unix = self.unix(now);
        if unix > LATEST {
            return Err(CommandError::new(format!("--expires is too late: the latest end is {}", date(LATEST))));
        }
        if unix > now {
            return Ok(unix);
        }
        Err(CommandError::new(format!("--expires is {}, which is not in the future: {otherwise}", date(unix))))
    }
}

/// A moment as people read it: RFC 3339, UTC.
pub fn date(unix: i64) -> String {
    // No Timestamp: that ends 26 hours before the year does.
    match EPOCH.checked_add(SignedDuration::from_secs(unix)) {
        Ok(time) => format!("{time}Z"),
        // Beyond the year 9999, or before the year -9999.
        Err(_) => unix.to_string(),
    }
}

impl FromStr for Expires {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if text.contains('-') {
            return moment(text).map(Expires::At).ok_or(USAGE);
        }
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(USAGE);
        }
        let count: i64 = digits.parse().map_err(|_| USAGE)?;
        let seconds = match &text[digits.len()..] {
            "" => return Ok(Expires::At(count)),
            // Rounded up: what is to last a while lasts it.
            "ms" => Some(count / 1000 + i64::from(count % 1000 > 0)),
            "s" => Some(count),
            "m" => count.checked_mul(60),
            "h" => count.checked_mul(3600),
            "d" => count.checked_mul(86_400),
            _ => None,
        };
        seconds.map(Expires::In).ok_or(USAGE)
    }
}

/// A day, which is its first second in UTC, or a time by RFC 3339; a part of a second is a whole one.
fn moment(text: &str) -> Option<i64> {
    let pieces = Pieces::parse(text).ok()?;
    let (time, offset) = match (pieces.time(), pieces.to_numeric_offset()) {
        (None, None) if text.len() == "2026-12-24".len() => (Time::midnight(), 0),
        // RFC 3339 has hours from 0 to 23 in an offset too.
        (Some(time), Some(offset)) if offset.seconds().abs() < 86_400 => (time, i64::from(offset.seconds())),
        _ => return None,
    };
    let since = pieces.date().to_datetime(time).duration_since(EPOCH);
    Some(since.as_secs() - offset + i64::from(since.subsec_nanos() > 0))
}

impl FromStr for Ends {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Ends::Never),
            time => time.parse().map(Ends::At).map_err(|usage: &str| format!("{usage}, or never")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_unix_seconds_and_one_with_a_unit_counts_from_now() {
        let cases =
            [("1790000000", 1_790_000_000), ("90s", 1090), ("2m", 1120), ("1h", 4600), ("1d", 87_400), ("1ms", 1001)];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Expires>().map(|e| e.unix(1000)), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_day_is_its_first_second_and_a_time_has_its_offset() {
        for (text, expected) in [
            ("2026-12-24", 1_798_070_400),
            ("2026-12-24T00:00:00Z", 1_798_070_400),
            ("2026-12-24T01:00:00+01:00", 1_798_070_400),
            ("2026-12-24T00:00:00.001Z", 1_798_070_401),
            ("2026-12-24T23:59:00+23:59", 1_798_070_400),
            ("9999-12-31T23:59:59Z", LATEST),
        ] {
            assert_eq!(text.parse(), Ok(Expires::At(expected)), "{text}");
        }
        assert_eq!((date(1_798_070_400), date(i64::MAX)), ("2026-12-24T00:00:00Z".into(), i64::MAX.to_string()));
        assert_eq!(date(LATEST), "9999-12-31T23:59:59Z");
        for text in ["2026-12-24T00:00:00+24:00", "2026-12-24T00:00:00-25:00", "2026-12-24T00:00", "10000-01-01"] {
            assert_eq!(text.parse::<Expires>(), Err(USAGE), "{text}");
        }
        for text in ["2026-12-32", "2026-02-30", "2026-12-24T18:00:00", "24-12-2026", "2026-12", "tomorrow-", "--"] {
            assert_eq!(text.parse::<Expires>(), Err(USAGE), "{text}");
        }
    }

    #[test]
    fn what_has_passed_is_refused_by_its_date() {
        assert_eq!(Expires::In(1).still_to_come(1000, "it would end"), Ok(1001));
        for past in [Expires::At(1000), Expires::At(0), Expires::In(0)] {
            assert!(past.still_to_come(1000, "it would end").is_err_and(|e| e.message.contains("1970-01-01T00:")));
        }
    }

    #[test]
    fn what_is_later_than_a_date_can_be_is_refused() {
        assert_eq!(Expires::At(LATEST).still_to_come(1000, "it would end"), Ok(LATEST));
        for late in [Expires::At(LATEST + 1), Expires::In(LATEST), Expires::At(i64::MAX), Expires::In(i64::MAX)] {
            let refused = late.still_to_come(1000, "it would end");
            assert!(refused.is_err_and(|e| e.message.contains("the latest end is 9999-12-31T23:59:59Z")));
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "d", "-1", "1y", "1 d", "1.5h", "99999999999999999999", "9223372036854775807d", "٣d"] {
            assert!(text.parse::<Expires>().is_err(), "{text}");
        }
    }

    #[test]
    fn never_is_a_time_only_for_what_may_last_for_ever() {
        assert_eq!("never".parse::<Ends>(), Ok(Ends::Never));
        assert_eq!("90s".parse::<Ends>(), Ok(Ends::At(Expires::In(90))));
        assert!("never".parse::<Expires>().is_err());
        for text in ["Never", "", "1y"] {
            assert!(text.parse::<Ends>().is_err_and(|usage| usage.ends_with("or never")), "{text}");
        }
    }
}
