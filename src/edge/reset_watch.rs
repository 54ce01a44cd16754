//! Detects that a caller has reset its connection while its request waits. A caller that has only finished sending
//! (FIN) still reads its answer, so that is no disconnect. A read would find a reset only behind every byte that came
//! before it, so the kernel is asked for the connection's state. A Unix socket has no resets.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::SocketDigest;
use tokio::time::{Instant, Sleep};

use super::timed_stream::wait_until;

/// How often the kernel is asked. What a caller holds must be free within 100 ms of its reset.
const INTERVAL: Duration = Duration::from_millis(50);

/// The state of a TCP connection that was reset (`TCP_CLOSE` in the kernel). After a FIN alone it is `TCP_CLOSE_WAIT`.
const CLOSED: u8 = 7;

/// Watches one connection.
#[derive(Debug)]
pub(super) struct ResetWatch {
    socket: Option<Arc<SocketDigest>>,
    /// Kept from one request that waits to the next.
    timer: Option<Pin<Box<Sleep>>>,
}

impl ResetWatch {
    pub(super) fn new(socket: Option<Arc<SocketDigest>>) -> Self {
        ResetWatch { socket, timer: None }
    }

    /// Completes once the connection is reset.
    pub(super) async fn reset(&mut self) {
        let Some(socket) = &self.socket else { return std::future::pending().await };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(INTERVAL)));
        loop {
            wait_until(timer, Instant::now() + INTERVAL).await;
            match socket.tcp_info() {
                Some(info) if info.tcpi_state == CLOSED => return,
                Some(_) => {}
                None => return std::future::pending().await,
            }
        }
    }
}
