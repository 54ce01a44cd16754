//! Finds a `[limits]` section that would have refused nothing of a decision record: the rate of a tier comes from the
//! busiest minute of one of its keys, the burst from GCRA at that rate. The section is printed only after it was parsed
//! and replayed against the same record without a refusal. Used by `limits suggest`.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use super::record::{Passing, Record};
use super::replay::Replay;
use super::stretches::Stretches;
use super::table::s;
use crate::cli::error::CommandError;
use crate::config::leaf::HumanRate;
use crate::config::{self, MAX_TIERS, TierFile, is_tier_name};
use crate::limits::day_of;
use crate::model::Limit;

/// The tier of keys that are listed without one, or with one that cannot be written down.
const STANDARD: &str = "standard";

/// A minute in ticks.
const MINUTE_NS: u64 = 60_000_000_000;

/// How often bursts are doubled before it is given up. Keys that change their tier midway may need
/// it, since they take along how full their buckets are; a few times are enough for them.
const ATTEMPTS: usize = 40;

/// What each tier's keys asked for.
#[derive(Debug)]
pub(super) struct Demand {
    tiers: Vec<Wanted>,
    by_listed: HashMap<Option<Arc<str>>, usize>,
    keys: Vec<Key>,
}

/// The most that one key of a tier asked for.
#[derive(Clone, Debug, Default)]
struct Wanted {
    name: String,
    requests: u64,
    keys: u64,
    /// In a minute of the server's own clock.
    a_minute: u32,
    writes_a_minute: u32,
    /// In a UTC day.
    a_day: u32,
    /// At once.
    in_flight: u32,
}

#[derive(Debug, Default)]
struct Key {
    /// The tiers it was listed with, the newest last.
    tiers: Vec<usize>,
    by_minute: Stretches,
    writes_by_minute: Stretches,
    by_day: Stretches,
}

impl Default for Demand {
    fn default() -> Self {
        let standard = Wanted { name: STANDARD.to_owned(), ..Wanted::default() };
        Demand { tiers: vec![standard], by_listed: HashMap::new(), keys: Vec::new() }
    }
}

impl Demand {
    /// Counts what passes. Everything that passes has to, and in its order.
    pub(super) fn count(&mut self, passing: Passing<'_>) {
        let Passing { decision, run, .. } = passing;
        let tier = self.tier(&decision.tier);
        if passing.key == self.keys.len() {
            self.keys.push(Key::default());
        }
        let (key, wanted) = (&mut self.keys[passing.key], &mut self.tiers[tier]);
        if key.tiers.last() != Some(&tier) {
            wanted.keys += u64::from(!key.tiers.contains(&tier));
            key.tiers.retain(|t| *t != tier);
            key.tiers.push(tier);
        }
        wanted.requests += 1;
        wanted.in_flight = wanted.in_flight.max(decision.in_flight.saturating_add(1));
        // Not by the wall's minutes: buckets know nothing of a wall clock that is set.
        let minute = i64::from(run) << 32 | (decision.at.0 / MINUTE_NS) as i64;
        key.by_minute.add(minute, |_, count| wanted.a_minute = wanted.a_minute.max(count));
        if decision.operation.is_write() {
            key.writes_by_minute.add(minute, |_, count| wanted.writes_a_minute = wanted.writes_a_minute.max(count));
        }
        let day = day_of(passing.unix_ms.div_euclid(1000));
        key.by_day.add(day, |_, count| wanted.a_day = wanted.a_day.max(count));
    }

    /// A listed tier's place among those that will be written.
    fn tier(&mut self, listed: &Option<Arc<str>>) -> usize {
        if let Some(place) = self.by_listed.get(listed) {
            return *place;
        }
        let name = listed.as_deref().filter(|name| is_tier_name(name)).unwrap_or(STANDARD);
        let place = self.tiers.iter().position(|tier| tier.name == name).unwrap_or_else(|| {
            if self.tiers.len() == MAX_TIERS {
                return 0; // no file may hold more: they get the default one
            }
            self.tiers.push(Wanted { name: name.to_owned(), ..Wanted::default() });
            self.tiers.len() - 1
        });
        self.by_listed.insert(listed.clone(), place);
        place
    }

