//! Starts runtimes for one thread each. Where the system has no thread to give, tokio panics; these report an error.

use std::io;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads for what blocks, unless a runtime is to have fewer: tokio's own bound.
const BLOCKING_THREADS: usize = 512;

/// A runtime for the thread that calls this.
///
/// # Errors
/// Where the system has no thread or no file to give.
pub fn single_threaded() -> io::Result<Runtime> {
    with_blocking_threads(BLOCKING_THREADS)
}

/// The runtime keeps the first thread for what blocks, such as files and the resolution of names, so that this goes on
/// where the system has no further thread to give.
fn with_blocking_threads(most: usize) -> io::Result<Runtime> {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(most).thread_keep_alive(Duration::MAX).build()?;
    can_start_threads(1)?;
    runtime.spawn_blocking(|| {});
    Ok(runtime)
}

/// Reports an error where the system has not so many threads to give at this moment.
///
/// # Errors
/// The system's.
pub fn can_start_threads(count: usize) -> io::Result<()> {
    let together = Mutex::new(());
    let started = thread::scope(|scope| {
        let until_all_run = together.lock();
        let start = |_| thread::Builder::new().spawn_scoped(scope, || drop(together.lock()));
        let started = (0..count).map(start).collect::<io::Result<Vec<_>>>();
        drop(until_all_run);
        // The scope itself may end before the system has them back.
        started.map(|threads| threads.into_iter().for_each(|thread| drop(thread.join())))
    });
    started.map_err(|e| {
        let threads = if count == 1 { "another thread" } else { &format!("{count} threads") };
        let text = format!("the system does not start {threads}; raise its limit (ulimit -u, TasksMax): {e}");
        io::Error::new(e.kind(), text)
    })
}

/// What a thread has. Those that it starts, as for what blocks, have the same priority.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadSettings {
    /// Threads for what blocks; `None`: as many as any runtime.
    pub blocking_threads: Option<usize>,
    /// The `nice` value, where the system permits it; `None`: that of the thread that starts it.
    pub nice: Option<i32>,
}

/// Starts a thread that runs `main` to its end on a runtime of its own, which then waits for nothing that still blocks.
///
/// # Errors
/// Where the system has no thread or no file to give.
pub fn start_thread<F: Future<Output = ()>>(
    name: &str,
    settings: ThreadSettings,
    main: impl FnOnce() -> F + Send + 'static,
) -> io::Result<(Handle, JoinHandle<()>)> {
    let (tell, told) = sync_channel(1);
    let run = move || {
        if let Some(nice) = settings.nice {
            let _ = rustix::process::setpriority_process(None, nice); // on Linux, of this thread
        }
        let runtime = match with_blocking_threads(settings.blocking_threads.unwrap_or(BLOCKING_THREADS)) {
            Ok(runtime) => runtime,
            Err(error) => return drop(tell.send(Err(error))),
        };
        let _ = tell.send(Ok(runtime.handle().clone()));
        runtime.block_on(main());
        runtime.shutdown_background();
    };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
    let handle = told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
    Ok((handle, thread))
}
