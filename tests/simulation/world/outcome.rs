//! What came of a run, and by how much it exceeds the limits.

use super::World;

/// What came of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    pub admitted: u64,
    pub refused: u64,
    pub turns: u64,
    /// Requests over burst + rate * T, in the worst window of any bucket; negative or zero if none.
    pub excess: f64,
    pub over_day: i64,
    /// The fewest that were admitted on a day.
    pub least_day: i64,
    pub over_in_flight: i64,
    /// The count of the day in Redis, less what was admitted on it; of runs in which nothing was held too long.
    pub miscounted: i64,
    pub granted_in_lost_time: f64,
}

impl World {
    pub(super) fn judge(mut self) -> Outcome {
        let main = self.tiers.iter().map(|tier| (u64::from(tier.main.burst.get()), tier.main.period_ns));
        let most = main.reduce(|(burst, period), (b, p)| (burst.max(b), period.min(p))).unwrap();
        let mut excess = excess(&self.admitted[0], most);
        if let Some(write) = self.tiers[0].write {
            excess = excess.max(self::excess(&self.admitted[1], (u64::from(write.burst.get()), write.period_ns)));
        }
        self.outcome.excess = excess;
        let daily = self.tiers[0].daily;
        let most = |day: &i64| daily.map_or(i64::MIN, |daily| *day - daily as i64);
        self.outcome.over_day = self.by_day.values().map(most).max().unwrap_or(i64::MIN);
        self.outcome.least_day = self.by_day.values().copied().min().unwrap_or_default();
        if daily.is_some()
            && let Some((last, admitted)) = self.by_day.iter().max()
            && let Some(stored) = self.redis.fields().get("b:daily")
        {
            let mut words = stored.split(' ');
            let (count, day) = (words.next().unwrap(), words.next().unwrap());
            if *day == *last.to_string() {
                self.outcome.miscounted = count.parse::<i64>().unwrap() - admitted;
            }
        }
        self.outcome
    }
}

/// The most by which the requests of any window exceed burst + rate * T.
pub fn excess(times: &[u64], (burst, period): (u64, u64)) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let (mut least, mut worst) = (i128::MAX, i128::MIN);
    for (number, at) in times.iter().enumerate() {
        let level = number as i128 * i128::from(period) - i128::from(*at);
        least = least.min(level);
        worst = worst.max(level - least + i128::from(period) - i128::from(burst) * i128::from(period));
    }
    if worst == i128::MIN { f64::NEG_INFINITY } else { worst as f64 / period as f64 }
}
