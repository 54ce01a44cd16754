//! No record stays in a log's ring without its thread being woken for it. The ring is a mutex here: its own accesses are
//! sequentially consistent, as `Wakeup` asks for.

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::thread;

#[path = "../../src/telemetry/wakeup.rs"]
mod file;

use file::Wakeup;

const TRIES: usize = 20_000;

/// When the thread clears the wake-up.
#[derive(Clone, Copy, PartialEq)]
enum Clears {
    BeforeEmptying,
    /// A bug.
    AfterEmptying,
}

/// Two threads queue two records each. The thread ends once it has all of them; if it waits for ever, the checker finds
/// a deadlock.
fn queue_and_empty(clears: Clears) {
    let (ring, wakeup) = (Arc::new(Mutex::new(0)), Arc::new(Wakeup::new()));
    let (theirs, woken) = (ring.clone(), wakeup.clone());
    let writer = thread::spawn(move || {
        let mut taken = 0;
        loop {
            if clears == Clears::BeforeEmptying {
                woken.clear();
            }
            taken += std::mem::take(&mut *theirs.lock().unwrap());
            if clears == Clears::AfterEmptying {
                woken.clear();
            }
            if taken == 4 {
                return;
            }
            woken.wait(None);
        }
    });
    wakeup.set_thread(writer.thread().clone());
    let queues = [(); 2].map(|()| {
        let (ring, wakeup) = (ring.clone(), wakeup.clone());
        thread::spawn(move || {
            for _ in 0..2 {
                *ring.lock().unwrap() += 1;
                wakeup.wake();
            }
        })
    });
    queues.into_iter().for_each(|queue| queue.join().unwrap());
    writer.join().unwrap();
}

#[test]
fn a_record_never_stays_in_the_ring_while_the_thread_waits() {
    shuttle::check_random(|| queue_and_empty(Clears::BeforeEmptying), TRIES);
    shuttle::check_pct(|| queue_and_empty(Clears::BeforeEmptying), TRIES, 3);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_wake_up_that_is_cleared_after_the_ring_was_emptied_is_caught() {
    shuttle::check_random(|| queue_and_empty(Clears::AfterEmptying), TRIES);
}
