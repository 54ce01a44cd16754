//! What is typed as a string, such as durations, sizes and rates: `"250ms"`, `"8KiB"`, `"20/s"` (contract section 3). Each
//! type is read by [`FromStr`], whose error tells the operator what to write, and is printed as it can be typed. In the
//! schema that the file is parsed by, `format` names the type.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::log::Access;
use super::secret::Secret;
use super::server::Listen;

/// A duration: a whole number and one of ms, s, m, h, d.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HumanDuration(pub Duration);

/// A duration after which something is abandoned: not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timeout(pub Duration);

/// A size in bytes: a whole number and one of B, KiB, MiB, GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HumanSize(pub u64);

/// A rate: a whole number of requests per s, m, h or d. At least one, and at most 10^9 a second, because a
/// request's share of time is kept in whole nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HumanRate {
    count: NonZeroU64,
    /// One of [`RATE_UNITS`].
    unit_ns: u64,
}

const DURATION_PATTERN: &str = "^[0-9]+(ms|s|m|h|d)$";
const SIZE_PATTERN: &str = "^[0-9]+(B|KiB|MiB|GiB)$";
const RATE_PATTERN: &str = "^0*[1-9][0-9]*/(s|m|h|d)$";

/// Longest duration. A longer one is a mistake in the unit, and clocks must be able to add it.
const MAX_DURATION: HumanDuration = HumanDuration::secs(365 * 86_400);

/// Units of duration and their milliseconds, largest first: printing takes the first that divides.
const DURATION_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Units of size and their bytes, largest first.
const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Units of time in a rate and their nanoseconds.
const RATE_UNITS: [(&str, u64); 4] =
    [("s", SECOND_NS), ("m", 60 * SECOND_NS), ("h", 3_600 * SECOND_NS), ("d", 86_400 * SECOND_NS)];

const SECOND_NS: u64 = 1_000_000_000;

/// What a string of this format is, for messages.
pub(super) fn name_of(format: &str) -> &'static str {
    match format {
        "duration" | "timeout" => "a duration such as \"250ms\"",
        "size" => "a size such as \"8KiB\"",
        "rate" => "a rate such as \"20/s\"",
        _ => "a string",
    }
}

/// A text of this format with its path made whole, or what is wrong with it.
pub(super) fn read(format: &str, text: &str, folder: &Path) -> Result<String, String> {
    fn checked<T: FromStr<Err = String>>(text: &str) -> Result<String, String> {
        text.parse::<T>().map(|_| text.to_owned())
    }
    let behind = |prefix: &str, path: &str| Ok(format!("{prefix}{}", whole_path(path, folder)?));
    match (format, text.split_once(':')) {
        ("duration", _) => checked::<HumanDuration>(text),
        ("timeout", _) => checked::<Timeout>(text),
        ("size", _) => checked::<HumanSize>(text),
        ("rate", _) => checked::<HumanRate>(text),
        ("cidr", _) => network(text),
        ("listen", Some(("unix", path))) if !path.is_empty() => behind("unix:", path),
        ("listen", _) => checked::<Listen>(text),
        ("secret", Some(("file", path))) if !path.is_empty() => behind("file:", path),
        ("secret", _) => checked::<Secret>(text),
        ("path or off", _) if text.is_empty() => Ok(String::new()),
        ("access", _) if !matches!(text.parse(), Ok(Access::File(_))) => Ok(text.to_owned()),
        ("path" | "path or off" | "access", _) => whole_path(text, folder),
        _ => Ok(text.to_owned()),
    }
}

/// A file's path, from the config file's folder.
pub(super) fn whole_path(text: &str, folder: &Path) -> Result<String, String> {
    // A key that was pasted for its path is shown nowhere.
    if text.is_empty() || text.contains(char::is_control) {
        return Err("must be a path, not what the file contains".to_owned());
    }
    let path = folder.join(text).into_os_string().into_string();
    path.map_err(|_| "must begin with `/`, since the name of this file's folder is not UTF-8".to_owned())
}

/// A network, such as `10.0.0.0/8`; a single address is a network of one.
fn network(text: &str) -> Result<String, String> {
    let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    net.map(|net| net.to_string())
        .map_err(|_| format!("{} is not a CIDR; write one such as \"10.0.0.0/8\"", shown(text)))
}

/// The form of a type that is typed as a string, with the name of its format.
macro_rules! text_type {
    ($Type:ident, $format:literal $(, $pattern:expr)?) => {
        impl TryFrom<String> for $Type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$Type> for String {
            fn from(value: $Type) -> String {
                value.to_string()
            }
        }

        impl schemars::JsonSchema for $Type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($Type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "format": $format $(, "pattern": $pattern)? })
            }
        }
    };
}
pub(super) use text_type;

text_type!(HumanDuration, "duration", DURATION_PATTERN);
text_type!(Timeout, "timeout", DURATION_PATTERN);
text_type!(HumanSize, "size", SIZE_PATTERN);
text_type!(HumanRate, "rate", RATE_PATTERN);

