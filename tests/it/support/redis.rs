//! Debian's Redis, on a port that is free: one server for the test process, of which each test has a database of its own, or
//! one that a test starts for itself, in a folder of its own, because it kills, stalls or configures it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::{PATIENCE, eventually, free_address};

/// Ends the server with the test process, whatever that dies of.
const WATCH: &str = r#""$@" >/dev/null 2>&1 & read -r _; kill -9 $!"#;

/// Databases of the shared server: more than there are tests.
const DATABASES: u32 = 1000;

/// A database of the server that the tests of this process share.
#[derive(Clone, Copy)]
pub struct RedisDatabase {
    port: u16,
    number: u32,
}

impl RedisDatabase {
    /// A database that no other test has.
    pub async fn new() -> RedisDatabase {
        static SHARED: OnceCell<Redis> = OnceCell::const_new();
        static TAKEN: AtomicU32 = AtomicU32::new(1);
        let settings = ["--databases", &DATABASES.to_string()];
        let shared = SHARED.get_or_init(async || Redis::start(&settings).await).await;
        let number = TAKEN.fetch_add(1, Ordering::Relaxed);
        assert!(number < DATABASES, "each test has one or two");
        RedisDatabase { port: shared.port, number }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The same database behind another port.
    pub fn url_at(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}/{}", self.number)
    }

    /// Sends a command, and returns what came of it.
    pub fn ask(&self, command: &str) -> String {
        let answer = ask(self.port, &format!("SELECT {}\r\n{command}", self.number)).unwrap();
        answer.strip_prefix("+OK\r\n").expect("the database is there").to_owned()
    }
}

/// A server of a test's own, running until this is dropped or the test process ends.
pub struct Redis {
    folder: TempDir,
    port: u16,
    /// The arguments besides the usual ones.
    settings: Vec<String>,
    watch: Child,
}

impl Redis {
    /// Starts a server with these arguments besides the usual ones.
    pub async fn start(settings: &[&str]) -> Redis {
        let port = free_address().port();
        let settings: Vec<String> = settings.iter().map(|word| (*word).to_owned()).collect();
        let folder = tempfile::Builder::new().prefix("guildgate-redis-").tempdir().unwrap();
        let watch = run(&folder, port, &settings);
        let redis = Redis { folder, port, settings, watch };
        redis.answers().await;
        redis
    }

    /// Starts a server with a user who has these rights, and gives that user's URL.
    pub async fn with_rights(rights: &str) -> (Redis, String) {
        let words = format!("--user bus on >hunter2 {rights}");
        let redis = Redis::start(&words.split(' ').collect::<Vec<_>>()).await;
        let url = redis.url().replace("redis://", "redis://bus:hunter2@");
        (redis, url)
    }

    /// The rights that docs/cluster.md names.
    pub fn documented_rights() -> String {
        let page = include_str!("../../../docs/cluster.md");
        let spans = page.split('`').filter(|span| span.starts_with('+') || span.starts_with('~'));
        spans.collect::<Vec<_>>().join(" ").replace('\n', " ")
    }

    /// Starts a Sentinel that alone decides which server is the primary of the name `m`, which this one is now. It decides
    /// anew only when it is told to: by itself it would do so whenever a server on a busy machine answers late.
    pub async fn sentinel(&self) -> Redis {
        let port = free_address().port();
        let folder = tempfile::Builder::new().prefix("guildgate-redis-").tempdir().unwrap();
        let config = folder.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor m 127.0.0.1 {} 1\nsentinel down-after-milliseconds m 60000\n\
             sentinel failover-timeout m 3000\n",
            self.port
        );
        std::fs::write(&config, text).unwrap();
        let watch = watched(&[config.to_str().unwrap(), "--sentinel"]);
        let sentinel = Redis { folder, port, settings: Vec::new(), watch };
        sentinel.answers().await;
        sentinel
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends a command, and returns what came of it within a moment.
    pub fn ask(&self, command: &str) -> String {
        ask(self.port, command).unwrap()
    }

    async fn answers(&self) {
        let answers =
            async || ask(self.port, "PING").is_ok_and(|answer| answer.contains("PONG") || answer.contains("NOAUTH"));
        eventually(PATIENCE, "Redis answers", answers).await;
    }

    /// The server dies with all that it holds.
    pub fn kill_hard(&mut self) {
        drop(self.watch.stdin.take());
        self.watch.wait().unwrap();
    }

    /// Another server, which knows nothing, on the same port.
    pub async fn start_again(&mut self) {
        self.watch = run(&self.folder, self.port, &self.settings);
        self.answers().await;
    }

    /// Sends a signal to the server.
    pub fn signal(&self, signal: Signal) {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.watch.id())).unwrap();
        let server = children.split_whitespace().next().expect("the server runs").parse().unwrap();
        kill(Pid::from_raw(server), signal).unwrap();
    }
}

fn ask(port: u16, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes())?;
    let mut answer = vec![0];
    stream.read_exact(&mut answer)?;
    // A Sentinel does not close the connection.
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        Ok(_) | Err(_) => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

fn run(folder: &TempDir, port: u16, settings: &[String]) -> Child {
    let (port, folder) = (port.to_string(), folder.path().to_str().unwrap());
    let mut arguments =
        vec!["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder];
    arguments.extend(settings.iter().map(String::as_str));
    watched(&arguments)
}

fn watched(arguments: &[&str]) -> Child {
    let mut watch = Command::new("/bin/sh");
    watch.args(["-c", WATCH, "watch"]).arg("redis-server").args(arguments);
    watch.process_group(0).stdin(Stdio::piped()).spawn().unwrap()
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill_hard();
    }
}
