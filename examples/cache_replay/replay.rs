//! The requests against a cache on a clock of its own, and how many of the readers' it answered.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use guildgate::cache::{Answers, Entry, EntryKey, EntryState, Gate, Realms};
use guildgate::clock::{Clock, Tick};
use guildgate::config::{Cache, Freshness};
use guildgate::wire::Operation;
use lru::LruCache;

use crate::workload::{Ask, By};

/// A cache on trial.
pub trait Trial {
    /// Whether it answers, and if not: asks the origin, whose answer is this text.
    fn read(&mut self, at: EntryKey, freshness: Freshness, now: Tick, text: &str) -> bool;
    fn write(&mut self, at: EntryKey, now: Tick);
    /// How many answers it holds.
    fn held(&self) -> u64;
}

/// The gateway's own.
impl Trial for Answers<()> {
    fn read(&mut self, at: EntryKey, freshness: Freshness, now: Tick, text: &str) -> bool {
        let gate = self.gate.state(&at, now);
        let Some(epoch) = gate.epoch() else { return false };
        if self.get(&at, epoch).is_some_and(|entry| is_fresh(&entry, now)) {
            return true;
        }
        self.insert(&Arc::new(Entry::new((at, epoch), text.into(), now, freshness, None)), gate);
        false
    }

    fn write(&mut self, at: EntryKey, now: Tick) {
        write(&self.gate, at, now);
    }

    fn held(&self) -> u64 {
        self.size().entries
    }
}

/// The yardstick: as many bytes, and whoever was not asked for longest goes.
pub struct Lru {
    entries: LruCache<EntryKey, Arc<Entry>>,
    gate: Gate,
    room: u64,
}

impl Lru {
    pub fn new(max_size: u64) -> Self {
        Lru { entries: LruCache::unbounded(), gate: Gate::default(), room: max_size }
    }
}

impl Trial for Lru {
    fn read(&mut self, at: EntryKey, freshness: Freshness, now: Tick, text: &str) -> bool {
        let Some(epoch) = self.gate.state(&at, now).epoch() else { return false };
        if self.entries.get(&at).is_some_and(|entry| entry.epoch == epoch && is_fresh(entry, now)) {
            return true;
        }
        let entry = Arc::new(Entry::new((at, epoch), text.into(), now, freshness, None));
        let needed = u64::from(entry.weight());
        self.room += self.entries.pop(&at).map_or(0, |old| u64::from(old.weight()));
        while self.room < needed
            && let Some((_, oldest)) = self.entries.pop_lru()
        {
            self.room += u64::from(oldest.weight());
        }
        self.room -= needed;
        self.entries.put(at, entry);
        false
    }

    fn write(&mut self, at: EntryKey, now: Tick) {
        write(&self.gate, at, now);
    }

    fn held(&self) -> u64 {
        self.entries.len() as u64
    }
}

fn write(gate: &Gate, at: EntryKey, now: Tick) {
    gate.begin_write(at.member, &[Operation::GetPoints], Realms::One(at.realm), now).end(None);
}

fn is_fresh(entry: &Entry, now: Tick) -> bool {
    matches!(entry.state_at(now, || 0), EntryState::Fresh { .. })
}

/// Which share of the readers' requests was answered from memory, in hundredths.
#[derive(Clone, Copy, Debug)]
pub struct Ratios {
    pub all: f64,
    /// Of the entries that are asked for most.
    pub hot: f64,
    /// Of these, while a sweep goes on and until what was fresh before it is not.
    pub amid: f64,
    /// Answers held in the end.
    pub held: u64,
}

/// How long after a sweep points that were fresh before it may still be so.
const AFTER: Duration = Duration::from_secs(30);

/// Counted from here on: before, everything is asked for the first time.
const WARM: Duration = Duration::from_secs(1800);

/// The entries that readers ask for most: one in a hundred of all they ever ask for.
pub fn hot(asks: &[Ask]) -> HashSet<EntryKey> {
    let mut counts: HashMap<EntryKey, u32> = HashMap::new();
    for ask in asks.iter().filter(|ask| ask.by == By::Reader) {
        *counts.entry(ask.entry).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(at, count)| (std::cmp::Reverse(*count), at.realm.0, at.member, at.read.index()));
    counts.truncate(counts.len().div_ceil(100));
    counts.into_iter().map(|(at, _)| at).collect()
}

/// How many different entries readers ask for.
pub fn entries(asks: &[Ask]) -> usize {
    asks.iter().filter(|ask| ask.by == By::Reader).map(|ask| ask.entry).collect::<HashSet<_>>().len()
}

/// Replays the requests. `sweep_for`: how long the sweep goes on from each full hour.
pub fn replay(asks: &[Ask], cache: &Cache, hot: &HashSet<EntryKey>, sweep_for: Duration, mut on: impl Trial) -> Ratios {
    let clock = Clock::manual(0);
    let (mut all, mut hottest, mut amid) = (Count::default(), Count::default(), Count::default());
    let mut past = Duration::ZERO;
    for ask in asks {
        clock.advance(ask.at - past);
        past = ask.at;
        let now = clock.now();
        if ask.by == By::Writer {
            on.write(ask.entry, now);
            continue;
        }
        let freshness = cache.of(ask.entry.read);
        let was_hit = on.read(ask.entry, freshness, now, &text(&ask.entry));
        if ask.by == By::Reader && ask.at >= WARM {
            all.add(was_hit);
            if hot.contains(&ask.entry) {
                hottest.add(was_hit);
                let in_hour = Duration::from_secs(ask.at.as_secs() % 3600);
                if ask.at.as_secs() >= 3600 && in_hour < sweep_for + AFTER {
                    amid.add(was_hit);
                }
            }
        }
    }
    Ratios { all: all.ratio(), hot: hottest.ratio(), amid: amid.ratio(), held: on.held() }
}

#[derive(Default)]
struct Count {
    asked: u32,
    hits: u32,
}

impl Count {
    fn add(&mut self, was_hit: bool) {
        self.asked += 1;
        self.hits += u32::from(was_hit);
    }

    fn ratio(&self) -> f64 {
        100.0 * f64::from(self.hits) / f64::from(self.asked.max(1))
    }
}

/// An answer of a likely length: points a few digits, one member in five with warns, reviews up to 8 KB.
fn text(at: &EntryKey) -> String {
    let chance = at.member.get() % 100;
    match at.read {
        Operation::GetPoints => (at.member.get() % 10_000).to_string(),
        Operation::GetWarns if chance < 20 => "w".repeat(90 * (1 + chance as usize % 3)),
        Operation::GetReviews if chance < 50 => "r".repeat(8000 / (1 + chance as usize)),
        _ => "{}".to_owned(),
    }
}
