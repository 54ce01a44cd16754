//! The command: arguments to exit code (contract section 2).

mod check; // check
mod cluster; // cluster
mod conform; // conform
mod error; // a command that failed, and its exit code
mod guild; // guild
mod health; // health
mod input; // files and stdin, plain or gzip
mod keys; // key
mod limits; // limits
mod member; // member
mod notes; // warn, review
mod output; // what commands print
mod progress; // bars on a terminal
mod store; // store
mod transfer; // import, export
mod why; // why

#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand};
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

use crate::clock::Clock;
use crate::config::{self, Config, Loaded, StoreAt};
use crate::model::hide_keys;
use crate::process::{self, ProcessError};
use crate::records::Records;
use crate::records::note::{ReviewInput, WarnInput};
use crate::store::{IfMissing, Store, StoreError, StoreState};
use error::CommandError;
use output::print_to_stderr;

/// The edge gateway for guild data.
#[derive(Debug, Parser)]
#[command(name = "guildgate", version, propagate_version = true)]
struct Cli {
    /// The configuration; without it gateway.toml, and without that the defaults
    #[arg(long, global = true, value_name = "FILE", env = "GUILDGATE_CONFIG")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the gateway until SIGTERM, SIGINT or SIGQUIT
    Serve {
        /// Serves a throw-away store on loopback, whatever gateway.toml says, and prints a key and a curl line to try
        #[arg(long)]
        demo: bool,
    },
    /// Reads the configuration and prints what is in force, or every fault in it
    Check,
    #[command(flatten)]
    Record(RecordCommand),
    /// Imports guilds, members, warns and reviews from JSON Lines into the store
    Import(transfer::ImportArgs),
    /// Exports guilds, members, warns and reviews from the store as JSON Lines
    Export(transfer::ExportArgs),
    /// The store as a whole: backup, verify, restore
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Plans and suggests limits from recorded traffic
    #[command(subcommand)]
    Limits(limits::LimitsCommand),
    /// Explains one request: its key, its limit, the cache, the upstream, the answer
    ///
    /// Looks in the file that log.access names and in the one before it (FILE.1), or in the files that
    /// are named. Where log.access is no file, it reads stdin: `journalctl -u guildgate | guildgate why ID`.
    Why(why::WhyArgs),
    /// Compares an origin's answers with those of a gateway before it, byte for byte
    ///
    /// Starts a gateway of its own on a free port of loopback, sends every read and bad input to the
    /// origin and through that gateway, and says whether callers will notice the switch. It takes
    /// the section answers and origin.tls from gateway.toml, and needs no store. Exit 1: callers will notice.
    Conform(conform::ConformArgs),
    /// The nodes that share one Redis (`[cluster]`)
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Asks the running server for its health path: exit 0, or 1 and the reason
    Health,
    /// Prints the JSON Schema of gateway.toml, for editors
    Schema,
    /// Prints a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Prints the manual page
    Man {
        /// Writes a page for each command into this folder instead
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
    },
}

/// The commands about single records in the store.
#[derive(Debug, Subcommand)]
enum RecordCommand {
    /// Guilds in the store
    #[command(subcommand)]
    Guild(guild::GuildCommand),
    /// API keys in the store
    #[command(subcommand)]
    Key(keys::KeyCommand),
    /// Members of a guild and their points
    #[command(subcommand)]
    Member(member::MemberCommand),
    /// Warns of members
    #[command(subcommand)]
    Warn(notes::NoteCommand<WarnInput>),
    /// Reviews of members
    #[command(subcommand)]
    Review(notes::NoteCommand<ReviewInput>),
}

