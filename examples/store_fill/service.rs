//! A made-up service, seeded, so that it is the same each time: its guilds, who is in them, and what was
//! said of whom.

use std::io::{self, Write};

use fastrand::Rng;
use guildgate::model::{MemberId, Note, REVIEW, WARN};
use guildgate::store::Record;

/// Members of a guild: log-normal, with this median and shape, so 1,478 on average.
const MEDIAN_MEMBERS: f64 = 200.0;
const SHAPE: f64 = 2.0;

/// Guilds that a person is in, on average.
const GUILDS_EACH: u64 = 5;

/// The largest guild has no more than one person in so many.
const LARGEST_SHARE: u64 = 2;

/// Ids are of 17 to 19 digits, as those of a service that has given them out for ten years: milliseconds
/// since its first day above 22 bits that are nearly random.
const FIRST_MS: u64 = 2_400_000_000;
const LAST_MS: u64 = 340_000_000_000;
const LOW_BITS: u32 = 22;

/// One member in so many was ever warned, or reviewed; each further one is there in 4 of 10 cases.
const WARNED: u32 = 30;
const REVIEWED: u32 = 50;
const MORE: f64 = 0.4;
const MOST_NOTES: u32 = 25;

/// A review's bytes: log-normal with this median and shape, and no more than a chat's longest text in
/// four-byte characters.
const MEDIAN_REVIEW: f64 = 120.0;
const REVIEW_SHAPE: f64 = 1.1;
const LONGEST_REVIEW: usize = 8000;

/// The day that warns were written around, in Unix seconds: half of them have expired by then.
const TODAY: i64 = 1_900_000_000;
const YEAR: i64 = 365 * 86_400;

const SYLLABLES: [&str; 24] = [
    "ba", "dor", "el", "fin", "gra", "hil", "is", "jo", "kar", "li", "mon", "na", "or", "pe", "qui", "ra", "sol",
    "tha", "ul", "ven", "wyn", "xa", "yo", "ze",
];

/// What names of chat users are adorned with.
const ADORNED: [&str; 6] = ["★", "_tv", " 2", "é", "🦊", "日本"];

/// All of it. Guilds are in the order of an export.
pub struct Service {
    pub guilds: Vec<Guild>,
    people: People,
}

/// A guild, and who is in it.
pub struct Guild {
    pub id: String,
    pub members: u64,
    /// Which of the people they are: every `stride`th from `first` on, round and round.
    first: u64,
    stride: u64,
    seed: u64,
}

/// Everybody who is in any guild.
#[derive(Clone, Copy)]
struct People {
    /// A prime, so that any stride visits everybody before it comes back.
    count: u64,
    seed: u64,
}

impl Service {
    pub fn new(guilds: u64, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        // Each guild has a part of the distribution of its own, so that few guilds have it as well as many.
        let mut sizes: Vec<u64> = (0..guilds).map(|n| members((n as f64 + 0.5) / guilds as f64)).collect();
        let (all, largest) = (sizes.iter().sum::<u64>(), sizes.iter().max().copied().unwrap_or(1));
        let people = People { count: prime_from((all / GUILDS_EACH).max(largest * LARGEST_SHARE)), seed };
        rng.shuffle(&mut sizes);
        let guild = |(n, members)| Guild {
            id: snowflake(n as u64, guilds, seed ^ 1).to_string(),
            members,
            first: rng.u64(0..people.count),
            stride: rng.u64(1..people.count),
            seed: rng.u64(..),
        };
        let mut guilds: Vec<Guild> = sizes.into_iter().enumerate().map(guild).collect();
        guilds.sort_by(|one, other| one.id.cmp(&other.id));
        Service { guilds, people }
    }

    pub fn members(&self) -> u64 {
        self.guilds.iter().map(|guild| guild.members).sum()
    }

    /// A member of a guild by its rank there, from 0: how much is asked about it.
    pub fn member(&self, guild: &Guild, rank: u64) -> MemberId {
        self.people.id(guild.first + guild.stride * rank)
    }

    /// Writes everything as JSON Lines, as an export would; answers how many records there are.
    pub fn write(&self, to: &mut impl Write) -> io::Result<u64> {
        let mut lines = Lines { to, count: 0 };
        self.guilds.iter().try_for_each(|guild| self.write_guild(guild, &mut lines))?;
        lines.to.flush()?;
        Ok(lines.count)
    }

