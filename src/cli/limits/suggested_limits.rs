//! Finds a `[limits]` section that would have refused nothing of a decision record: the rate of a tier comes from the
//! busiest minute of one of its keys, the burst from GCRA at that rate. The section is printed only after it was parsed
//! and replayed against the same record without a refusal. Used by `limits suggest`.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::progress_bar;
use crate::cli::error::CommandError;
use crate::config::leaf::HumanRate;
use crate::config::{self, MAX_TIERS, is_tier_name};
use crate::limits::day_of;
use crate::model::counted;
use crate::planning::{IntervalCounter, RecordFiles, RecordedDecision, Replay};

/// The tier of keys without one, or with one whose name cannot be written in a configuration.
const STANDARD: &str = "standard";

/// A minute in ticks.
const MINUTE_NS: u64 = 60_000_000_000;

/// How often all bursts are doubled if the replay refuses something. Only a key that changed its tier can need that, since
/// it takes along what it has used up.
const DOUBLINGS: usize = 3;

/// What the keys of each tier requested.
#[derive(Debug)]
pub(super) struct Demand {
    tiers: Vec<TierDemand>,
    /// The index in `tiers` for each tier of the record.
    by_recorded_tier: HashMap<Option<Arc<str>>, usize>,
    keys: Vec<KeyDemand>,
}

/// The highest demand of one key of a tier, and the rates that are enough for it.
#[derive(Clone, Debug, Default)]
struct TierDemand {
    name: String,
    requests: u64,
    keys: HashSet<usize>,
    /// In a minute of the server's monotonic clock.
    per_minute: u32,
    writes_per_minute: u32,
    /// In a UTC day.
    per_day: u32,
    in_flight: u32,
    main: Rate,
    write: Rate,
}

#[derive(Debug, Default)]
struct KeyDemand {
    by_minute: IntervalCounter,
    writes_by_minute: IntervalCounter,
    by_day: IntervalCounter,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    count: u64,
    /// `s` or `m`.
    unit: char,
    period_ns: u64,
    burst: u64,
}

impl Default for Demand {
    fn default() -> Self {
        let standard = TierDemand { name: STANDARD.to_owned(), ..TierDemand::default() };
        Demand { tiers: vec![standard], by_recorded_tier: HashMap::new(), keys: Vec::new() }
    }
}

impl Demand {
    /// Counts a request. All recorded decisions have to come here, in their order.
    pub(super) fn count(&mut self, recorded: RecordedDecision<'_>) {
        let RecordedDecision { decision, run, .. } = recorded;
        let index = self.tier(&decision.tier);
        if recorded.key == self.keys.len() {
            self.keys.push(KeyDemand::default());
        }
        let (key, tier) = (&mut self.keys[recorded.key], &mut self.tiers[index]);
        tier.keys.insert(recorded.key);
        tier.requests += 1;
        tier.in_flight = tier.in_flight.max(decision.in_flight.saturating_add(1));
        // Not minutes of the wall clock: buckets do not depend on it, and it may be set.
        let minute = i64::from(run) << 32 | (decision.at.0 / MINUTE_NS) as i64;
        tier.per_minute = tier.per_minute.max(key.by_minute.add(minute, 1));
        if decision.operation.is_write() {
            tier.writes_per_minute = tier.writes_per_minute.max(key.writes_by_minute.add(minute, 1));
        }
        let day = day_of(recorded.decision.unix_ms.div_euclid(1000));
        tier.per_day = tier.per_day.max(key.by_day.add(day, 1));
    }

    /// The index of the tier that is suggested for a tier of the record.
    fn tier(&mut self, recorded: &Option<Arc<str>>) -> usize {
        if let Some(index) = self.by_recorded_tier.get(recorded) {
            return *index;
        }
        let name = recorded.as_deref().filter(|name| is_tier_name(name)).unwrap_or(STANDARD);
        let index = self.tiers.iter().position(|tier| tier.name == name).unwrap_or_else(|| {
            if self.tiers.len() == MAX_TIERS {
                return 0; // a configuration cannot hold more: these keys get the default tier
            }
            self.tiers.push(TierDemand { name: name.to_owned(), ..TierDemand::default() });
            self.tiers.len() - 1
        });
        self.by_recorded_tier.insert(recorded.clone(), index);
        index
    }

    /// A `[limits]` section, as TOML, that would have refused none of the record, which is replayed to verify it.
    ///
    /// # Errors
    /// A record that cannot be read to its end, or in which a key changed its tier and was over all limits for it.
    pub(super) fn suggest(mut self, record: &RecordFiles) -> Result<String, CommandError> {
        self.fit_bursts(record)?;
        for _ in 0..=DOUBLINGS {
            let toml = self.toml();
            if refuses_none(&toml, record)? {
                return Ok(toml);
            }
            self.rates().for_each(|rate| rate.burst = readable(rate.burst * 2));
        }
        let why = "no limits were found that refuse nothing, since a key changed its tier; let the server record anew \
            (move the record away), or name a record with --log in which no tier changes";
        Err(CommandError::new(why))
    }

    fn rates(&mut self) -> impl Iterator<Item = &mut Rate> {
        self.tiers.iter_mut().flat_map(|tier| [&mut tier.main, &mut tier.write])
    }

