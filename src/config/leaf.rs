//! What is typed as a string, such as durations, sizes and rates: `"250ms"`, `"8KiB"`, `"20/s"` (contract section 3). Each
//! type is read by [`FromStr`], whose error tells the operator what to write, and is printed as it can be typed. In the
//! schema that the file is parsed by, `format` names the type.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

use super::log::Access;
use super::origin::Upstream;
use super::server::Listen;
use super::{admin, answers};
use crate::model::hide_keys;

/// A duration: a whole number and one of ms, s, m, h, d. `ZERO`: it may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<const ZERO: bool>(pub Duration);

pub type HumanDuration = Span<true>;

/// A duration after which something is abandoned: not 0.
pub type Timeout = Span<false>;

/// A size in bytes: a whole number and one of B, KiB, MiB, GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanSize(pub u64);

/// A rate: a whole number of requests per s, m, h or d. At least one, and at most 10^9 a second, because a
/// request's share of time is kept in whole nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanRate {
    count: NonZeroU64,
    /// One of [`RATE_UNITS`].
    unit_ns: u64,
}

const DURATION_PATTERN: &str = "^[0-9]+(ms|s|m|h|d)$";

/// Longest duration. A longer one is a mistake in the unit, and clocks must be able to add it.
const MAX_DURATION: HumanDuration = HumanDuration::secs(365 * 86_400);

/// Longest path of a Unix socket: the kernel's address has 108 bytes, of which the last one is zero, and
/// [`HANDOVER_SUFFIX`](super::HANDOVER_SUFFIX) must fit in.
const MAX_SOCKET_PATH: usize = 103;

/// Units of duration and their milliseconds, largest first: printing takes the first that divides.
const DURATION_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Units of size and their bytes, largest first.
const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Units of a rate and their nanoseconds.
const RATE_UNITS: [(&str, u64); 4] =
    [("/s", SECOND_NS), ("/m", 60 * SECOND_NS), ("/h", 3_600 * SECOND_NS), ("/d", 86_400 * SECOND_NS)];

const SECOND_NS: u64 = 1_000_000_000;

