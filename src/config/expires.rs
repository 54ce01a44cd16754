//! When something ends, as people type it: a point in time, or how long from now.

use std::str::FromStr;

use super::leaf::HumanDuration;
use crate::model::{LATEST_DATE, date_of, unix_of};

/// An expiry as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expires {
    /// Unix seconds.
    At(i64),
    /// Seconds from now.
    In(i64),
}

/// An expiry as typed, or `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiresOrNever {
    At(Expires),
    Never,
}

/// The forms in which an expiry is typed.
const USAGE: &str = "an end is a while from now such as 90d, 24h, 15m or 90s, a day such as 2026-12-24 (from its first \
    second on, UTC), a time such as 2026-12-24T18:00:00Z, or Unix seconds; the latest is 9999-12-31T23:59:59Z";

impl Expires {
    /// In Unix seconds, as is `now`.
    fn unix(self, now: i64) -> i64 {
        match self {
            Expires::At(seconds) => seconds,
            Expires::In(seconds) => now.saturating_add(seconds),
        }
    }

    /// In Unix seconds, if it is after `now` and not after the last second of the year 9999. The error continues the
    /// setting's name.
    pub fn in_future(self, now: i64) -> Result<i64, String> {
        let unix = self.unix(now);
        if unix > LATEST_DATE {
            return Err(format!("is too late: the latest end is {}", date_of(LATEST_DATE)));
        }
        if unix > now { Ok(unix) } else { Err(format!("is {}, which is not in the future", date_of(unix))) }
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

impl FromStr for ExpiresOrNever {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(ExpiresOrNever::Never),
            time => time.parse().map(ExpiresOrNever::At).map_err(|usage: &str| format!("{usage}, or never")),
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
    fn a_time_in_the_past_is_refused_with_its_date() {
        assert_eq!(Expires::In(1).in_future(1000), Ok(1001));
        for past in [Expires::At(1000), Expires::At(0), Expires::In(0)] {
            assert!(past.in_future(1000).is_err_and(|e| e.contains("1970-01-01T00:")));
        }
    }

    #[test]
    fn a_time_after_the_latest_date_is_refused() {
        assert_eq!(Expires::At(LATEST_DATE).in_future(1000), Ok(LATEST_DATE));
        for late in
            [Expires::At(LATEST_DATE + 1), Expires::In(LATEST_DATE), Expires::At(i64::MAX), Expires::In(i64::MAX)]
        {
            let refused = late.in_future(1000);
            assert!(refused.is_err_and(|e| e.contains("the latest end is 9999-12-31T23:59:59Z")));
        }
    }

    #[test]
    fn a_text_that_is_not_a_time_is_refused() {
        for text in ["", "d", "-1", "1y", "1 d", "1.5h", "99999999999999999999", "9223372036854775807d", "٣d"] {
            assert!(text.parse::<Expires>().is_err(), "{text}");
        }
    }

    #[test]
    fn never_is_accepted_only_where_it_is_allowed() {
        assert_eq!("never".parse::<ExpiresOrNever>(), Ok(ExpiresOrNever::Never));
        assert_eq!("90s".parse::<ExpiresOrNever>(), Ok(ExpiresOrNever::At(Expires::In(90))));
        assert!("never".parse::<Expires>().is_err());
        for text in ["Never", "", "1y"] {
            assert!(text.parse::<ExpiresOrNever>().is_err_and(|usage| usage.ends_with("or never")), "{text}");
        }
    }
}
