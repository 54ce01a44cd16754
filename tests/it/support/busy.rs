//! A client that writes the same amounts to two members in turn while a test copies or exports the store. A copy is of
//! one moment only if the first member has as much as the second, or one more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

use super::{Request, TestGateway};

/// Somebody who goes on writing while others look at the store: the same amount for two members, again and again. At
/// any moment the first has as much as the second, or one more.
pub struct BusyWriter {
    stop: Arc<AtomicBool>,
    writing: JoinHandle<i64>,
}

impl BusyWriter {
    /// Writes what `request` makes of the first (0), the second (1), and the amount, which grows from 1 on.
    pub fn start(gate: &Arc<TestGateway>, request: fn(&TestGateway, usize, i64) -> Request) -> BusyWriter {
        let stop = Arc::new(AtomicBool::new(false));
        let (gate, until) = (gate.clone(), stop.clone());
        let writing = tokio::spawn(async move {
            let mut connection = gate.connect().await;
            let mut amount = 0;
            while !until.load(Ordering::Relaxed) {
                amount += 1;
                for which in [0, 1] {
                    let answer = connection.ask(&request(&gate, which, amount)).await;
                    assert_eq!(answer.status, 200, "{answer:#?}");
                }
            }
            amount
        });
        BusyWriter { stop, writing }
    }

    /// Asserts that what was seen of both is of one moment, and of none before `last`; gives the first's.
    #[track_caller]
    pub fn is_one_moment((first, second): (i64, i64), last: i64) -> i64 {
        assert!(first - second == 0 || first - second == 1, "{first} and {second} are of two moments");
        assert!(first >= last, "an older moment than the one seen before: {first} after {last}");
        first
    }

    /// Ends it; what was seen last is not ahead of it, and is something.
    pub async fn end(self, last: i64) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.writing.await.unwrap() >= last && last > 0);
    }
}
