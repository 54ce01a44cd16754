//! A temporary folder with a `gateway.toml`, and the real command run in it. `GUILDGATE_CONFIG` and `RUST_LOG` from
//! outside do not reach the command, and one that takes more than a minute fails the test. A command
//! that failed must have said why and must not have panicked.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guildgate::config;
use guildgate::process::preflight::check;
use serde_json::Value;
use tempfile::TempDir;

use super::{GUILD, Identity, Process, SmallDisk};

/// A temporary folder with a `gateway.toml`, and the command that is run there.
pub struct World {
    disk: Option<SmallDisk>,
    dir: TempDir,
    /// The command through which `serve` is started; empty: none.
    launcher: Vec<String>,
}

/// How long a command may take before it counts as hung.
const COMMAND: Duration = Duration::from_secs(60);

impl World {
    pub fn new(config: &str) -> World {
        let dir = tempfile::Builder::new().prefix("guildgate-it-").tempdir().unwrap();
        let world = World { dir, launcher: Vec::new(), disk: None };
        world.write("gateway.toml", config);
        world
    }

    /// A world whose config sets nothing but a port of its own.
    pub fn plain() -> World {
        World::new("[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Puts a certificate and its key where `server.tls` looks for them.
    pub fn put_identity(&self, identity: &Identity) {
        self.write("cert.pem", &identity.certificate);
        self.write("key.pem", &identity.private_key);
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// The JSON lines of a record of decisions.
    pub fn decisions(&self, name: &str) -> String {
        let mut lines = String::new();
        let _ = flate2::read::MultiGzDecoder::new(&*self.read(name)).read_to_string(&mut lines); // it may be empty
        lines
    }

    /// The file as text.
    #[track_caller]
    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    /// The file with `from` replaced by `to`.
    #[track_caller]
    pub fn edited(&self, name: &str, from: &str, to: &str) -> String {
        let before = self.text(name);
        let after = before.replace(from, to);
        assert_ne!(before, after, "{from:?} is not to be replaced in:\n{before}");
        after
    }

    /// Replaces `from` by `to` in the file.
    #[track_caller]
    pub fn edit(&self, name: &str, from: &str, to: &str) {
        self.write(name, self.edited(name, from, to));
    }

    /// The key file without this key.
    #[track_caller]
    pub fn keys_without(&self, id: &str) -> String {
        let keys = self.text("keys.toml");
        let is_kept = |entry: &&str| !entry.is_empty() && !entry.contains(&format!("id = {id:?}"));
        let kept: String = keys.split("[[key]]\n").filter(is_kept).map(|entry| format!("[[key]]\n{entry}")).collect();
        assert!(kept.len() < keys.len(), "there is no key {id}");
        kept
    }

    /// Removes this key from the key file.
    #[track_caller]
    pub fn remove_key(&self, id: &str) {
        self.write("keys.toml", self.keys_without(id));
    }

    /// Lists this key of [`GUILD`] for another guild in the key file.
    #[track_caller]
    pub fn move_key(&self, id: &str, guild: &str) {
        let keys = self.text("keys.toml");
        let (before, entry) = keys.split_at(keys.find(&format!("id = {id:?}")).unwrap());
        self.write("keys.toml", format!("{before}{}", entry.replacen(GUILD, guild, 1)));
    }

    /// Every file of the folder, with its name.
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().path());
        entries.filter(|p| p.is_file()).map(|p| (p.clone(), std::fs::read(&p).unwrap())).collect()
    }

    /// Starts servers through this command, which is given the server's own as its arguments and
    /// becomes it (`exec`).
    pub fn launched_by(&mut self, launcher: &[&str]) {
        self.launcher = launcher.iter().map(|word| (*word).to_owned()).collect();
    }

    /// Mounts a small disk over this folder of the world, for servers and for commands that are [run
    /// there](World::run_there).
    pub async fn put_on_small_disk(&mut self, folder: &str, kib: u64) {
        let disk = SmallDisk::over(self, folder, kib).await;
        self.launcher = disk.launcher();
        self.disk = Some(disk);
    }

    pub fn disk(&self) -> &SmallDisk {
        self.disk.as_ref().expect("this world has no small disk")
    }

    /// The binary, in this folder, without the caller's environment leaking in.
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        self.command_by::<&str, S>(&[], args)
    }

