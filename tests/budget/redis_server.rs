//! A Redis process of a test's own, on a port and in a folder of its own.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

/// How long anything is waited for on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct RedisServer {
    pub port: u16,
    options: Vec<String>,
    folder: TempDir,
    child: Child,
}

impl RedisServer {
    pub async fn start(options: &[&str]) -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let folder = tempfile::tempdir().unwrap();
        let child = spawn(port, &options, &folder);
        let server = RedisServer { port, options, folder, child };
        server.wait_until_it_answers().await;
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection without a time limit for responses.
    pub async fn connect(url: &str) -> redis::RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Runs one command as an operator would.
    pub async fn run(&self, command: &str) -> redis::Value {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        for word in words {
            cmd.arg(word);
        }
        cmd.query_async(&mut RedisServer::connect(&self.url()).await.unwrap()).await.unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    pub fn kill_nine(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub async fn start_again(&mut self) {
        self.child = spawn(self.port, &self.options, &self.folder);
        self.wait_until_it_answers().await;
    }

    async fn wait_until_it_answers(&self) {
        let url = self.url();
        // One that wants a password answers, too.
        eventually("Redis answers", async || match RedisServer::connect(&url).await {
            Ok(mut connection) => match redis::cmd("PING").query_async::<redis::Value>(&mut connection).await {
                Ok(_) => true,
                Err(error) => error.code() == Some("NOAUTH"),
            },
            Err(_) => false,
        })
        .await;
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, options: &[String], folder: &TempDir) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(folder.path())
        .args(options)
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("redis-server is needed, run scripts/setup: {error}"))
}

/// Waits until something is so.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
