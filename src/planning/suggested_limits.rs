//! Finds a `[limits]` section that would have refused nothing of a decision record: the rate of a tier comes from the
//! busiest minute of one of its keys, the burst from GCRA at that rate. The section is printed only after it was parsed
//! and replayed against the same record without a refusal. Used by `limits suggest` and the dashboard.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use super::{
    BusiestInterval, Histogram, IntervalCounter, ReadError, RecordFiles, RecordSummary, RecordedDecision, Replay,
};
use crate::config::leaf::HumanRate;
use crate::config::{self, MAX_TIERS, is_name};
use crate::limits::day_of;
use crate::model::counted;

/// The tier of keys without one, or with one whose name cannot be written in a configuration. It is the first one.
const STANDARD: &str = "standard";

/// How often all bursts are doubled if the replay refuses something. Only a key that changed its tier can need that, since
/// it takes along what it has used up.
const DOUBLINGS: usize = 3;

/// The requests of one key.
#[derive(Clone, Debug, Default)]
pub struct KeyRequests {
    /// When it was last recorded; `None`: the default one.
    pub tier: Option<Arc<str>>,
    pub requests: u64,
    seconds: IntervalCounter,
    pub per_second: Histogram,
    pub minutes: BusiestInterval,
    pub write_minutes: BusiestInterval,
    /// UTC days.
    pub days: BusiestInterval,
    /// The most under way at once.
    pub in_flight: u32,
}

impl KeyRequests {
    fn count(&mut self, RecordedDecision { decision, .. }: RecordedDecision<'_>) {
        let second = decision.unix_ms.div_euclid(1000);
        self.tier.clone_from(&decision.tier);
        self.requests += 1;
        self.per_second.record(self.seconds.add(second, 1));
        self.minutes.add(second.div_euclid(60), 1);
        self.write_minutes.add(second.div_euclid(60), u32::from(decision.operation.is_write()));
        self.days.add(day_of(second), 1);
        self.in_flight = self.in_flight.max(decision.in_flight.saturating_add(1));
    }
}

/// The requests of each key of a record.
///
/// # Errors
/// A record that cannot be read to its end.
pub fn count_requests(record: &RecordFiles) -> Result<(RecordSummary, Vec<KeyRequests>), ReadError> {
    let mut keys: Vec<KeyRequests> = Vec::new();
    let read = for_each(record, &mut |recorded| {
        if recorded.key == keys.len() {
            keys.push(KeyRequests::default());
        }
        keys[recorded.key].count(recorded);
    })?;
    Ok((read, keys))
}