/// Parses the arguments, runs the command and reports an error on stderr.
pub fn run() -> ExitCode {
    let result = match Cli::try_parse() {
        Ok(Cli { config, command }) => start(config.filter(|path| !path.as_os_str().is_empty()), command),
        // Help or the version. Clap's own exit does not report an error such as a full disk.
        Err(error) if !error.use_stderr() => {
            error.print().and_then(|()| io::stdout().flush()).map_err(CommandError::from)
        }
        Err(error) => {
            // Not by clap, which would print a key that was typed among the arguments.
            let _ = io::stderr().write_all(hide_keys(&error.to_string()).as_bytes());
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of stdout closed it, as `| head` does. That ends the command and is no failure.
        Err(CommandError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(CommandError::Process(ProcessError::Logged { exit_code })) => ExitCode::from(exit_code),
        Err(error) => {
            print_message(&error.to_string());
            ExitCode::from(error.code())
        }
    }
}

/// A server has a runtime of its own; any other command runs on its own thread.
fn start(config: Option<PathBuf>, command: Command) -> Result<(), CommandError> {
    if let Command::Serve { demo } = command {
        return Ok(process::run(config, demo)?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| CommandError::new(format!("no runtime could be started: {e}")))?;
    runtime.block_on(command.run(config.as_deref()))
}

/// Prints a message on stderr, with the program's name before it and without keys.
fn print_message(message: &str) {
    print_to_stderr(format!("guildgate: {}", hide_keys(message)));
}

impl Command {
    async fn run(self, config: Option<&Path>) -> Result<(), CommandError> {
        let (load, mut out) = (|| config::load(config), io::stdout());
        match self {
            Command::Serve { .. } => Ok(()), // see `start`
            Command::Check => check::run(&load()?, &mut out).await,
            Command::Record(RecordCommand::Key(keys::KeyCommand::Hash)) => {
                keys::hash(&mut io::stdin().lock(), &mut out)
            }
            Command::Record(RecordCommand::Key(keys::KeyCommand::Find(json))) => {
                let loaded = load()?;
                let needs_store = loaded.config.needs_store();
                let store = if needs_store { Some(open_store(&loaded, IfMissing::Refuse).await?) } else { None };
                keys::find(&loaded.config, store.as_deref(), &mut io::stdin().lock(), json, &mut out).await
            }
            Command::Record(command) => {
                let loaded = load()?;
                command.must_be_in_store(&loaded.config).map_err(CommandError::new)?;
                let store = open_store(&loaded, command.if_missing()).await?;
                let records = Records { store, config: Arc::new(loaded.config), clock: Clock::system() };
                command.run(&records, &mut out).await
            }
            Command::Import(args) => args.run(&load()?, &mut out).await,
            Command::Export(args) => args.run(&load()?, &mut out).await,
            Command::Store(command) => command.run(&load()?.config.origin.store, &mut out).await,
            Command::Limits(command) => command.run(config, &mut out).await,
            Command::Why(args) => args.run(&load()?, &mut out).await,
            Command::Conform(args) => args.run(load()?.config, &mut out).await,
            Command::Cluster(command) => command.run(&load()?, &mut out).await,
            Command::Health => health::run(config).await,
            Command::Schema => Ok(writeln!(out, "{:#}", config::schema())?),
            Command::Completions { shell } => {
                let mut script = Vec::new(); // the generator panics if its output cannot be written
                clap_complete::generate(shell, &mut Cli::command(), "guildgate", &mut script);
                Ok(out.write_all(&script)?)
            }
            Command::Man { directory: None } => Ok(clap_mangen::Man::new(Cli::command()).render(&mut out)?),
            Command::Man { directory: Some(folder) } => write_manual(&folder),
        }
    }
}

impl RecordCommand {
    /// What to do if there is no store yet.
    fn if_missing(&self) -> IfMissing {
        match self {
            RecordCommand::Guild(guild::GuildCommand::Add(_)) => IfMissing::Make,
            _ => IfMissing::Refuse,
        }
    }

    /// Refuses a command about what the server does not have in its store, as the admin API does (409): nothing would
    /// come of it.
    fn must_be_in_store(&self, config: &Config) -> Result<(), &'static str> {
        match self {
            RecordCommand::Guild(_) => config.must_have_store(),
            RecordCommand::Key(_) => config.must_store_keys(),
            RecordCommand::Member(_) | RecordCommand::Warn(_) | RecordCommand::Review(_) => config.must_store_members(),
        }
    }

    async fn run(self, records: &Records, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            RecordCommand::Guild(command) => command.run(records, out).await,
            RecordCommand::Key(command) => command.run(records, out).await,
            RecordCommand::Member(command) => command.run(records, out).await,
            RecordCommand::Warn(command) => command.run(records, out).await,
            RecordCommand::Review(command) => command.run(records, out).await,
        }
    }
}

/// Writes a manual page for each command into a folder, which is made if it is missing.
fn write_manual(folder: &Path) -> Result<(), CommandError> {
    let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    written.map_err(|e| CommandError::new(format!("the manual pages cannot be written to {}: {e}", folder.display())))
}

/// Opens the store that the configuration names, and reports one that it made.
async fn open_store(loaded: &Loaded, if_missing: IfMissing) -> Result<Arc<Store>, StoreError> {
    let store = Store::open(&loaded.config.origin.store, if_missing).await?;
    if store.is_new() {
        print_message(&format!("made a new store at {}", store.location()));
    }
    Ok(store)
}

/// The store, to look something up in. It is neither made nor brought up to date.
async fn store_as_it_is(at: &StoreAt) -> Result<Arc<Store>, CommandError> {
    match Store::state(at).await? {
        StoreState::Missing => Err(CommandError::new(format!("there is no store at {at}"))),
        StoreState::Older => Err(CommandError::new(format!("{at} is of an older version"))),
        StoreState::Current => Ok(Store::open(at, IfMissing::Refuse).await?),
    }
}

/// Waits for `work`, which must not block. At SIGINT or SIGTERM it is dropped, which removes its temporary files, and the
/// command ends with exit code 1. Once it is done, these signals are ignored: what follows is short, and its outcome is
/// reported.
async fn unless_interrupted<T>(
    message: &str,
    work: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    let cannot_listen = |e| CommandError::new(format!("cannot listen for signals: {e}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot_listen)?;
    tokio::select! {
        _ = ctrl_c() => {}
        _ = terminate.recv() => {}
        done = work => return done,
    }
    print_message(message);
    // Does not wait for a thread that is blocked in a read or in a long statement.
    std::process::exit(1)
}
