//! How connections end when the server stops or hands over. There are two steps: first every answer becomes the last
//! one of its connection, later those connections are closed on which no request is under way. An idle connection stays
//! open between the two, since a request may be on its way on it. `cli` decides when each step is taken; connections
//! only read the state.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::watch;

const SERVING: u8 = 0;
const HANDED_OVER: u8 = 1;
const STOPPING: u8 = 2;

/// How the process ends. First every answer becomes its connection's last, then, a while later,
/// nothing more is waited for that has not begun.
///
/// In between, a connection that idles stays: its caller may be sending the next request at this
/// moment, and over HTTP/1.1 there is no other way to tell it than in an answer.
#[derive(Debug)]
pub struct Draining {
    stage: AtomicU8,
    idle_is_over: watch::Sender<bool>,
}

impl Default for Draining {
    fn default() -> Self {
        Draining { stage: AtomicU8::new(SERVING), idle_is_over: watch::Sender::new(false) }
    }
}

impl Draining {
    /// Every answer is its connection's last from here on; `handed_over`: another process serves
    /// the addresses.
    pub fn begin(&self, handed_over: bool) {
        self.stage.store(if handed_over { HANDED_OVER } else { STOPPING }, Ordering::Release);
    }

    /// Connections on which nothing is under way are closed from here on.
    pub fn end_idle(&self) {
        self.idle_is_over.send_replace(true);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.stage.load(Ordering::Acquire) != SERVING
    }

    /// Whether nobody will serve these addresses any more: the health path is asked about them, and
    /// not about this process.
    pub(super) fn ends_service(&self) -> bool {
        self.stage.load(Ordering::Acquire) == STOPPING
    }

    /// Whether [`Draining::end_idle`] was said.
    pub(super) fn idle_is_over(&self) -> bool {
        *self.idle_is_over.borrow()
    }

    /// Waits for [`Draining::end_idle`].
    pub(super) fn until_idle_is_over(&self) -> impl Future<Output = ()> + use<> {
        let mut over = self.idle_is_over.subscribe();
        async move {
            // An error means that the server is gone, which is an end as well.
            let _ = over.wait_for(|over| *over).await;
        }
    }
}