    fn finish(&mut self) {
        for key in &mut self.keys {
            let Some(wanted) = key.tiers.last().and_then(|tier| self.tiers.get_mut(*tier)) else { continue };
            let most = |into: &mut u32, count: u32| *into = (*into).max(count);
            std::mem::take(&mut key.by_minute).finish(|_, count| most(&mut wanted.a_minute, count));
            std::mem::take(&mut key.writes_by_minute).finish(|_, count| most(&mut wanted.writes_a_minute, count));
            std::mem::take(&mut key.by_day).finish(|_, count| most(&mut wanted.a_day, count));
        }
    }
}

/// A `[limits]` section that refuses nothing of a record.
#[derive(Debug)]
pub(super) struct Proposal {
    demand: Demand,
    /// As many as the demand's tiers; `None` where no key had one.
    tiers: Vec<Option<Rates>>,
}

/// What a tier would let through.
#[derive(Clone, Copy, Debug)]
struct Rates {
    main: Rate,
    /// `None` where no setPoints was seen.
    write: Option<Rate>,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    /// So many in this unit.
    count: u64,
    unit: char,
    period_ns: u64,
    burst: u64,
}

impl Proposal {
    /// Finds limits that would have refused none of the record, and replays it to be sure.
    ///
    /// # Errors
    /// A record that cannot be read to its end.
    pub(super) fn for_record(record: &Record, mut demand: Demand) -> Result<Self, CommandError> {
        demand.finish();
        let rates = |tier: &Wanted| {
            let write = (tier.writes_a_minute > 0).then(|| Rate::for_busiest_minute(tier.writes_a_minute));
            (tier.requests > 0).then(|| Rates { main: Rate::for_busiest_minute(tier.a_minute), write })
        };
        let tiers = demand.tiers.iter().map(rates).collect();
        let mut proposal = Proposal { demand, tiers };
        proposal.fit_bursts(record)?;
        for _ in 0..ATTEMPTS {
            if proposal.refuses_none(record)? {
                return Ok(proposal);
            }
        }
        Err(CommandError::new("no limits were found that refuse nothing; this record is worth a bug report"))
    }

    /// Gives each tier the burst that its keys need at its rate, by GCRA.
    fn fit_bursts(&mut self, record: &Record) -> Result<(), CommandError> {
        /// Of one key: until when its buckets owe time, in ticks of a run.
        #[derive(Default)]
        struct Owing {
            run: u32,
            main: u64,
            write: u64,
        }
        let (demand, tiers) = (&mut self.demand, &mut self.tiers);
        let mut owing: Vec<Owing> = Vec::new();
        record.pass(&mut |Passing { decision, key, run, .. }| {
            if key == owing.len() {
                owing.push(Owing::default());
            }
            if owing[key].run != run {
                owing[key] = Owing { run, ..Owing::default() };
            }
            let Some(rates) = &mut tiers[demand.tier(&decision.tier)] else { return };
            let ask = |rate: &mut Rate, until: &mut u64| {
                let owed = until.saturating_sub(decision.at.0);
                rate.burst = rate.burst.max(owed.div_ceil(rate.period_ns).saturating_add(1));
                *until = (*until).max(decision.at.0).saturating_add(rate.period_ns);
            };
            ask(&mut rates.main, &mut owing[key].main);
            if decision.operation.is_write()
                && let Some(write) = &mut rates.write
            {
                ask(write, &mut owing[key].write);
            }
        })?;
        for rates in tiers.iter_mut().flatten() {
            let Rates { main, write } = rates;
            [Some(main), write.as_mut()].into_iter().flatten().for_each(|rate| rate.burst = readable(rate.burst));
        }
        Ok(())
    }

