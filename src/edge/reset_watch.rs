//! Detects that a caller has reset its connection while its request waits. A caller that has only finished sending
//! (FIN) still reads its answer, so that is no disconnect. A read would find a reset only behind every byte that came
//! before it, so the kernel is asked for the connection's state. A Unix socket has no resets.

use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::time::Duration;

use pingora::protocols::l4::ext::get_tcp_info;
use tokio::time::{Instant, Sleep};

use super::socket::CLOSED;
use super::timed_stream::wait_until;
use super::transport::{self, Transport};

/// How often the kernel is asked. What a caller holds must be free within 100 ms of its reset.
const INTERVAL: Duration = Duration::from_millis(50);

/// Watches one connection.
#[derive(Debug)]
pub(super) struct ResetWatch {
    /// The number of its TCP socket, which is open as long as this is used.
    socket: Option<RawFd>,
    /// Kept from one request that waits to the next.
    timer: Option<Pin<Box<Sleep>>>,
}

impl ResetWatch {
    pub(super) fn new(transport: &Transport) -> Self {
        ResetWatch { socket: transport::socket(transport).tcp().map(|socket| socket.as_raw_fd()), timer: None }
    }

    /// Completes once the connection is reset.
    pub(super) async fn reset(&mut self) {
        let Some(socket) = self.socket else { return std::future::pending().await };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(INTERVAL)));
        loop {
            wait_until(timer, Instant::now() + INTERVAL).await;
            match get_tcp_info(socket) {
                Ok(info) if info.tcpi_state == CLOSED => return,
                Ok(_) => {}
                Err(_) => return std::future::pending().await,
            }
        }
    }
}
