use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use guildgate::clock::Tick;
use guildgate::config::{Rate, Tier};
use guildgate::limits::{Budget, DecidedBy, LimitQuery, Policy};
use guildgate::wire::Operation;

use crate::chart::{Band, Figure, Line, Look, Mark, Panel, Point};

/// The grid on which is asked and looked, in milliseconds.
const STEP_MS: u64 = 5;

/// When the burst is lowered, and when it is raised again, in milliseconds.
const LOWERED_MS: u64 = 1_000;
const RAISED_MS: u64 = 4_000;

/// `rate = "20/s"`, as in the shipped tier `standard`.
const PERIOD_NS: u64 = 1_000_000_000 / 20;

fn policy(burst: u32) -> Policy {
    let main = Rate { period_ns: PERIOD_NS, burst: NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN) };
    Policy::new(Arc::new(Tier::new("standard", main)))
}

fn tick(ms: u64) -> Tick {
    Tick(ms * 1_000_000)
}

/// A caller and the budget it pays from, watched from 0 on.
struct Watched {
    policy: Policy,
    budget: Budget,
    asked: Vec<Point>,
    let_in: Vec<Point>,
    level: Vec<Point>,
}

impl Watched {
    fn new(policy: Policy) -> Self {
        let (budget, start) = (Budget::default(), vec![(0, 0)]);
        let full = budget.levels(&policy, tick(0), 0).rates[0].map_or(0, |(level, _)| level.remaining);
        Watched { policy, budget, asked: start.clone(), let_in: start, level: vec![(0, full)] }
    }

    fn remaining(&self, at_ms: u64) -> u64 {
        self.budget.levels(&self.policy, tick(at_ms), 0).rates[0].map_or(0, |(level, _)| level.remaining)
    }

    /// For so long, a request every `every_ms`; `None`: a pause.
    fn watch(&mut self, ms: Range<u64>, every_ms: Option<u64>) {
        for at in ms.step_by(STEP_MS as usize) {
            let query = LimitQuery { operation: Operation::GetPoints, in_flight: 0, now: tick(at) };
            let (mut asked, mut let_in) = (last(&self.asked), last(&self.let_in));
            if every_ms.is_some_and(|every| at.is_multiple_of(every)) {
                asked += 1;
                let decided = self.budget.decide(&self.policy, query, DecidedBy::ALONE, || 0);
                let_in += u64::from(decided.over.is_none());
            }
            self.asked.push((at, asked));
            self.let_in.push((at, let_in));
            self.level.push((at, self.remaining(at)));
        }
    }

    /// What a reload does to a key whose tier has another burst from now on. The level before and after.
    fn reload(&mut self, to: Policy, at_ms: u64) -> (u64, u64) {
        let before = self.remaining(at_ms);
        self.budget.change_tier(to.tier(), tick(at_ms));
        self.policy = to;
        let levels = (before, self.remaining(at_ms));
        self.level.extend([(at_ms, levels.0), (at_ms, levels.1)]);
        levels
    }
}

fn last(points: &[Point]) -> u64 {
    points.last().map_or(0, |(_, value)| *value)
}

/// How much a line had grown to at a moment.
fn at(points: &[Point], ms: u64) -> u64 {
    points.iter().rev().find(|(at, _)| *at <= ms).map_or(0, |(_, value)| *value)
}

/// 100 requests a second for three seconds, a pause of three, and the same again.
pub fn burst() -> Figure {
    let mut key = Watched::new(policy(40));
    key.watch(0..3_000, Some(10));
    key.watch(3_000..6_000, None);
    key.watch(6_000..9_000, Some(10));
    let bound = [0, 9_000].map(|ms| (ms, 40 + ms * 20 / 1_000)).to_vec();
    let told = format!(
        "{} of the first {} requests are let in, and {} of all {}.",
        at(&key.let_in, 3_000),
        at(&key.asked, 3_000),
        last(&key.let_in),
        last(&key.asked)
    );
    Figure {
        title: "A caller that asks 100 times a second, under rate 20/s and burst 40",
        desc: format!(
            "{told} The first 40 and what comes back meanwhile are let in at once; then 20 a second. \
             In the pause the bucket is full again after 2 seconds and holds no more than 40."
        ),
        told,
        until_ms: 9_000,
        bands: vec![
            Band { ms: 0..3_000, text: "asks 100 a second" },
            Band { ms: 3_000..6_000, text: "pauses" },
            Band { ms: 6_000..9_000, text: "asks 100 a second" },
        ],
        marks: Vec::new(),
        panels: vec![
            Panel {
                axis: "requests so far",
                most: 600,
                grid: 100,
                lines: vec![
                    Line { name: "asked", look: Look::Asked, points: key.asked },
                    Line { name: "let in", look: Look::LetIn, points: key.let_in },
                    Line { name: "most: burst + rate × time", look: Look::Other, points: bound },
                ],
            },
            Panel {
                axis: "tokens",
                most: 40,
                grid: 10,
                lines: vec![Line { name: "in the bucket", look: Look::Level, points: key.level }],
            },
        ],
    }
}

/// 40 requests a second for three seconds; a reload lowers the burst meanwhile, and another one raises it
/// again in the pause.
pub fn reload() -> Figure {
    let (mut key, mut without) = (Watched::new(policy(40)), Watched::new(policy(40)));
    key.watch(0..LOWERED_MS, Some(25));
    let lowered = key.reload(policy(10), LOWERED_MS);
    key.watch(LOWERED_MS..3_000, Some(25));
    key.watch(3_000..RAISED_MS, None);
    let raised = key.reload(policy(40), RAISED_MS);
    key.watch(RAISED_MS..7_005, None);
    without.watch(0..3_000, Some(25));
    without.watch(3_000..7_005, None);
    let told = format!(
        "At the first, {} of 40 tokens are left; after it, {} of 10. At the second, {} of 10 are there; after it, {} of 40.",
        lowered.0, lowered.1, raised.0, raised.1
    );
    Figure {
        title: "Reloads that lower the burst while a caller asks, and raise it again",
        desc: format!(
            "{told} So no reload raises what is available. From the second one on the bucket has room for 40 \
             again, and fills up at 20 a second."
        ),
        told,
        until_ms: 7_000,
        bands: vec![Band { ms: 0..3_000, text: "asks 40 a second" }, Band { ms: 3_000..7_000, text: "pauses" }],
        marks: vec![
            Mark { ms: LOWERED_MS, text: "reload: burst 40 → 10" },
            Mark { ms: RAISED_MS, text: "reload: burst 10 → 40" },
        ],
        panels: vec![
            Panel {
                axis: "requests so far",
                most: 120,
                grid: 20,
                lines: vec![
                    Line { name: "asked", look: Look::Asked, points: key.asked },
                    Line { name: "let in", look: Look::LetIn, points: key.let_in },
                    Line { name: "let in without the reloads", look: Look::Other, points: without.let_in },
                ],
            },
            Panel {
                axis: "tokens",
                most: 40,
                grid: 10,
                lines: vec![
                    Line { name: "in the bucket", look: Look::Level, points: key.level },
                    Line { name: "without the reloads", look: Look::Other, points: without.level },
                ],
            },
        ],
    }
}
