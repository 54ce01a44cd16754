//! Notices that a caller has reset its connection while its request waits. A caller that has only
//! finished sending (FIN) has not hung up: it may still read its answer.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use pingora::protocols::SocketDigest;
use tokio::time::{Instant, Sleep};

use super::line::expired;

/// How often the connection of a request that waits is looked at. What a caller holds is to be free
/// within 100 ms of its reset.
const LOOK: Duration = Duration::from_millis(50);

/// The state of a TCP connection that was reset, as the kernel numbers them (`TCP_CLOSE`). One whose
/// peer has only finished sending is in another (`TCP_CLOSE_WAIT`).
const CLOSED: u8 = 7;

/// Watches one connection. A read would notice a reset only behind every byte that came before it,
/// so the kernel is asked for the connection's state. Over a Unix socket there are no resets.
#[derive(Debug)]
pub(super) struct HangUp {
    socket: Option<Arc<SocketDigest>>,
    /// Set anew rather than made anew for each request that waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl HangUp {
    pub(super) fn of(socket: Option<Arc<SocketDigest>>) -> Self {
        HangUp { socket, timer: None }
    }

    /// Drives a request. `Err`: its caller has hung up, and it has not ended. What is ready at once
    /// costs no look.
    pub(super) async fn attend<T>(&mut self, mut request: Pin<&mut impl Future<Output = T>>) -> Result<T, ()> {
        if let Poll::Ready(ended) = poll!(request.as_mut()) {
            return Ok(ended);
        }
        let noticed = pin!(self.noticed());
        tokio::select! {
            biased;
            ended = request => Ok(ended),
            () = noticed => Err(()),
        }
    }

    async fn noticed(&mut self) {
        let Some(socket) = &self.socket else { return std::future::pending().await };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(LOOK)));
        loop {
            expired(timer, Instant::now() + LOOK).await;
            match socket.tcp_info() {
                Some(info) if info.tcpi_state == CLOSED => return,
                Some(_) => {}
                None => return std::future::pending().await,
            }
        }
    }
}
