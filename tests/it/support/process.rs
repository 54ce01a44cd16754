//! A started binary whose stdout and stderr are read as they come, with its signals, its exit code and its memory. Its
//! stdin or stderr may be a pipe, a terminal or closed. It is killed by its own process id when it is dropped, so that
//! no test leaves a process behind.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::tcp::TcpEntry;
use super::{PATIENCE, eventually};

/// A running binary whose output is caught as it comes. Killed, by its own id, when dropped.
pub struct Process {
    child: Child,
    stdout: Caught,
    stderr: Caught,
}

/// What a stream said so far, and the thread that reads it until it ends.
struct Caught {
    said: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Caught {
    /// What the stream says until its end, which a process that ended has come to.
    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap()).into_owned()
    }
}

impl Process {
    pub fn start(command: &mut Command) -> Process {
        Self::with_stdin(command, std::fs::File::open("/dev/null").unwrap().into())
    }

    /// As [`Process::start`], with this as its stdin.
    pub fn with_stdin(command: &mut Command, stdin: std::os::fd::OwnedFd) -> Process {
        Self::spawn(command.stdin(stdin))
    }

    fn spawn(command: &mut Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = catch(child.stdout.take().unwrap());
        let stderr = catch(child.stderr.take().unwrap());
        Process { child, stdout, stderr }
    }

    /// As [`Process::start`], with a terminal for its stderr: what is drawn there is what it said.
    pub fn on_terminal(command: &mut Command) -> Process {
        let size = Winsize { ws_row: 24, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        // Else a server that another test starts inherits it, and the reading has no end.
        for end in [&pty.master, &pty.slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        }
        command.env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.stderr(pty.slave).spawn().unwrap();
        command.stderr(Stdio::null()); // our own end of it, without which the reading has no end
        let stdout = catch(child.stdout.take().unwrap());
        Process { child, stdout, stderr: catch(File::from(pty.master)) }
    }

    /// As [`Process::start`], where nobody reads its stderr after the address in its first `ready:` line. The pipe
    /// stays open for as long as what is returned besides.
    pub fn unread(command: &mut Command) -> (Process, SocketAddr, BufReader<ChildStderr>) {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = catch(child.stdout.take().unwrap());
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let process = Process { child, stdout, stderr: catch(std::io::empty()) };
        let url =
            stderr.by_ref().lines().find_map(|line| ready_url(&line.unwrap())).expect("it ended before it was ready");
        (process, url.strip_prefix("http://").unwrap().parse().unwrap(), stderr)
    }

    /// Waits until it has said this on stderr.
    pub async fn has_said(&self, what: &str) {
        eventually(PATIENCE, what, || async { self.stderr().contains(what) }).await;
    }

    /// The address in the first `ready:` line; what it said instead, if none comes.
    pub async fn ready(&mut self) -> SocketAddr {
        let end = Instant::now() + PATIENCE;
        loop {
            let said = self.stderr();
            // Only whole lines: the port may still be on its way.
            let lines = said.split_inclusive('\n').filter_map(|l| l.strip_suffix('\n'));
            if let Some(url) = lines.filter_map(ready_url).next() {
                let url = url.trim();
                let address = url
                    .strip_prefix("http://")
                    .or_else(|| url.strip_prefix("https://"))
                    .unwrap_or_else(|| panic!("no http url: {url}"));
                return address.parse().unwrap_or_else(|e| panic!("{e} in the ready line: {url}"));
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("it ended before it was ready ({status}); stderr:\n{}", self.stderr());
            }
            assert!(Instant::now() < end, "not ready within {PATIENCE:?}; stderr:\n{said}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Whether each signal that was sent to it has been delivered, and all of its threads wait for something again.
    pub fn has_handled_signals(&self) -> bool {
        self.status_has("", "ShdPnd:\t0000000000000000") && self.all_threads_wait()
    }

    /// Waits until all that callers have sent to this address is read, and each request was answered or waits for
    /// something else.
    pub async fn has_read_requests(&self, address: SocketAddr) {
        let all_arrived = || TcpEntry::all().iter().all(|entry| entry.remote != address || entry.unsent == 0);
        // What has arrived has woken a thread. Twice, because a thread may wake one that was looked at before it.
        let is_done = || all_arrived() && self.all_threads_wait() && self.all_threads_wait();
        eventually(PATIENCE, "the requests are read", async || is_done()).await;
    }

    /// Whether all of its threads wait for something.
    pub fn all_threads_wait(&self) -> bool {
        self.all_threads_are("S")
    }

    /// Stops all of its threads until SIGCONT.
    pub async fn stop_threads(&self) {
        self.signal(Signal::SIGSTOP);
        eventually(PATIENCE, "its threads stand still", async || self.all_threads_are("T")).await;
    }

    fn all_threads_are(&self, state: &str) -> bool {
        let mut threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        let line = format!("State:\t{state}");
        threads.all(|thread| self.status_has(&format!("task/{}", thread.unwrap().file_name().display()), &line))
    }

    fn status_has(&self, folder: &str, line: &str) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/{folder}/status", self.id()));
        status.is_ok_and(|status| status.contains(&format!("\n{line}")))
    }

    /// Waits for the end by itself and gives the exit code (`None`: ended by a signal).
    pub async fn exit(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.stdout.finish();
                self.stderr.finish();
                return status.code();
            }
            assert!(Instant::now() < end, "still running after {PATIENCE:?}; stderr:\n{}", self.stderr());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// KiB of memory that it holds.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// How often each of its threads has been woken so far: its id, its name and the count.
    pub fn wake_ups(&self) -> Vec<(String, String, u64)> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        let counted = threads.filter_map(|thread| {
            let thread = thread.unwrap();
            let status = std::fs::read_to_string(thread.path().join("status")).ok()?; // it may have ended
            let value = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
            let count = value("voluntary_ctxt_switches:").parse().unwrap();
            Some((thread.file_name().into_string().unwrap(), value("Name:").to_owned(), count))
        });
        counted.collect()
    }

    /// The `nice` value of each of its threads, by the thread's name.
    pub fn nice(&self) -> Vec<(String, i32)> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        let nice = threads.filter_map(|thread| {
            let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).ok()?; // it may have ended
            let (name, fields) = (stat.split_once('(')?.1).rsplit_once(") ")?;
            Some((name.to_owned(), fields.split(' ').nth(16)?.parse().unwrap()))
        });
        nice.collect()
    }

    /// Sockets that it has open.
    pub fn open_sockets(&self) -> usize {
        self.open_files().filter(|name| name.to_string_lossy().starts_with("socket:")).count()
    }

    /// The names of what it has open.
    pub fn open_files(&self) -> impl Iterator<Item = PathBuf> {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap();
        // One that was closed since has no name any more.
        files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok())
    }

    /// kill -9, and wait until the process is gone.
    pub fn kill_hard(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        self.child.wait().unwrap();
    }

    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    pub fn stdout(&self) -> String {
        self.stdout.text()
    }
}

/// The address that a line says is served, in either format of the log.
fn ready_url(line: &str) -> Option<String> {
    let as_json = || serde_json::from_str::<serde_json::Value>(line).ok()?["ready"].as_str().map(str::to_owned);
    line.strip_prefix("ready: ").map(str::to_owned).or_else(as_json)
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_hard();
    }
}

fn catch(mut from: impl Read + Send + 'static) -> Caught {
    let said = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&said);
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            into.lock().unwrap().extend_from_slice(&buffer[..n]);
        }
    });
    Caught { said, reader: Some(reader) }
}
