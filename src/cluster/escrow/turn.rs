//! One turn as it is sent to Redis, and its answer: the numbers that `turn.lua` reads and returns.

use super::{BUCKETS, Bucket};
use crate::clock::Tick;
use crate::config::Tier;

/// The script of a turn.
pub const SCRIPT: &str = include_str!("turn.lua");

/// Flags of an answer.
const REPEATED: i64 = 1;
const LOST: i64 = 2;
const GARBAGE: i64 = 4;

/// Numbers of an answer before those of the buckets, and of each bucket.
const HEAD: usize = 2;
const OF_BUCKET: usize = 4;

/// One turn. If its answer is lost, the same turn is sent again.
#[derive(Clone, Debug)]
pub struct Turn {
    pub sequence: u64,
    /// When it was sent first: a lease counts from then.
    pub sent: Tick,
    pub(super) asks: [Ask; BUCKETS],
    pub(super) is_proven: bool,
}

/// What a turn says and asks of one bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ask {
    /// 0: not limited.
    pub capacity: u64,
    pub period_ns: u64,
    /// Tokens of the lease that were spent since the last turn.
    pub spent: u64,
    /// Requests that were admitted without a lease, while Redis was away.
    pub owed: u64,
    pub age_ns: u64,
    pub keep: u32,
    /// Tokens for requests that wait.
    pub need: u32,
    /// Tokens for the near future.
    pub want: u32,
    /// The level that this node knows, and at what time of Redis; for a server that has lost it.
    pub known: (i64, i64),
}

/// What Redis answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The turn had been taken already.
    pub is_repeated: bool,
    /// The server did not know this node's turn before: there was none, it has lost its data, or it has forgotten the turn
    /// after a long time.
    pub is_lost: bool,
    /// Something that was not ours stood in the key and was replaced.
    pub had_garbage: bool,
    /// Redis's time, in microseconds.
    pub now_us: i64,
    pub buckets: [Grant; BUCKETS],
}

/// What an answer says of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    pub held: u32,
    /// Until the lease ends.
    pub left_us: u64,
    /// Nanoseconds for a rate, requests for a day.
    pub level: i64,
    pub held_by_all: u64,
}

impl Turn {
    /// Whether this node holds or has spent anything that Redis must know.
    pub fn holds_any(&self) -> bool {
        self.asks.iter().any(|ask| ask.keep > 0 || ask.spent > 0)
    }

    /// The arguments of the script.
    pub fn arguments(&self, incarnation: &str, lease_us: u64) -> Vec<String> {
        let head = [incarnation.to_owned(), self.sequence.to_string(), lease_us.to_string()];
        let of_bucket = |ask: &Ask| {
            let Ask { capacity, period_ns, spent, owed, age_ns, keep, need, want, known } = *ask;
            let (keep, need, want) = (u64::from(keep), u64::from(need), u64::from(want));
            let counts = [capacity, period_ns, spent, owed, age_ns / 1000, keep, need, want];
            counts.map(|n| n.to_string()).into_iter().chain([known.0.to_string(), known.1.to_string()])
        };
        let is_proven = u8::from(self.is_proven).to_string();
        head.into_iter().chain(self.asks.iter().flat_map(of_bucket)).chain([is_proven]).collect()
    }
}

impl Answer {
    /// The answer of the script; `None` if it is not one.
    pub fn read(numbers: &[i64]) -> Option<Self> {
        let [flags, now_us, rest @ ..] = numbers else { return None };
        if rest.len() != BUCKETS * OF_BUCKET || numbers.len() != HEAD + rest.len() {
            return None;
        }
        let mut buckets = [Grant::default(); BUCKETS];
        for (grant, numbers) in buckets.iter_mut().zip(rest.chunks_exact(OF_BUCKET)) {
            let &[held, left_us, level, held_by_all] = numbers else { return None };
            *grant = Grant {
                held: u32::try_from(held).ok()?,
                left_us: u64::try_from(left_us).ok()?,
                level,
                held_by_all: u64::try_from(held_by_all).ok()?,
            };
        }
        let has = |flag| flags & flag != 0;
        let (is_repeated, is_lost, had_garbage) = (has(REPEATED), has(LOST), has(GARBAGE));
        Some(Answer { is_repeated, is_lost, had_garbage, now_us: *now_us, buckets })
    }
}

/// The capacity and the period of a bucket under a tier; 0: not limited.
pub(super) fn capacity(tier: &Tier, bucket: Bucket) -> (u64, u64) {
    let of_rate = |rate: &crate::config::Rate| (u64::from(rate.burst.get()), rate.period_ns);
    match bucket {
        Bucket::Main => of_rate(&tier.main),
        Bucket::Write => tier.write.as_ref().map_or((0, 1), of_rate),
        Bucket::Candidate => tier.candidate.as_ref().map_or((0, 1), of_rate),
        Bucket::Daily => (tier.daily.unwrap_or(0), 0),
        Bucket::InFlight => (tier.in_flight.map_or(0, u64::from), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_another_form_is_none() {
        let whole = [0; HEAD + BUCKETS * OF_BUCKET];
        assert!(Answer::read(&whole).is_some());
        assert!(Answer::read(&whole[1..]).is_none() && Answer::read(&[]).is_none());
        let mut negative = whole;
        negative[HEAD] = -1;
        assert!(Answer::read(&negative).is_none());
    }
}
