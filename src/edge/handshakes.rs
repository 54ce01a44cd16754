//! Runs TLS handshakes on threads of their own, with a lower priority than the threads that serve. A handshake costs as
//! much processor time as many answers, so a crowd of new connections would otherwise delay every request on the same
//! thread. Dropping the future that waits for a handshake cancels it. Only `tls` uses this.

use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use super::socket::Socket;
use super::timed_stream::DRAIN_TIME;

/// The `nice` value of these threads. A serving thread gets a core at once although handshakes occupy all of them;
/// under full load about a tenth of the cores is left for handshakes, so that new callers still get in.
const NICE: i32 = 10;

pub(super) struct Handshakes(Option<Runtime>);

impl Handshakes {
    /// # Errors
    /// Where a thread cannot be started.
    pub(super) fn start(threads: usize) -> io::Result<Self> {
        let lower_priority = || {
            // Of this thread alone. Without the permission to lower it, the thread keeps its priority.
            let _ = rustix::process::setpriority_process(None, NICE);
        };
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(threads).thread_name("handshake").on_thread_start(lower_priority);
        Ok(Handshakes(Some(runtime.build()?)))
    }

    pub(super) async fn accept(&self, acceptor: &TlsAcceptor, mut socket: Socket) -> io::Result<TlsStream<Socket>> {
        let Some(runtime) = &self.0 else { return Err(io::ErrorKind::NotConnected.into()) };
        socket.set_reset(true); // if it is cancelled
        let handshake = acceptor.accept(socket).into_fallible();
        let handshake = async {
            match handshake.await {
                Ok(mut stream) => {
                    stream.get_mut().0.set_reset(false);
                    Ok(stream)
                }
                Err((error, mut socket)) => {
                    // The alert that says why is on its way.
                    socket.is_taken_by(Instant::now() + DRAIN_TIME, None).await;
                    Err(error)
                }
            }
        };
        AbortOnDropHandle::new(runtime.spawn(handshake)).await?
    }
}

impl Drop for Handshakes {
    fn drop(&mut self) {
        // This may run in a task of another runtime, which must not block on these threads.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
