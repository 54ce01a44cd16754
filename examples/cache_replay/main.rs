//! How well the cache stands a scan: a day's traffic of a service, in small, against the gateway's own
//! cache and a plain LRU of as many bytes, each with and without the hourly sweep over every member of
//! a third of the guilds. `cargo run --example cache_replay` prints the table of
//! `docs/caching.md`; the test below holds what the table shows, on a smaller service.

mod replay; // the requests against a cache
mod workload; // who asks for what, and when

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use guildgate::cache::Answers;
use guildgate::config::{self, Cache};
use replay::{Lru, Ratios};
use workload::{By, Scale};

/// A tenth of a service of 2,500 guilds and 1,000 requests a second.
const SERVICE: Scale = Scale { guilds: 250, rate: 100.0, hours: 4, sweep_rate: 1000.0 };

/// Sizes of the cache: a tenth of the default, a third of that and three times as much.
const SIZES: [(&str, u64); 3] = [("2 MiB", 2 << 20), ("6.4 MiB", (64 << 20) / 10), ("20 MiB", 20 << 20)];

const SEED: u64 = 1;

/// One cache, without the sweep and with it.
struct Compared {
    calm: Ratios,
    swept: Ratios,
}

/// The traffic, once without and once with the sweep.
struct Traffic {
    calm: Vec<workload::Ask>,
    swept: Vec<workload::Ask>,
    sweep_for: Duration,
    hot: std::collections::HashSet<guildgate::cache::EntryKey>,
}

impl Traffic {
    fn of(scale: Scale) -> Self {
        let (calm, swept) = (workload::asks(scale, SEED, false), workload::asks(scale, SEED, true));
        let first = Duration::from_secs(3600);
        let second = Duration::from_secs(7200);
        let of_the_first = |ask: &&workload::Ask| ask.by == By::Sweep && ask.at < second;
        let sweep_for = swept.iter().rfind(of_the_first).map_or(Duration::ZERO, |last| last.at - first);
        Traffic { hot: replay::hot(&calm), calm, swept, sweep_for }
    }

    fn against<T: replay::Trial>(&self, cache: &Cache, trial: impl Fn() -> T) -> Compared {
        let run = |asks| replay::replay(asks, cache, &self.hot, self.sweep_for, trial());
        Compared { calm: run(&self.calm), swept: run(&self.swept) }
    }
}

/// The defaults of `gateway.toml`: how long answers are fresh.
fn defaults() -> Result<Cache, config::Problems> {
    Ok(config::load_str("", Path::new(""), "defaults")?.config.cache)
}

fn main() -> Result<(), Box<dyn Error>> {
    let cache = defaults()?;
    let traffic = Traffic::of(SERVICE);
    let readers = traffic.calm.len();
    let sweeps = traffic.swept.len() - readers;
    eprintln!(
        "{} guilds, {} hours, {readers} requests for {} entries, {} of them hot; {sweeps} of sweeps, {} s each hour",
        SERVICE.guilds,
        SERVICE.hours,
        replay::entries(&traffic.calm),
        traffic.hot.len(),
        traffic.sweep_for.as_secs(),
    );
    eprintln!("answered from memory, in percent: without the sweep -> with it");
    eprintln!("| size | cache | held | all readers | hot entries | hot entries during sweeps |");
    eprintln!("|---|---|---|---|---|---|");
    for (size, bytes) in SIZES {
        let ours = traffic.against(&cache, || Answers::<()>::new(bytes));
        let lru = traffic.against(&cache, || Lru::new(bytes));
        for (name, Compared { calm, swept }) in [("Guildgate's", ours), ("LRU", lru)] {
            let pair = |ratio: fn(&Ratios) -> f64| format!("{:.1} -> {:.1}", ratio(&calm), ratio(&swept));
            let (all, hot, amid) = (pair(|r| r.all), pair(|r| r.hot), pair(|r| r.amid));
            eprintln!("| {size} | {name} | {} | {all} | {hot} | {amid} |", swept.held);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small enough for every run of the tests.
    const SMALL: Scale = Scale { guilds: 60, rate: 40.0, hours: 3, sweep_rate: 400.0 };
    const SIZE: u64 = 1 << 20;

    #[test]
    fn an_hourly_sweep_does_not_wash_out_what_is_asked_for_most_and_would_wash_out_an_lru() {
        let (cache, traffic) = (defaults().unwrap(), Traffic::of(SMALL));
        assert!(traffic.swept.len() > traffic.calm.len() + 10_000, "there is no sweep to speak of");
        let ours = traffic.against(&cache, || Answers::<()>::new(SIZE));
        let lru = traffic.against(&cache, || Lru::new(SIZE));
        let told = |of: &Compared| format!("without {:?}\nwith {:?}", of.calm, of.swept);
        let told = format!("ours {}\nLRU {}", told(&ours), told(&lru));
        eprintln!("{told}");
        assert!(ours.swept.held * 10 < replay::entries(&traffic.calm) as u64, "it holds nearly all there is\n{told}");
        // moka's sketch has a random seed: between 1.7 and 3.3 in fifteen runs.
        assert!(ours.calm.amid - ours.swept.amid < 5.0, "the sweep washes out what is hot\n{told}");
        assert!(ours.calm.all - ours.swept.all < 2.0, "the sweep costs all readers\n{told}");
        assert!(lru.calm.amid - lru.swept.amid > 10.0, "the sweep is too weak to show anything\n{told}");
        assert!(ours.calm.hot + 1.0 > lru.calm.hot, "an LRU would do better when nobody sweeps\n{told}");
    }
}
