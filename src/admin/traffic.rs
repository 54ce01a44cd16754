//! The requests of the last 15 minutes, for the page that shows them: the gateway's counts, read every five seconds.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Tick;
use crate::gateway::Gateway;
use crate::telemetry::metrics::RequestTotals;

pub(super) const INTERVAL: Duration = Duration::from_secs(5);

/// One more than there are intervals in 15 minutes. A sample has 1.2 KB.
const SAMPLES: usize = 181;

/// The counts at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Tick,
    pub(super) totals: RequestTotals,
}

/// The counts of the last 15 minutes, oldest first.
#[derive(Debug, Default)]
pub(super) struct Traffic(Mutex<VecDeque<Sample>>);

impl Sample {
    pub(super) fn now(gateway: &Gateway) -> Self {
        Sample { at: gateway.clock().now(), totals: gateway.observer.totals() }
    }
}

impl Traffic {
    pub(super) fn add(&self, sample: Sample) {
        let mut samples = self.0.lock();
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// The samples, and the counts of this moment as the last one.
    pub(super) fn samples(&self, gateway: &Gateway) -> Vec<Sample> {
        let mut samples: Vec<Sample> = self.0.lock().iter().cloned().collect();
        samples.push(Sample::now(gateway));
        samples
    }
}

/// The upper bound that a share of `buckets` (counts by `bounds`, and above the last) does not exceed; `None` inside:
/// above the last bound. `None`: there are no counts.
pub(super) fn quantile(buckets: &[u64], bounds: &[Duration], share: f64) -> Option<Option<Duration>> {
    let all: u64 = buckets.iter().sum();
    let rank = ((all as f64 * share).ceil() as u64).max(1);
    let mut seen = 0;
    let bucket = buckets.iter().position(|n| {
        seen += n;
        seen >= rank
    })?;
    Some(bounds.get(bucket).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bound_of_the_bucket_that_holds_it() {
        let bounds = [1, 2].map(Duration::from_millis);
        let of = |buckets: [u64; 3], share| quantile(&buckets, &bounds, share);
        assert_eq!(of([0, 0, 0], 0.5), None);
        assert_eq!(of([98, 1, 1], 0.5), Some(Some(bounds[0])));
        assert_eq!(of([98, 1, 1], 0.99), Some(Some(bounds[1])));
        assert_eq!(of([98, 1, 1], 1.0), Some(None));
        assert_eq!(of([1, 0, 0], 0.0), Some(Some(bounds[0])));
    }
}