    fn write_guild(&self, guild: &Guild, lines: &mut Lines<impl Write>) -> io::Result<()> {
        let mut rng = Rng::with_seed(guild.seed);
        let id = guild.id.parse().map_err(io::Error::other)?;
        lines.put(&Record::Guild { guild: id, name: name(&mut rng) })?;
        let mut members: Vec<MemberId> = (0..guild.members).map(|rank| self.member(guild, rank)).collect();
        members.sort_unstable();
        let (mut warn, mut review) = (0, 0);
        for member in members {
            let guild = || guild.id.parse().map_err(io::Error::other);
            lines.put(&Record::Member { guild: guild()?, member, name: name(&mut rng), points: points(&mut rng) })?;
            for _ in 0..notes(&mut rng, WARNED) {
                warn += 1;
                let (author, reason) = (name(&mut rng), words(&mut rng, 20..120));
                let expires = TODAY + rng.i64(-YEAR..YEAR);
                let note = Note { id: warn, author, text: reason, number: expires };
                lines.put(&Record::Note { guild: guild()?, member, kind: &WARN, note })?;
            }
            for _ in 0..notes(&mut rng, REVIEWED) {
                review += 1;
                let author = name(&mut rng);
                let length = log_normal(rng.f64(), MEDIAN_REVIEW, REVIEW_SHAPE) as usize;
                let text = words(&mut rng, length..length + 10);
                let note = Note { id: review, author, text, number: rng.u8(1..=5).into() };
                lines.put(&Record::Note { guild: guild()?, member, kind: &REVIEW, note })?;
            }
        }
        Ok(())
    }
}

struct Lines<'w, W> {
    to: &'w mut W,
    count: u64,
}

impl<W: Write> Lines<'_, W> {
    fn put(&mut self, record: &Record) -> io::Result<()> {
        self.count += 1;
        serde_json::to_writer(&mut *self.to, record)?;
        self.to.write_all(b"\n")
    }
}

impl People {
    fn id(self, nth: u64) -> MemberId {
        let id = snowflake(nth % self.count, self.count, self.seed);
        MemberId::new(id).unwrap_or_else(|| unreachable!("it has 19 digits at the most"))
    }
}

/// The `nth` id of `count`; no two are the same while there are fewer than milliseconds.
fn snowflake(nth: u64, count: u64, seed: u64) -> u64 {
    let ms = FIRST_MS + nth * ((LAST_MS - FIRST_MS) / count.max(1));
    let low = Rng::with_seed(seed.wrapping_add(nth)).u64(..1 << LOW_BITS);
    ms << LOW_BITS | low
}

fn members(part: f64) -> u64 {
    (log_normal(part, MEDIAN_MEMBERS, SHAPE) as u64).max(1)
}

/// What so large a part of a log-normal distribution is below.
fn log_normal(part: f64, median: f64, shape: f64) -> f64 {
    median * (shape * normal(part.clamp(1e-9, 1.0 - 1e-9))).exp()
}

/// What so large a part of the normal distribution is below, to the third decimal (Hastings).
fn normal(part: f64) -> f64 {
    let t = (-2.0 * part.min(1.0 - part).ln()).sqrt();
    let tail = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
    if part < 0.5 { -tail } else { tail }
}

fn prime_from(least: u64) -> u64 {
    let is_prime = |n: &u64| (2..).take_while(|by| by * by <= *n).all(|by| !n.is_multiple_of(by));
    (least.max(2)..).find(is_prime).unwrap_or(2)
}

fn notes(rng: &mut Rng, one_in: u32) -> u32 {
    if rng.u32(0..one_in) != 0 {
        return 0;
    }
    let mut count = 1;
    while count < MOST_NOTES && rng.f64() < MORE {
        count += 1;
    }
    count
}

/// Half of all members were never given any.
fn points(rng: &mut Rng) -> i64 {
    if rng.bool() { 0 } else { log_normal(rng.f64(), 300.0, 1.5) as i64 }
}

fn name(rng: &mut Rng) -> String {
    let mut name: String = (0..rng.u32(2..=5)).map(|_| SYLLABLES[rng.usize(..SYLLABLES.len())]).collect();
    if rng.u32(0..4) == 0 {
        name += ADORNED[rng.usize(..ADORNED.len())];
    }
    name
}

/// Names in a row, of about so many bytes.
fn words(rng: &mut Rng, length: std::ops::Range<usize>) -> String {
    // A name is no shorter than two bytes.
    let length = rng.usize(length).clamp(2, LONGEST_REVIEW);
    let mut text = name(rng);
    while text.len() < length {
        text.push(' ');
        text += &name(rng);
    }
    text.truncate(text.floor_char_boundary(length));
    text
}