/// A text of this format with its path made whole, or what is wrong with it.
pub(super) fn read(format: &str, text: &str, folder: &Path) -> Result<String, String> {
    fn checked<T: FromStr<Err = String>>(text: &str) -> Result<String, String> {
        text.parse::<T>().map(|_| text.to_owned())
    }
    match (format.trim_end_matches(" or off"), text.split_once(':')) {
        ("duration", _) => checked::<HumanDuration>(text),
        ("timeout", _) => checked::<Timeout>(text),
        ("size", _) => checked::<HumanSize>(text),
        ("rate", _) => checked::<HumanRate>(text),
        ("upstream", _) => checked::<Upstream>(text),
        ("page", _) => answers::page(text),
        ("host", _) => admin::host(text),
        ("cidr", _) => network(text),
        ("listen", Some(("unix", path))) if !path.is_empty() => Ok(format!("unix:{}", socket(path, folder)?)),
        ("listen", _) => checked::<Listen>(text),
        ("secret", Some(("file", path))) => Ok(format!("file:{}", whole_path(path, folder)?)),
        ("socket", _) => socket(text, folder),
        ("access", _) if !matches!(text.parse(), Ok(Access::File(_))) => Ok(text.to_owned()),
        ("path" | "access", _) => whole_path(text, folder),
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

/// A Unix socket's path, from the config file's folder.
fn socket(text: &str, folder: &Path) -> Result<String, String> {
    let path = whole_path(text, folder)?;
    let is_short = path.len() <= MAX_SOCKET_PATH;
    is_short
        .then_some(path)
        .ok_or_else(|| format!("the path must have at most {MAX_SOCKET_PATH} bytes, folder included"))
}

/// A network, such as `10.0.0.0/8`; a single address is a network of one.
fn network(text: &str) -> Result<String, String> {
    let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    net.map(|net| net.to_string())
        .map_err(|_| format!("{} is not a CIDR; write one such as \"10.0.0.0/8\"", shown(text)))
}

/// The form of a type that is typed as a string, with the name of its format.
macro_rules! text_type {
    ($Type:ty, $format:literal $(, $pattern:expr)?) => {
        impl serde::Serialize for $Type {
            fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $Type {
            fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(input)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $Type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $format.into()
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
text_type!(HumanSize, "size", "^[0-9]+(B|KiB|MiB|GiB)$");
text_type!(HumanRate, "rate", "^0*[1-9][0-9]*/(s|m|h|d)$");

/// For `#[serde(with = "Timeout")]` on a `Duration`.
impl<const ZERO: bool> Span<ZERO> {
    pub(super) fn serialize<S: Serializer>(value: &Duration, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&Span::<ZERO>(*value))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
        String::deserialize(input)?.parse().map(|Span::<ZERO>(duration)| duration).map_err(D::Error::custom)
    }
}

/// For `#[serde(with = "HumanSize")]` on a number of bytes.
impl HumanSize {
    pub(super) fn serialize<N: Copy + TryInto<u64>, S: Serializer>(bytes: &N, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&HumanSize((*bytes).try_into().unwrap_or(u64::MAX)))
    }

    pub(super) fn deserialize<'de, N: TryFrom<u64>, D: Deserializer<'de>>(input: D) -> Result<N, D::Error> {
        let size = <HumanSize as Deserialize>::deserialize(input)?;
        N::try_from(size.0).map_err(|_| D::Error::custom("is too large"))
    }
}

impl HumanDuration {
    pub const fn millis(millis: u64) -> Self {
        Span(Duration::from_millis(millis))
    }

    pub const fn secs(secs: u64) -> Self {
        Span(Duration::from_secs(secs))
    }

    /// Reads a duration of any length; a setting has a longest one ([`FromStr`]).
    pub fn of_any_length(text: &str) -> Option<Self> {
        let (count, factor) = with_unit(text, &DURATION_UNITS)?;
        count.checked_mul(factor).map(Self::millis)
    }
}

impl HumanRate {
    /// Requests a second.
    pub(super) fn per_second(count: u32) -> Self {
        HumanRate { count: NonZeroU64::new(count.into()).unwrap_or(NonZeroU64::MIN), unit_ns: SECOND_NS }
    }

    /// Nanoseconds per request, rounded up, so that no window holds more requests than the file says.
    pub fn period_ns(self) -> u64 {
        self.unit_ns.div_ceil(self.count.get())
    }
}

/// A number and the unit that follows it. `None` where the text is not that.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<(u64, u64)> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    Some((number.parse().ok()?, *factor))
}

fn print_with_unit(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)], zero: &str) -> fmt::Result {
    match units.iter().find(|(_, factor)| value != 0 && value.is_multiple_of(*factor)) {
        Some((name, factor)) => write!(f, "{}{name}", value / factor),
        None => f.write_str(zero),
    }
}

/// Longest name of a tier or a node, and longest prefix in Redis.
pub(super) const MAX_NAME: usize = 64;

/// What [`is_name`] demands.
pub(super) const NAME_RULE: &str = "1 to 64 letters, digits, `-`, `_` and `.`, and no key";

/// Whether this can be a name in headers, logs and Redis.
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(plain) && hide_keys(text) == text
}

/// What the operator typed, shortened and escaped so that it fits into one line of a message.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 40; // enough to recognise it by
    let text = hide_keys(text);
    let short: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    format!("`{short}{}`", if text.chars().nth(LONGEST).is_some() { "…" } else { "" })
}

impl<const ZERO: bool> FromStr for Span<ZERO> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let duration = HumanDuration::of_any_length(text).ok_or_else(|| {
            format!("{} is not a duration; write a whole number and ms, s, m, h or d, such as \"250ms\"", shown(text))
        })?;
        if duration.0 > MAX_DURATION.0 {
            return Err(format!("{} is too long; the longest duration is {MAX_DURATION}", shown(text)));
        }
        if duration.0.is_zero() && !ZERO {
            return Err("must not be 0, since every request would time out".to_owned());
        }
        Ok(Span(duration.0))
    }
}

impl<const ZERO: bool> fmt::Display for Span<ZERO> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        print_with_unit(f, millis, &DURATION_UNITS, "0s")
    }
}

impl FromStr for HumanSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = with_unit(text, &SIZE_UNITS).and_then(|(count, factor)| count.checked_mul(factor));
        bytes.map(HumanSize).ok_or_else(|| {
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
        let (count, unit_ns) = with_unit(text, &RATE_UNITS).ok_or_else(|| {
            format!("{} is not a rate; write a whole number per s, m, h or d, such as \"20/s\"", shown(text))
        })?;
        if count > unit_ns {
            return Err(format!("{} is too high; the highest rate is 1000000000/s", shown(text)));
        }
        let none = "a rate of 0 refuses every request; the lowest is \"1/d\"";
        Ok(HumanRate { count: NonZeroU64::new(count).ok_or(none)?, unit_ns })
    }
}

impl fmt::Display for HumanRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = RATE_UNITS.iter().find(|(_, ns)| *ns == self.unit_ns).map_or("/s", |(name, _)| name);
        write!(f, "{}{unit}", self.count)
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
    }
}
