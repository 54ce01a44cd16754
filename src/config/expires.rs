//! When something ends, as people type it: a point in time, or how long from now.

use std::str::FromStr;

use serde::Deserialize;

use super::leaf::HumanDuration;
use crate::json::Whole;
use crate::model::{LATEST_DATE, date_of, unix_of};

/// An end as it is typed; in JSON a number of Unix seconds, or a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Typed")]
pub enum Expires {
    /// Unix seconds.
    At(i64),
    /// Seconds from now.
    In(i64),
    Never,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "an end is Unix seconds, or a text such as \"90d\", \"2026-12-24\" or \"2026-12-24T18:00:00Z\""
)]
enum Typed {
    Seconds(Whole),
    Text(String),
}

/// The forms in which an end is typed.
const USAGE: &str = "an end is a while from now such as 90d, 24h, 15m or 90s, a day such as 2026-12-24 (from its first \
    second on, UTC), a time such as 2026-12-24T18:00:00Z, Unix seconds, or never; the latest is 9999-12-31T23:59:59Z";

impl Expires {
    /// In Unix seconds, as is `now`, if it is after `now` and not after the last second of the year 9999; `None`: never.
    ///
    /// # Errors
    /// Why not; it continues the setting's name.
    pub fn in_future(self, now: i64) -> Result<Option<i64>, String> {
        let unix = match self {
            Expires::At(seconds) => seconds,
            Expires::In(seconds) => now.saturating_add(seconds),
            Expires::Never => return Ok(None),
        };
        if unix > LATEST_DATE {
            return Err(format!("is too late: the latest end is {}", date_of(LATEST_DATE)));
        }
        if unix > now { Ok(Some(unix)) } else { Err(format!("is {}, which is not in the future", date_of(unix))) }
    }
}

impl FromStr for Expires {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if text == "never" {
            return Ok(Expires::Never);
        }
        if text.contains('-') {
            return unix_of(text).map(Expires::At).ok_or(USAGE);
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().map(Expires::At).map_err(|_| USAGE);
        }
        let duration = HumanDuration::of_any_length(text).ok_or(USAGE)?.0;
        // Rounded up to whole seconds, so that nothing ends early.
        let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
        i64::try_from(seconds).map(Expires::In).map_err(|_| USAGE)
    }
}

impl TryFrom<Typed> for Expires {
    type Error = &'static str;

    fn try_from(typed: Typed) -> Result<Self, &'static str> {
        match typed {
            Typed::Seconds(Whole(unix)) => Ok(Expires::At(unix)),
            Typed::Text(text) => text.parse(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_unix_seconds_and_one_with_a_unit_counts_from_now() {
        let cases =
            [("1790000000", 1_790_000_000), ("90s", 1089), ("2m", 1119), ("1h", 4599), ("1d", 87_399), ("1ms", 1000)];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Expires>().map(|e| e.in_future(999)), Ok(Ok(Some(expected))), "{text}");
        }
    }

    #[test]
    fn a_date_is_its_unix_seconds() {
        assert_eq!("2026-12-24".parse(), Ok(Expires::At(1_798_070_400)));
        for text in ["2100-12-24T18:00:00Z", "2100-12-24T19:00:00+01:00"] {
            assert_eq!(text.parse(), Ok(Expires::At(4_133_354_400)), "{text}");
        }
        assert_eq!("2026-12-24T00:00:00+24:00".parse::<Expires>(), Err(USAGE));
    }

    #[test]
    fn a_time_in_the_past_is_refused_with_its_date() {
        assert_eq!(Expires::In(1).in_future(1000), Ok(Some(1001)));
        for past in [Expires::At(1000), Expires::At(0), Expires::In(0)] {
            assert!(past.in_future(1000).is_err_and(|e| e.contains("1970-01-01T00:")));
        }
    }

    #[test]
    fn a_time_after_the_latest_date_is_refused() {
        assert_eq!(Expires::At(LATEST_DATE).in_future(1000), Ok(Some(LATEST_DATE)));
        for late in
            [Expires::At(LATEST_DATE + 1), Expires::In(LATEST_DATE), Expires::At(i64::MAX), Expires::In(i64::MAX)]
        {
            let refused = late.in_future(1000);
            assert!(refused.is_err_and(|e| e.contains("the latest end is 9999-12-31T23:59:59Z")));
        }
    }

    #[test]
    fn a_text_that_is_not_a_time_is_refused() {
        for text in ["", "d", "-1", "1y", "1 d", "1.5h", "99999999999999999999", "9223372036854775807d", "٣d"]
            .into_iter()
            .chain(["2100-13-01", "2100-02-30", "24.12.2100", "2100-12-24T18:00:00", "soon"])
        {
            assert!(text.parse::<Expires>().is_err(), "{text}");
        }
    }

    #[test]
    fn never_is_no_point_in_time() {
        assert_eq!("never".parse::<Expires>().map(|end| end.in_future(1000)), Ok(Ok(None)));
        assert!("Never".parse::<Expires>().is_err());
    }
}
