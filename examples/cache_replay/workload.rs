//! Who asks for what, and when: a service of some guilds, seeded, so that it is the same each time.

use std::time::Duration;

use fastrand::Rng;
use guildgate::cache::{EntryKey, Realm};
use guildgate::model::MemberId;
use guildgate::wire::Operation;

/// How large the service is, and how hard it is swept.
#[derive(Clone, Copy)]
pub struct Scale {
    pub guilds: u64,
    /// Requests a second, without the sweeps'.
    pub rate: f64,
    /// How long it goes on.
    pub hours: u64,
    /// Requests a second while a sweep goes on: as fast as its callers can.
    pub sweep_rate: f64,
}

/// Members of a guild: log-normal, with this median and shape (so 1,500 on average), and no more than this.
const MEDIAN_MEMBERS: f64 = 200.0;
const SHAPE: f64 = 2.0;
const MOST_MEMBERS: f64 = 50_000.0;

/// How much more the first is asked for than those after it: guilds by their keys, members in a guild.
const ZIPF_GUILDS: f64 = 1.1;
const ZIPF_MEMBERS: f64 = 0.9;

/// One guild in three has a bot that reads the points of every member at the full hour.
const SWEPT: u64 = 3;

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub at: Duration,
    pub by: By,
    pub entry: EntryKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Bots, websites and game servers, who read what they need.
    Reader,
    /// A setPoints of one of them.
    Writer,
    /// Someone who reads everything, in order.
    Sweep,
}

/// All requests, in order.
pub fn asks(scale: Scale, seed: u64, swept: bool) -> Vec<Ask> {
    let mut rng = Rng::with_seed(seed);
    let members: Vec<u64> = (0..scale.guilds).map(|_| members(&mut rng)).collect();
    let end = Duration::from_secs(3600 * scale.hours);
    let mut asks = Vec::new();
    let mut now = Duration::ZERO;
    while now < end {
        let count = session(&mut rng, &members, now, &mut asks);
        now += Duration::from_secs_f64(count as f64 / scale.rate * -rng.f64().max(1e-9).ln());
    }
    if swept {
        (1..scale.hours).for_each(|hour| sweep(scale, &members, hour, &mut asks));
    }
    asks.sort_by_key(|ask| ask.at);
    asks
}

/// What a caller asks for in one go; how many requests that is. Two in three are bots' (read,
/// maybe write, read back), the others a website's (a page's worth of reads at once) or a game
/// server's after its start.
fn session(rng: &mut Rng, members: &[u64], now: Duration, asks: &mut Vec<Ask>) -> usize {
    let guild = zipf(rng, members.len() as u64, ZIPF_GUILDS);
    let any = |rng: &mut Rng| zipf(rng, members[guild as usize], ZIPF_MEMBERS);
    let mut add = |after_ms: u64, by: By, member: u64, read: Operation| {
        let entry = EntryKey { realm: Realm(guild), member: id(guild, member), read };
        asks.push(Ask { at: now + Duration::from_millis(after_ms), by, entry });
    };
    // By how many requests each brings, a bot's session is 20 times as frequent as a page.
    match rng.u32(0..1000) {
        0..940 => {
            let member = any(rng);
            add(0, By::Reader, member, read(rng));
            if rng.u32(0..100) < 40 {
                add(60, By::Writer, member, Operation::GetPoints);
                add(100, By::Reader, member, Operation::GetPoints);
                return 3;
            }
            1
        }
        940..995 => {
            let count = rng.usize(10..=50);
            (0..count).for_each(|_| add(0, By::Reader, any(rng), read(rng)));
            count
        }
        _ => {
            let count = rng.usize(50..=200);
            (0..count as u64).for_each(|n| add(n, By::Reader, any(rng), Operation::GetPoints));
            count
        }
    }
}

fn sweep(scale: Scale, members: &[u64], hour: u64, asks: &mut Vec<Ask>) {
    let begin = Duration::from_secs(3600 * hour);
    let guilds = (0..scale.guilds).filter(|guild| guild % SWEPT == 0);
    let all = guilds.flat_map(|guild| (0..members[guild as usize]).map(move |member| (guild, member)));
    for (n, (guild, member)) in all.enumerate() {
        let at = begin + Duration::from_secs_f64(n as f64 / scale.sweep_rate);
        let entry = EntryKey { realm: Realm(guild), member: id(guild, member), read: Operation::GetPoints };
        asks.push(Ask { at, by: By::Sweep, entry });
    }
}

fn read(rng: &mut Rng) -> Operation {
    match rng.u32(0..100) {
        0..75 => Operation::GetPoints,
        75..90 => Operation::GetWarns,
        _ => Operation::GetReviews,
    }
}

fn members(rng: &mut Rng) -> u64 {
    // Two even draws make a normal one (Box and Muller).
    let normal = (-2.0 * rng.f64().max(1e-12).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos();
    (MEDIAN_MEMBERS * (SHAPE * normal).exp()).clamp(1.0, MOST_MEMBERS) as u64
}

/// A number below `count`, the small ones more often: Zipf's law, smoothed so that it can be inverted.
fn zipf(rng: &mut Rng, count: u64, exponent: f64) -> u64 {
    let rest = 1.0 - exponent;
    let most = ((count + 1) as f64).powf(rest);
    let rank = (1.0 + rng.f64() * (most - 1.0)).powf(1.0 / rest);
    (rank as u64).clamp(1, count) - 1
}

/// Ids look like snowflakes, and a guild's are not in the order in which they are asked for.
fn id(guild: u64, member: u64) -> MemberId {
    let mixed = Rng::with_seed(guild << 32 | member).u64(..);
    let id = MemberId::new(100_000_000_000_000_000 + mixed % 1_000_000_000_000_000_000);
    id.unwrap_or_else(|| unreachable!("it has 19 digits at the most"))
}
