//! Durations, sizes and rates as they are typed: `"250ms"`, `"8KiB"`, `"20/s"` (contract section 3).

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

/// A duration: a whole number and one of ms, s, m, h, d.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanDuration(pub Duration);

/// A size in bytes: a whole number and one of B, KiB, MiB, GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanSize(pub u64);

/// A rate: a whole number of requests per s, m, h or d. At least one, and at most 10^9 a second, because a
/// request's share of time is kept in whole nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanRate {
    count: NonZeroU64,
    unit: RateUnit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RateUnit {
    Second,
    Minute,
    Hour,
    Day,
}

/// Units of duration and their milliseconds, largest first: printing takes the first that divides.
const DURATION_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Units of size and their bytes, largest first.
const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl HumanDuration {
    pub const fn millis(millis: u64) -> Self {
        HumanDuration(Duration::from_millis(millis))
    }

    pub const fn secs(secs: u64) -> Self {
        HumanDuration(Duration::from_secs(secs))
    }
}

impl HumanRate {
    /// So many a second.
    pub const fn per_second(count: NonZeroU64) -> Self {
        HumanRate { count, unit: RateUnit::Second }
    }

    /// Nanoseconds per request, rounded up: no window ever holds more than the file says.
    pub fn period_ns(self) -> u64 {
        self.unit.nanos().div_ceil(self.count.get())
    }
}

impl RateUnit {
    const ALL: [RateUnit; 4] = [RateUnit::Second, RateUnit::Minute, RateUnit::Hour, RateUnit::Day];

    const fn name(self) -> &'static str {
        match self {
            RateUnit::Second => "s",
            RateUnit::Minute => "m",
            RateUnit::Hour => "h",
            RateUnit::Day => "d",
        }
    }

    const fn nanos(self) -> u64 {
        let secs: u64 = match self {
            RateUnit::Second => 1,
            RateUnit::Minute => 60,
            RateUnit::Hour => 3_600,
            RateUnit::Day => 86_400,
        };
        secs * 1_000_000_000
    }
}

/// A number followed by a unit. `None` where it is not that or does not fit.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn print_with_unit(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)], zero: &str) -> fmt::Result {
    match units.iter().find(|(_, factor)| value != 0 && value.is_multiple_of(*factor)) {
        Some((name, factor)) => write!(f, "{}{name}", value / factor),
        None => f.write_str(zero),
    }
}

/// What the operator typed, fit to stand in a line of a report.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 40; // enough to recognise it by
    let mut short: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().count() > LONGEST {
        short.push('…');
    }
    format!("`{short}`")
}

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        with_unit(text, &DURATION_UNITS).map(Self::millis).ok_or_else(|| {
            format!("{} is no duration; write a whole number and ms, s, m, h or d, such as \"250ms\"", shown(text))
        })
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        print_with_unit(f, millis, &DURATION_UNITS, "0s")
    }
}

impl FromStr for HumanSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        with_unit(text, &SIZE_UNITS).map(HumanSize).ok_or_else(|| {
            format!("{} is no size; write a whole number and B, KiB, MiB or GiB, such as \"8KiB\"", shown(text))
        })
    }
}

impl fmt::Display for HumanSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_with_unit(f, self.0, &SIZE_UNITS, "0B")
    }
}

impl FromStr for HumanRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{} is no rate; write a whole number per s, m, h or d, such as \"20/s\"", shown(text));
        let (number, unit) = text.split_once('/').ok_or_else(bad)?;
        let unit = RateUnit::ALL.into_iter().find(|u| u.name() == unit).ok_or_else(bad)?;
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let too_high = || format!("{} is too high; the highest rate is 1000000000/s", shown(text));
        let count: u64 = number.parse().map_err(|_| too_high())?;
        if count > unit.nanos() {
            return Err(too_high());
        }
        match NonZeroU64::new(count) {
            Some(count) => Ok(HumanRate { count, unit }),
            None => Err("a rate of 0 would refuse everyone; the lowest is \"1/d\"".to_owned()),
        }
    }
}

impl fmt::Display for HumanRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.unit.name())
    }
}

/// Reads a string into any of the types above.
struct Text<T> {
    expecting: &'static str,
    into: PhantomData<T>,
}

impl<T: FromStr<Err = String>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

macro_rules! typed_as_text {
    ($name:ident, $schema:literal, $expecting:literal, $pattern:literal) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                input.deserialize_str(Text { expecting: $expecting, into: PhantomData })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.collect_str(self)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                $schema.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern })
            }
        }
    };
}

typed_as_text!(HumanDuration, "Duration", "a duration such as \"250ms\"", "^[0-9]+(ms|s|m|h|d)$");
typed_as_text!(HumanSize, "Size", "a size such as \"8KiB\"", "^[0-9]+(B|KiB|MiB|GiB)$");
typed_as_text!(HumanRate, "Rate", "a rate such as \"20/s\"", "^0*[1-9][0-9]*/(s|m|h|d)$");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        for (text, millis) in [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("24h", 86_400_000), ("0s", 0)] {
            assert_eq!(text.parse(), Ok(HumanDuration::millis(millis)), "{text}");
        }
        for bad in ["", "5", "s", "-1s", "1.5s", "5 s", "5S", "5sec", "1h30m", "99999999999999999999s", "９s"] {
            assert!(bad.parse::<HumanDuration>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_size_is_a_number_and_a_unit() {
        for (text, bytes) in [("8KiB", 8192), ("64MiB", 64 << 20), ("1GiB", 1 << 30), ("7B", 7), ("0B", 0)] {
            assert_eq!(text.parse(), Ok(HumanSize(bytes)), "{text}");
        }
        for bad in ["", "8", "8kb", "8KB", "8K", "KiB", "-8KiB", "99999999999999GiB"] {
            assert!(bad.parse::<HumanSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rate_never_lets_more_through_than_it_says() {
        for (text, period) in
            [("20/s", 50_000_000), ("600/m", 100_000_000), ("3/s", 333_333_334), ("1/h", 3_600_000_000_000)]
        {
            assert_eq!(text.parse::<HumanRate>().map(HumanRate::period_ns), Ok(period), "{text}");
        }
        for (text, period) in [("1000000000/s", 1), ("1/d", 86_400_000_000_000)] {
            assert_eq!(text.parse::<HumanRate>().map(HumanRate::period_ns), Ok(period), "{text}");
        }
        for bad in
            ["", "20", "0/s", "-1/s", "+1/s", "1.5/s", "20/", "20/ms", "/s", "1000000001/s", "99999999999999999999/s"]
        {
            assert!(bad.parse::<HumanRate>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(millis in any::<u64>(), bytes in any::<u64>(), count in 1u64..=1_000_000_000, unit in 0usize..4) {
            let duration = HumanDuration::millis(millis);
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
            let size = HumanSize(bytes);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
            let rate = HumanRate { count: NonZeroU64::new(count).unwrap(), unit: RateUnit::ALL[unit] };
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }

        #[test]
        fn no_text_panics_a_leaf(text in any::<String>(), close in "[0-9]{1,25}/?(ms|s|m|h|d|B|KiB)?") {
            for text in [text, close] {
                let _ = text.parse::<HumanDuration>();
                let _ = text.parse::<HumanSize>();
                let _ = text.parse::<HumanRate>();
            }
        }
    }
}