/// Calls `each` with every decision.
///
/// # Errors
/// A record that cannot be read to its end.
pub fn for_each(record: &RecordFiles, each: &mut dyn FnMut(RecordedDecision<'_>)) -> Result<RecordSummary, ReadError> {
    record.for_each(&mut |_, _| ControlFlow::Continue(()), each)
}

/// The highest demand of one key of a tier, and the rates that are enough for it.
#[derive(Debug, Default)]
struct TierDemand {
    name: String,
    keys: u64,
    requests: u64,
    per_minute: u32,
    writes_per_minute: u32,
    per_day: u32,
    in_flight: u32,
    main: Rate,
    write: Rate,
}

#[derive(Debug, Default)]
struct Rate {
    per_minute: u64,
    period_ns: u64,
    burst: u64,
}

/// What the buckets of one key are ahead of the time, by GCRA, in ticks of a run.
#[derive(Default)]
struct ArrivalTimes {
    run: u32,
    main: u64,
    write: u64,
}

/// A `[limits]` section, as TOML, that would have refused none of the record, which is replayed to verify it.
///
/// # Errors
/// A record that cannot be read to its end, or in which a key changed its tier and was over all limits for it.
pub fn suggested_limits(keys: &[KeyRequests], record: &RecordFiles) -> Result<String, String> {
    let mut tiers = demands(keys);
    fit_bursts(&mut tiers, record)?;
    for _ in 0..=DOUBLINGS {
        let toml = section(&tiers);
        if refuses_none(&toml, record)? {
            return Ok(toml);
        }
        tiers.iter_mut().flat_map(|tier| [&mut tier.main, &mut tier.write]).for_each(|rate| rate.burst *= 2);
    }
    let why = "no limits were found that refuse nothing, since a key changed its tier; let the server record anew \
        (move the record away), or name a record with --log in which no tier changes";
    Err(why.to_owned())
}

/// What the keys of each tier requested.
fn demands(keys: &[KeyRequests]) -> Vec<TierDemand> {
    let mut tiers = vec![TierDemand { name: STANDARD.to_owned(), ..TierDemand::default() }];
    for key in keys {
        let name = key.tier.as_deref().unwrap_or(STANDARD);
        let is_new = is_name(name) && tiers.iter().all(|tier| tier.name != name);
        if is_new && tiers.len() < MAX_TIERS {
            tiers.push(TierDemand { name: name.to_owned(), ..TierDemand::default() });
        }
        let at = index(&tiers, key.tier.as_deref());
        let tier = &mut tiers[at];
        tier.keys += 1;
        tier.requests += key.requests;
        tier.per_minute = tier.per_minute.max(key.minutes.count);
        tier.writes_per_minute = tier.writes_per_minute.max(key.write_minutes.count);
        tier.per_day = tier.per_day.max(key.days.count);
        tier.in_flight = tier.in_flight.max(key.in_flight);
    }
    for tier in &mut tiers {
        tier.main = Rate::of(tier.per_minute);
        tier.write = Rate::of(tier.writes_per_minute);
    }
    tiers
}

/// The place of a tier, as a configuration finds it: the default one if there is none of this name.
fn index(tiers: &[TierDemand], name: Option<&str>) -> usize {
    tiers.iter().position(|tier| Some(&*tier.name) == name).unwrap_or(0)
}

/// Gives each tier the burst that its keys need at its rate, by GCRA.
fn fit_bursts(tiers: &mut [TierDemand], record: &RecordFiles) -> Result<(), String> {
    let mut keys: Vec<ArrivalTimes> = Vec::new();
    for_each(record, &mut |RecordedDecision { decision, key, run, .. }| {
        if key == keys.len() {
            keys.push(ArrivalTimes::default());
        }
        let arrival = &mut keys[key];
        if arrival.run != run {
            *arrival = ArrivalTimes { run, ..ArrivalTimes::default() };
        }
        let at = index(tiers, decision.tier.as_deref());
        tiers[at].main.fit(&mut arrival.main, decision.at.0);
        if decision.operation.is_write() {
            tiers[at].write.fit(&mut arrival.write, decision.at.0);
        }
    })
    .map_err(|error| error.to_string())?;
    tiers
        .iter_mut()
        .flat_map(|tier| [&mut tier.main, &mut tier.write])
        .for_each(|rate| rate.burst = readable(rate.burst));
    Ok(())
}

/// The section as TOML.
fn section(tiers: &[TierDemand]) -> String {
    let head = format!(
        "# It would have refused none of it. `guildgate check --config` reads it as it stands.\n\
         [limits]\ndefault_tier = \"{STANDARD}\"\n"
    );
    tiers.iter().fold(head, |text, tier| text + &tier.toml())
}

/// Whether the section refuses nothing of the record.
fn refuses_none(toml: &str, record: &RecordFiles) -> Result<bool, String> {
    let section = config::load_str(toml, Path::new(""), "the suggested section");
    let limits = section.map_err(|faults| faults.to_string())?.config.limits;
    let (mut replay, mut refused) = (Replay::new(&limits), false);
    let read = for_each(record, &mut |recorded| refused |= replay.decide(recorded).over.is_some());
    read.map_err(|error| error.to_string())?;
    Ok(!refused)
}

impl TierDemand {
    fn toml(&self) -> String {
        let TierDemand { name, per_minute, writes_per_minute, per_day, in_flight, main, write, .. } = self;
        if self.keys == 0 {
            return format!("\n# No key was listed without a tier: the defaults.\n[limits.tiers.\"{name}\"]\n");
        }
        let (requests, keys) = (counted(self.requests, "request"), counted(self.keys, "key"));
        // The name is quoted, since it may contain a dot.
        let mut text = format!(
            "\n# {requests} of {keys}; the most of one in a minute: {per_minute}, and {writes_per_minute} setPoints.\n\
             [limits.tiers.\"{name}\"]\nrate = \"{}/m\"\nburst = {}\n",
            main.per_minute, main.burst
        );
        if *writes_per_minute > 0 {
            text += &format!("write_rate = \"{}/m\"\nwrite_burst = {}\n", write.per_minute, write.burst);
        }
        text + &format!(
            "# daily = {}   # the most of one key in a UTC day, as far as recorded: {per_day}\n\
             # in_flight = {}   # the most of one key under way at once: {in_flight}\n",
            readable((*per_day).into()),
            readable((*in_flight).into())
        )
    }
}

impl Rate {
    /// The average of the busiest minute, rounded up. What exceeds it for a short time is left to the burst.
    fn of(requests: u32) -> Self {
        let per_minute = readable(requests.max(1).into());
        // Every count of 32 bits a minute is a valid rate.
        let period_ns = format!("{per_minute}/m").parse().map_or(1, HumanRate::period_ns);
        Rate { per_minute, period_ns, burst: 1 }
    }

    /// Raises the burst to what a request needs whose key has the bucket `arrival`.
    fn fit(&mut self, arrival: &mut u64, now: u64) {
        let ahead = arrival.saturating_sub(now);
        self.burst = self.burst.max(ahead.div_ceil(self.period_ns).saturating_add(1));
        *arrival = (*arrival).max(now).saturating_add(self.period_ns);
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
        for (requests, per_minute) in [(0, 1), (1, 1), (59, 60), (599, 600), (u32::MAX, 4_300_000_000)] {
            let rate = Rate::of(requests);
            assert_eq!(rate.per_minute, per_minute, "{requests}");
            assert!(60_000_000_000 / rate.period_ns >= requests.into() || requests == u32::MAX, "{requests}");
        }
    }
}
