//! `--expires`: a point in time, or how long from now.

use std::str::FromStr;

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

impl Expires {
    /// In Unix seconds, `now` being so too.
    pub fn unix(self, now: i64) -> i64 {
        match self {
            Expires::At(seconds) => seconds,
            Expires::In(seconds) => now.saturating_add(seconds),
        }
    }
}

impl FromStr for Expires {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        const USAGE: &str =
            "a time is Unix seconds such as 1790000000, or a while from now such as 90s, 15m, 24h or 30d";
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
