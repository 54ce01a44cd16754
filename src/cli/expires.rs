//! `--expires`: a point in time, or how long from now.

use std::str::FromStr;

use super::error::CommandError;
use crate::config::leaf::HumanDuration;
use crate::model::{LATEST_DATE, date_of, unix_of};

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

    /// In Unix seconds, if it is after `now` and not after the last second of the year 9999; where it is not in the
    /// future, `otherwise` tells what would come of it.
    pub fn still_to_come(self, now: i64, otherwise: &str) -> Result<i64, CommandError> {
        let unix = self.unix(now);
        if unix > LATEST_DATE {
            return Err(CommandError::new(format!(
                "--expires is too late: the latest end is {}",
                date_of(LATEST_DATE)
            )));
        }
        if unix > now {
            return Ok(unix);
        }
        Err(CommandError::new(format!("--expires is {}, which is not in the future: {otherwise}", date_of(unix))))
    }
}

impl FromStr for Expires {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if text.contains('-') {
            return unix_of(text).map(Expires::At).ok_or(USAGE);
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().map(Expires::At).map_err(|_| USAGE);
        }
        let HumanDuration(duration) = HumanDuration::of_any_length(text).ok_or(USAGE)?;
        // Rounded up to whole seconds, so that nothing ends early.
        let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
        i64::try_from(seconds).map(Expires::In).map_err(|_| USAGE)
    }
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
    fn a_date_is_its_unix_seconds() {
        assert_eq!("2026-12-24".parse(), Ok(Expires::At(1_798_070_400)));
        assert_eq!("2026-12-24T00:00:00+24:00".parse::<Expires>(), Err(USAGE));
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
        assert_eq!(Expires::At(LATEST_DATE).still_to_come(1000, "it would end"), Ok(LATEST_DATE));
        for late in
            [Expires::At(LATEST_DATE + 1), Expires::In(LATEST_DATE), Expires::At(i64::MAX), Expires::In(i64::MAX)]
        {
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
