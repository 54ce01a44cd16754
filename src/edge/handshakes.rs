//! Runs TLS handshakes on threads of their own, with a lower priority than the threads that serve. A handshake costs as
//! much processor time as many answers, so a crowd of new connections would otherwise delay every request on the same
//! thread. Dropping the future that waits for a handshake cancels it. Only `tls` uses this.

use std::io;

use pingora::protocols::Stream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How far these threads stand behind those that serve (`nice`). A thread that serves gets a core at once
/// where handshakes have all of them; and where everything wants the cores, a tenth of them is left for
/// handshakes still, so that new callers come in.
const NICE: i32 = 10;

/// TLS handshakes, on threads of their own. One costs as much as many answers: in a thread that
/// serves, a crowd that connects at once would stand before every request that comes meanwhile. Here
/// the kernel shares the cores out between the two.
pub(super) struct Handshakes(Option<Runtime>);

impl Handshakes {
    /// # Errors
    /// Where a thread cannot be started.
    pub(super) fn start(threads: usize) -> io::Result<Self> {
        let step_back = || {
            // Of this thread alone. Where it is not allowed, they are as good as any.
            let _ = rustix::process::setpriority_process(None, NICE);
        };
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(threads).thread_name("handshake").on_thread_start(step_back);
        Ok(Handshakes(Some(runtime.build()?)))
    }

    /// Shakes hands. Whoever stops waiting for it has ended it.
    pub(super) async fn shake(&self, acceptor: &TlsAcceptor, stream: Stream) -> io::Result<TlsStream<Stream>> {
        let Some(runtime) = &self.0 else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut task = Ended(runtime.spawn(acceptor.accept(stream)));
        (&mut task.0).await?
    }
}

impl Drop for Handshakes {
    fn drop(&mut self) {
        // The process may be dropping it from a task, which must not wait for threads.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A task that ends when this is dropped.
struct Ended<T>(JoinHandle<T>);

impl<T> Drop for Ended<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
