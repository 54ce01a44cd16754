//! How connections end when the process stops or hands over, in two steps. First every answer becomes the last one of
//! its connection; later the connections without a request under way are closed. An idle connection stays open between
//! the two, because its next request may be on the way, and HTTP/1.1 can announce the end only in an answer. A stop may
//! be delayed before both: only the health path fails then. `process` decides when each step is taken (through
//! `Server`); connections only read the state.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::watch;

const SERVING: u8 = 0;
/// `server.drain_delay` passes.
const DELAYED: u8 = 1;
const HANDED_OVER: u8 = 2;
const STOPPING: u8 = 3;

/// How far the drain has come.
#[derive(Debug)]
pub(super) struct Drain {
    stage: AtomicU8,
    closes_idle: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Self {
        Drain { stage: AtomicU8::new(SERVING), closes_idle: watch::Sender::new(false) }
    }
}

impl Drain {
    /// Makes the health path answer 503 from now on, and nothing else.
    pub(super) fn delay(&self) {
        self.stage.store(DELAYED, Ordering::Release);
    }

    /// Makes every answer from now on the last one of its connection. `handed_over`: another process serves the
    /// addresses.
    pub(super) fn begin(&self, handed_over: bool) {
        self.stage.store(if handed_over { HANDED_OVER } else { STOPPING }, Ordering::Release);
    }

    /// Closes connections without a request under way, from now on.
    pub(super) fn close_idle(&self) {
        self.closes_idle.send_replace(true);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.stage.load(Ordering::Acquire) >= HANDED_OVER
    }

    /// Whether nobody serves these addresses any more, now or after the delay. The health path answers for the addresses, not for this
    /// process.
    pub(super) fn ends_service(&self) -> bool {
        matches!(self.stage.load(Ordering::Acquire), DELAYED | STOPPING)
    }

    pub(super) fn closes_idle(&self) -> bool {
        *self.closes_idle.borrow()
    }

    /// Waits until idle connections are closed.
    pub(super) fn until_idle_closes(&self) -> impl Future<Output = ()> + use<> {
        let mut closes = self.closes_idle.subscribe();
        async move {
            // An error means that the server is gone, which is an end as well.
            let _ = closes.wait_for(|closes| *closes).await;
        }
    }
}
