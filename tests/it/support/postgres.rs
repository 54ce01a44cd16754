//! Debian's PostgreSQL, started by the tests in a folder of its own on a port that is free. One server a test
//! process, and a database a test; a test that hurts its server starts another.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio_postgres::{Client, NoTls};

use super::port::free_address;

/// How long what is left of a killed server may take to go.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for the end of its own stdin, as it comes with the test process whatever that dies of; then stops the server
/// and removes the folder. Ctrl-C at a terminal is not for it.
const WATCH: &str = r#"trap '' INT HUP TERM; read -r _; "$@" >/dev/null 2>&1; rm -rf "$FOLDER""#;

/// A server, running until this is dropped or the test process ends.
pub struct Postgres {
    folder: PathBuf,
    port: u16,
    watch: Child,
}

impl Postgres {
    /// The server of this test process, for tests that leave it alone. A power failure may take what is in it.
    pub fn shared() -> &'static Postgres {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Postgres::start(&["fsync = off", "max_connections = 500"]))
    }

    /// Starts a server with these settings besides the usual ones.
    pub fn start(settings: &[&str]) -> Postgres {
        Postgres::start_with(settings, &[])
    }

    /// A folder for a server to be, which goes when the test process ends, whatever that dies of.
    fn in_a_folder() -> Postgres {
        let folder = tempfile::Builder::new().prefix("guildgate-pg-").tempdir().unwrap().keep();
        if let Some((user, group)) = other_user() {
            chown(&folder, Some(user), Some(group)).unwrap();
        }
        let mut stop = program("pg_ctl");
        stop.args(["stop", "--mode=immediate", "-D"]).arg(folder.join("data"));
        let mut watch = Command::new("/bin/sh");
        watch.args(["-c", WATCH, "watch"]).arg(stop.get_program()).args(stop.get_args()).env("FOLDER", &folder);
        let watch = watch.current_dir("/").process_group(0).stdin(Stdio::piped()).spawn().unwrap();
        Postgres { folder, port: 0, watch }
    }

    /// As [`Postgres::start`], with files that the settings name, in the folder of the server's data.
    pub fn start_with(settings: &[&str], files: &[(&str, &str)]) -> Postgres {
        let mut server = Postgres::in_a_folder();
        let mut init = program("initdb");
        init.args(["--no-sync", "--auth=trust", "--username=guildgate", "--encoding=UTF8", "--locale=C", "-D"]);
        ran(init.arg(server.folder.join("data"))).unwrap();
        let mut lines = format!("unix_socket_directories = '{}'\n", server.folder.display());
        lines += "listen_addresses = '127.0.0.1'\nshared_buffers = 32MB\n";
        settings.iter().for_each(|line| lines += &format!("{line}\n"));
        let config = server.folder.join("data/postgresql.conf");
        OpenOptions::new().append(true).open(config).unwrap().write_all(lines.as_bytes()).unwrap();
        for (name, content) in files {
            let file = server.folder.join("data").join(name);
            fs::write(&file, content).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            if let Some((user, group)) = other_user() {
                chown(&file, Some(user), Some(group)).unwrap();
            }
        }
        server.listen();
        server
    }

    /// Starts the server on a port that is free.
    fn listen(&mut self) {
        self.port = free_address().port();
        let log = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        self.resume().unwrap_or_else(|why| panic!("PostgreSQL does not start: {why}\n{}", log()));
    }

    /// A standby of this server's, which has caught up so far and follows from now on.
    pub fn standby(&self) -> Postgres {
        let mut standby = Postgres::in_a_folder();
        let mut copy = program("pg_basebackup");
        copy.args(["--host=127.0.0.1", "--username=guildgate", "--checkpoint=fast", "--no-sync"]);
        copy.args(["--wal-method=stream", "--write-recovery-conf", &format!("--port={}", self.port), "-D"]);
        ran(copy.arg(standby.folder.join("data"))).unwrap();
        let socket = format!("unix_socket_directories = '{}'\n", standby.folder.display());
        let config = standby.folder.join("data/postgresql.conf");
        OpenOptions::new().append(true).open(config).unwrap().write_all(socket.as_bytes()).unwrap();
        standby.listen();
        standby
    }

    /// Has a standby take writes, and waits until it does.
    pub fn promote(&self) {
        ran(program("pg_ctl").args(["promote", "-w", "-D"]).arg(self.folder.join("data"))).unwrap();
    }

    /// Starts a standby that was stopped as a server of its own, with what it has.
    pub fn stand_alone(&self) {
        fs::remove_file(self.folder.join("data/standby.signal")).unwrap();
        self.resume().unwrap();
    }

    /// SIGKILL to the server's first process; the others end when they notice.
    pub fn kill(&self) {
        kill(self.first_process(), Signal::SIGKILL).unwrap();
    }

    fn first_process(&self) -> Pid {
        let file = fs::read_to_string(self.folder.join("data/postmaster.pid")).unwrap();
        Pid::from_raw(file.lines().next().unwrap().parse().unwrap())
    }

    /// Starts the server that was killed. What is left of it may take a while to go, and is waited for.
    pub fn recover(&self) {
        let end = Instant::now() + PATIENCE;
        while let Err(why) = self.resume() {
            assert!(Instant::now() < end, "{why}");
            std::thread::sleep(Duration::from_millis(20)); // between two tries
        }
    }

    /// Stops the server, at once or in good order, and waits until it has stopped.
    pub fn stop(&self, mode: &str) {
        ran(program("pg_ctl").args(["stop", "-w", "--mode", mode, "-D"]).arg(self.folder.join("data"))).unwrap();
    }

    /// Starts the server that was stopped, and waits until it answers.
    pub fn resume(&self) -> Result<(), String> {
        let mut start = program("pg_ctl");
        start.args(["start", "-w", "-D"]).arg(self.folder.join("data")).arg("-l").arg(self.folder.join("log"));
        ran(start.args(["-o", &format!("-p {}", self.port)]))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a new database.
    pub async fn database(&self) -> String {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", MADE.fetch_add(1, Ordering::Relaxed));
        let admin = connect(&self.url("postgres")).await;
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        self.url(&name)
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://guildgate@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.watch.stdin.take());
        self.watch.wait().unwrap();
    }
}

/// A connection of the test's own, past everything that a store does. It sees the store's tables.
pub async fn connect(url: &str) -> Client {
    let mut config: tokio_postgres::Config = url.parse().unwrap();
    let (client, connection) = config.options("-c search_path=guildgate").connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// One of PostgreSQL's programs. The server's do not work for root: another user runs them then.
pub fn program(name: &str) -> Command {
    let debian =
        fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|e| e.path().join("bin").join(name));
    let path = debian.filter(|path| path.is_file()).max().unwrap_or_else(|| name.into());
    let mut command = match other_user() {
        None => Command::new(path),
        Some((user, group)) => {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg("--clear-groups").arg(path);
            command
        }
    };
    command.current_dir("/");
    command
}

/// Who runs the server: `None`, who runs the tests.
fn other_user() -> Option<(u32, u32)> {
    let root = nix::unistd::Uid::effective().is_root();
    let user = ["postgres", "nobody"].iter().find_map(|name| nix::unistd::User::from_name(name).ok().flatten());
    root.then(|| user.map(|user| (user.uid.as_raw(), user.gid.as_raw())).unwrap())
}

fn ran(command: &mut Command) -> Result<(), String> {
    let ran = command.stdin(Stdio::null()).output().unwrap_or_else(|e| {
        panic!("{command:?}: {e}; scripts/setup installs Debian's package postgresql");
    });
    if ran.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr)))
}