    /// The same through this command, which becomes the binary (`exec`).
    pub fn command_by<L: AsRef<str>, S: AsRef<OsStr>>(&self, launcher: &[L], args: &[S]) -> Command {
        let mut words = launcher.iter().map(AsRef::as_ref).chain([env!("CARGO_BIN_EXE_guildgate")]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(args).current_dir(self.dir.path());
        command.env_remove("GUILDGATE_CONFIG").env_remove("RUST_LOG");
        command.env("TMPDIR", self.dir.path()); // a demo that is killed leaves its folder behind
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.run_with_input(args, "")
    }

    pub fn run_with_input(&self, args: &[&str], input: &str) -> Ran {
        let config = self.path("gateway.toml");
        let mut command = self.command(args);
        command.arg("--config").arg(config);
        Ran::of(&mut command, input)
    }

    /// As [`World::run`], through this command, which becomes the binary (`exec`).
    pub fn run_by<L: AsRef<str>>(&self, launcher: &[L], args: &[&str]) -> Ran {
        Ran::of(self.command_by(launcher, args).arg("--config").arg(self.path("gateway.toml")), "")
    }

    /// As [`World::run`], where the server runs.
    pub fn run_there(&self, args: &[&str]) -> Ran {
        self.run_by(&self.launcher, args)
    }

    /// Imports these JSON Lines.
    pub fn import(&self, lines: &str) -> Ran {
        let file = self.write("import.jsonl", lines);
        self.run(&["import", file.to_str().unwrap()])
    }

    /// What `check` and `serve` find wrong with this world.
    pub fn faults(&self) -> String {
        let loaded = config::load(Some(&self.path("gateway.toml"))).map_err(|error| error.to_string());
        let checked = loaded.and_then(|loaded| check(&loaded).map(drop).map_err(|error| error.to_string()));
        checked.expect_err("nothing is wrong with it")
    }

    /// Starts `serve` and does not wait for anything.
    pub fn serve(&self, more: &[&str]) -> Process {
        let config = self.path("gateway.toml");
        let mut args = vec!["serve", "--config", config.to_str().unwrap()];
        args.extend(more);
        Process::start(&mut self.command_by(&self.launcher, &args))
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    #[expect(dead_code, reason = "for the message of a failing test, by Debug")]
    line: String,
}

impl Ran {
    pub fn of(command: &mut Command, input: &str) -> Ran {
        let line = describe(command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes()); // it may end without reading
        Ran::to_its_end(child, line)
    }

    /// As [`Ran::of`], with this stdin, and a stdout that nobody reads.
    pub fn unread(command: &mut Command, stdin: File) -> Ran {
        let line = describe(command);
        let (ours, its) = std::io::pipe().unwrap();
        drop(ours);
        let child = command.stdin(stdin).stdout(its).stderr(Stdio::piped()).spawn().unwrap();
        Ran::to_its_end(child, line)
    }

    fn to_its_end(mut child: Child, line: String) -> Ran {
        let stdout = child.stdout.take().map(read_aside);
        let stderr = read_aside(child.stderr.take().unwrap());
        let end = Instant::now() + COMMAND;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > end {
                let _ = child.kill();
                panic!("`{line}` hung");
            }
            std::thread::sleep(Duration::from_millis(1)); // between two looks at the child
        };
        let stdout = stdout.map(|stdout| stdout.join().unwrap()).unwrap_or_default();
        Ran { code: status.code(), stdout, stderr: stderr.join().unwrap(), line }
    }

    /// Asserts exit 0.
    #[track_caller]
    pub fn done(self) -> Ran {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// Asserts this exit code, something said on stderr, and no panic.
    #[track_caller]
    pub fn failed(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.stderr.trim().is_empty(), "it failed without a word: {self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }

    /// Asserts that it was refused: as bad usage or as a failure, in words and without a panic.
    #[track_caller]
    pub fn refused(self) -> Ran {
        let code = if self.code == Some(2) { 2 } else { 1 };
        self.failed(code)
    }

    /// Asserts that stderr names each of these.
    #[track_caller]
    pub fn names(self, words: &[&str]) -> Ran {
        for word in words {
            assert!(self.stderr.contains(word), "stderr does not name {word:?}: {self:#?}");
        }
        self
    }

    /// Stdout as one JSON array.
    #[track_caller]
    pub fn list(&self) -> Vec<Value> {
        match serde_json::from_str(&self.stdout) {
            Ok(Value::Array(list)) => list,
            other => panic!("one JSON array was expected: {other:?} in {self:#?}"),
        }
    }
}

fn describe(command: &Command) -> String {
    let mut line = Path::new(command.get_program()).file_name().unwrap().to_string_lossy().into_owned();
    for arg in command.get_args() {
        let _ = write!(line, " {}", arg.to_string_lossy());
    }
    line
}

fn read_aside(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