    /// Replays the record against the section as it will be printed. Where a request would be
    /// refused, the bursts that can be the cause are doubled.
    fn refuses_none(&mut self, record: &Record) -> Result<bool, CommandError> {
        let section = config::load_str(&self.toml(), Path::new(""), "the suggested section");
        let limits = section.map_err(|faults| CommandError::new(faults.to_string()))?.config.limits;
        let mut replay = Replay::new(&limits);
        let mut refused = BTreeSet::new();
        record.pass(&mut |passing| {
            if let Some((limit, _)) = replay.decide(passing).over {
                let tiers = &self.demand.keys[passing.key].tiers;
                refused.extend(tiers.iter().map(|tier| (*tier, limit == Limit::WriteRate)));
            }
        })?;
        for (tier, by_write) in &refused {
            let Some(rates) = &mut self.tiers[*tier] else { continue };
            let rate = if *by_write { rates.write.as_mut() } else { Some(&mut rates.main) };
            rate.into_iter().for_each(|rate| rate.burst = readable(rate.burst * 2));
        }
        Ok(refused.is_empty())
    }

    /// The section, several lines, the last one ended.
    pub(super) fn toml(&self) -> String {
        let mut text = format!(
            "# It would have refused none of it. `guildgate check --config` reads it as it stands.\n\
             [limits]\ndefault_tier = \"{STANDARD}\"\n"
        );
        for (wanted, rates) in self.demand.tiers.iter().zip(&self.tiers) {
            text.push('\n');
            match rates {
                Some(rates) => tier(&mut text, wanted, rates),
                None => built_in(&mut text),
            }
        }
        text
    }
}

fn tier(text: &mut String, wanted: &Wanted, Rates { main, write }: &Rates) {
    let Wanted { name, requests, keys, a_minute, writes_a_minute, a_day, in_flight } = wanted;
    let of_which = if name == STANDARD { ", those without a tier among them" } else { "" };
    let mut line = |line: String| text.extend([line.as_str(), "\n"]);
    line(format!(
        "# {requests} request{} of {keys} key{}{of_which}; the busiest minute of one: {a_minute}.",
        s(*requests),
        s(*keys)
    ));
    // A name with a dot in it has to be quoted; any other may be.
    line(format!("[limits.tiers.\"{name}\"]"));
    line(format!("rate = \"{}/{}\"", main.count, main.unit));
    line(format!("burst = {}", main.burst));
    match write {
        Some(write) => {
            line(format!(
                "write_rate = \"{}/{}\"   # the busiest minute of one: {writes_a_minute} setPoints",
                write.count, write.unit
            ));
            line(format!("write_burst = {}", write.burst));
        }
        None => line("# No setPoints was recorded: no separate limit of writes.".to_owned()),
    }
    line(format!(
        "# daily = {}   # the most of one key in a UTC day, as far as recorded: {a_day}",
        readable((*a_day).into())
    ));
    line(format!(
        "# in_flight = {}   # the most of one key under way at once: {in_flight}",
        readable((*in_flight).into())
    ));
}

/// Keys without a tier get this one, and there was none.
fn built_in(text: &mut String) {
    let standard = TierFile::standard();
    let _ = writeln!(
        text,
        "# No key was listed without a tier; these are the built-in limits.\n[limits.tiers.\"{STANDARD}\"]\nrate = \"{}\"\nburst = {}",
        standard.rate, standard.burst
    ); // a String takes everything
    if let Some(write) = standard.write_rate {
        let _ = writeln!(text, "write_rate = \"{write}\"\nwrite_burst = {}", standard.write_burst);
    }
}

impl Rate {
    /// The average of the busiest minute, or a little more: what comes in bunches within it is the burst's.
    fn for_busiest_minute(requests: u32) -> Self {
        /// From here on a rate a second is fine enough.
        const BY_SECOND: u32 = 600;
        let (count, unit) = if requests < BY_SECOND {
            (readable(requests.max(1).into()), 'm')
        } else {
            (readable(requests.div_ceil(60).into()), 's')
        };
        // Counts of 32 bits a minute are rates that can be written.
        let period_ns = format!("{count}/{unit}").parse().map_or(1, HumanRate::period_ns);
        Rate { count, unit, period_ns, burst: 1 }
    }
}

/// A number not below this one that is easily read: small ones as they are, larger ones by fives,
/// then to two digits.
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
        for (number, reads) in [(0, 0), (1, 1), (20, 20), (21, 25), (96, 100), (100, 100), (101, 110), (1234, 1300)] {
            assert_eq!(readable(number), reads, "{number}");
        }
        for number in 1..100_000 {
            let reads = readable(number);
            assert!(number <= reads && reads <= number + number / 5 + 1, "{number}: {reads}");
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
