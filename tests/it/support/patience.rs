//! How long tests wait, and how they poll for what is to happen instead of sleeping. `PATIENCE` measures nothing: it
//! only turns a hang into a failure that names its place. `SECOND_AND_SLACK` is for what the contract promises within
//! one second.

use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a test waits for what must come. Nothing is measured by it: it only turns a hang into a failure.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// The contract's "within one second", and another one in which other tests may have the cores. How long
/// it takes by itself is measured by `cargo bench --bench follow`, and not here.
pub const SECOND_AND_SLACK: Duration = Duration::from_secs(2);

/// Asks again until `holds`; fails, naming `what`, when `deadline` passes first.
#[track_caller]
pub fn eventually(deadline: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let end = Instant::now() + deadline;
        while !holds().await {
            assert!(Instant::now() < end, "{caller}: not within {deadline:?}: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The wall's clock, in whole Unix seconds.
pub fn unix_now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}