/// For `#[serde(with = "HumanDuration")]` on a `Duration`, and so on.
macro_rules! typed_as {
    ($Typed:ident, $Value:ty) => {
        impl $Typed {
            pub(super) fn serialize<S: Serializer>(value: &$Value, out: S) -> Result<S::Ok, S::Error> {
                Serialize::serialize(&$Typed(*value), out)
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<$Value, D::Error> {
                <$Typed as Deserialize>::deserialize(input).map(|typed| typed.0)
            }
        }
    };
}

typed_as!(HumanDuration, Duration);
typed_as!(Timeout, Duration);

/// For `#[serde(with = "off")]`: a path, or "" for none.
pub(super) mod off {
    use super::*;

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, out: S) -> Result<S::Ok, S::Error> {
        path.as_deref().unwrap_or(Path::new("")).serialize(out)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Some(PathBuf::deserialize(input)?).filter(|path| !path.as_os_str().is_empty()))
    }
}

impl HumanSize {
    pub(super) fn serialize<N: Copy + TryInto<u64>, S: Serializer>(bytes: &N, out: S) -> Result<S::Ok, S::Error> {
        Serialize::serialize(&HumanSize((*bytes).try_into().unwrap_or(u64::MAX)), out)
    }

    pub(super) fn deserialize<'de, N: TryFrom<u64>, D: Deserializer<'de>>(input: D) -> Result<N, D::Error> {
        let size = <HumanSize as Deserialize>::deserialize(input)?;
        N::try_from(size.0).map_err(|_| D::Error::custom("is too large"))
    }
}

impl HumanDuration {
    pub const fn millis(millis: u64) -> Self {
        HumanDuration(Duration::from_millis(millis))
    }

    pub const fn secs(secs: u64) -> Self {
        HumanDuration(Duration::from_secs(secs))
    }

    /// Reads a duration of any length; a setting has a longest one ([`FromStr`]).
    pub fn of_any_length(text: &str) -> Option<Self> {
        with_unit(text, &DURATION_UNITS).map(Self::millis)
    }
}

impl HumanRate {
    /// Requests a second.
    pub const fn per_second(count: NonZeroU64) -> Self {
        HumanRate { count, unit_ns: SECOND_NS }
    }

    /// Nanoseconds per request, rounded up, so that no window holds more requests than the file says.
    pub fn period_ns(self) -> u64 {
        self.unit_ns.div_ceil(self.count.get())
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

/// What the operator typed, shortened and escaped so that it fits into one line of a message.
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
        let duration = Self::of_any_length(text).ok_or_else(|| {
            format!("{} is not a duration; write a whole number and ms, s, m, h or d, such as \"250ms\"", shown(text))
        })?;
        if duration.0 > MAX_DURATION.0 {
            return Err(format!("{} is too long; the longest duration is {MAX_DURATION}", shown(text)));
        }
        Ok(duration)
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        print_with_unit(f, millis, &DURATION_UNITS, "0s")
    }
}

impl FromStr for Timeout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse()? {
            HumanDuration(Duration::ZERO) => Err("must not be 0, since every request would time out".to_owned()),
            HumanDuration(duration) => Ok(Timeout(duration)),
        }
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        HumanDuration(self.0).fmt(f)
    }
}

impl FromStr for HumanSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        with_unit(text, &SIZE_UNITS).map(HumanSize).ok_or_else(|| {
            format!("{} is not a size; write a whole number and B, KiB, MiB or GiB, such as \"8KiB\"", shown(text))
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
        let bad = || format!("{} is not a rate; write a whole number per s, m, h or d, such as \"20/s\"", shown(text));
        let (number, unit) = text.split_once('/').ok_or_else(bad)?;
        let (_, unit_ns) = RATE_UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let too_high = || format!("{} is too high; the highest rate is 1000000000/s", shown(text));
        let count: u64 = number.parse().map_err(|_| too_high())?;
        if count > unit_ns {
            return Err(too_high());
        }
        match NonZeroU64::new(count) {
            Some(count) => Ok(HumanRate { count, unit_ns }),
            None => Err("a rate of 0 refuses every request; the lowest is \"1/d\"".to_owned()),
        }
    }
}

impl fmt::Display for HumanRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = RATE_UNITS.iter().find(|(_, ns)| *ns == self.unit_ns).map_or("s", |(name, _)| name);
        write!(f, "{}/{unit}", self.count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        for (text, millis) in [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("24h", 86_400_000), ("0s", 0)] {
            assert_eq!(text.parse(), Ok(HumanDuration::millis(millis)), "{text}");
        }
        for bad in ["", "5", "s", "-1s", "1.5s", "5 s", "5S", "5sec", "1h30m", "366d", "99999999999999999999s", "９s"]
        {
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
        fn what_is_printed_reads_back(millis in 0..=365 * 86_400_000u64, bytes in any::<u64>(), count in 1u64..=1_000_000_000, unit in 0usize..4) {
            let duration = HumanDuration::millis(millis);
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
            let size = HumanSize(bytes);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
            let rate = HumanRate { count: NonZeroU64::new(count).unwrap(), unit_ns: RATE_UNITS[unit].1 };
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