    /// Gives each tier the burst that its keys need at its rate, by GCRA.
    fn fit_bursts(&mut self, record: &RecordFiles) -> Result<(), CommandError> {
        /// The theoretical arrival times (GCRA) of one key's buckets, in ticks of a run.
        #[derive(Default)]
        struct ArrivalTimes {
            run: u32,
            main: u64,
            write: u64,
        }
        for tier in &mut self.tiers {
            tier.main = Rate::for_busiest_minute(tier.per_minute);
            tier.write = Rate::for_busiest_minute(tier.writes_per_minute);
        }
        let mut keys: Vec<ArrivalTimes> = Vec::new();
        record.for_each(&mut progress_bar(), &mut |RecordedDecision { decision, key, run, .. }| {
            if key == keys.len() {
                keys.push(ArrivalTimes::default());
            }
            if keys[key].run != run {
                keys[key] = ArrivalTimes { run, ..ArrivalTimes::default() };
            }
            let request = |rate: &mut Rate, arrival: &mut u64| {
                let ahead = arrival.saturating_sub(decision.at.0);
                rate.burst = rate.burst.max(ahead.div_ceil(rate.period_ns).saturating_add(1));
                *arrival = (*arrival).max(decision.at.0).saturating_add(rate.period_ns);
            };
            let index = self.tier(&decision.tier);
            let tier = &mut self.tiers[index];
            request(&mut tier.main, &mut keys[key].main);
            if decision.operation.is_write() {
                request(&mut tier.write, &mut keys[key].write);
            }
        })?;
        self.rates().for_each(|rate| rate.burst = readable(rate.burst));
        Ok(())
    }

    /// The section as TOML.
    fn toml(&self) -> String {
        let mut text = format!(
            "# It would have refused none of it. `guildgate check --config` reads it as it stands.\n\
             [limits]\ndefault_tier = \"{STANDARD}\"\n"
        );
        for tier in &self.tiers {
            text += "\n";
            text += &match tier.requests {
                0 => format!("# No key was listed without a tier: the defaults.\n[limits.tiers.\"{STANDARD}\"]\n"),
                _ => tier.toml(),
            };
        }
        text
    }
}

/// Whether the section refuses nothing of the record.
fn refuses_none(toml: &str, record: &RecordFiles) -> Result<bool, CommandError> {
    let section = config::load_str(toml, Path::new(""), "the suggested section");
    let limits = section.map_err(|faults| CommandError::new(faults.to_string()))?.config.limits;
    let (mut replay, mut refused) = (Replay::new(&limits), false);
    record.for_each(&mut progress_bar(), &mut |recorded| refused |= replay.decide(recorded).over.is_some())?;
    Ok(!refused)
}

impl TierDemand {
    fn toml(&self) -> String {
        let TierDemand { name, per_minute, writes_per_minute, per_day, in_flight, main, write, .. } = self;
        let of_which = if name == STANDARD { ", those without a tier among them" } else { "" };
        let write = match writes_per_minute {
            0 => "# No setPoints was recorded: no separate limit of writes.".to_owned(),
            _ => format!(
                "write_rate = \"{}/{}\"   # the busiest minute of one: {writes_per_minute} setPoints\nwrite_burst = {}",
                write.count, write.unit, write.burst
            ),
        };
        // The name is quoted, since it may contain a dot.
        format!(
            "# {} of {}{of_which}; the busiest minute of one: {per_minute}.\n\
             [limits.tiers.\"{name}\"]\nrate = \"{}/{}\"\nburst = {}\n{write}\n\
             # daily = {}   # the most of one key in a UTC day, as far as recorded: {per_day}\n\
             # in_flight = {}   # the most of one key under way at once: {in_flight}\n",
            counted(self.requests, "request"),
            counted(self.keys.len() as u64, "key"),
            main.count,
            main.unit,
            main.burst,
            readable((*per_day).into()),
            readable((*in_flight).into())
        )
    }
}

impl Rate {
    /// The average of the busiest minute, rounded up. What exceeds it for a short time is left to the burst.
    fn for_busiest_minute(requests: u32) -> Self {
        /// From this many requests a minute on, a rate per second is fine enough.
        const PER_SECOND: u32 = 600;
        let (count, unit) = if requests < PER_SECOND {
            (readable(requests.max(1).into()), 'm')
        } else {
            (readable(requests.div_ceil(60).into()), 's')
        };
        // Every count of 32 bits a minute is a valid rate.
        let period_ns = format!("{count}/{unit}").parse().map_or(1, HumanRate::period_ns);
        Rate { count, unit, period_ns, burst: 1 }
    }
}

/// Rounds up to a number that is easy to read: small ones stay, larger ones are multiples of 5, then have two digits.
fn readable(number: u64) -> u64 {
    let step = match number {
        0..=20 => 1,
        21..=100 => 5,
        _ => 10u64.pow(number.ilog10() - 1),
    };
    number.div_ceil(step).saturating_mul(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_readable_number_is_not_below_and_not_far_above() {
        for (number, rounded) in [(0, 0), (1, 1), (20, 20), (21, 25), (96, 100), (100, 100), (101, 110), (1234, 1300)] {
            assert_eq!(readable(number), rounded, "{number}");
        }
        for number in 1..100_000 {
            let rounded = readable(number);
            assert!(number <= rounded && rounded <= number + number / 5 + 1, "{number}: {rounded}");
        }
    }

    #[test]
    fn a_rate_is_the_average_of_the_busiest_minute_or_a_little_more() {
        for (requests, count, unit) in
            [(1, 1, 'm'), (59, 60, 'm'), (599, 600, 'm'), (600, 10, 's'), (u32::MAX, 72_000_000, 's')]
        {
            let rate = Rate::for_busiest_minute(requests);
            assert_eq!((rate.count, rate.unit), (count, unit), "{requests}");
            assert!(MINUTE_NS / rate.period_ns >= requests.into() || requests == u32::MAX, "{requests}");
        }
    }
}
