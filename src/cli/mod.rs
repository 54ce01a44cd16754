//! The command: arguments to exit code (contract section 2).

pub mod error; // a command that failed: exit 1
pub mod expires; // --expires, and dates
pub mod notes; // warn, review
pub mod records; // guild, member
pub mod transfer; // import, export

mod check; // check
mod interrupt; // signals to a command that takes long
mod key_life; // key rotate, key set
mod keys; // key
mod limits; // limits
mod serve; // serve
mod store; // store
mod told; // what was done, on stdout

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::config::{self, LoadError, Loaded};
use crate::keys::hide_keys;
use crate::store::{AnyStore, IfMissing, StoreError};
use error::{CommandError, unless_enough_read};

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
    /// Runs the gateway until SIGTERM or SIGINT
    Serve {
        /// Serves a throw-away store on loopback, and prints a key and a curl line to try
        #[arg(long)]
        demo: bool,
    },
    /// Reads the configuration and prints what is in force, or every fault in it
    Check,
    /// Guilds in the store
    #[command(subcommand)]
    Guild(records::GuildCommand),
    /// API keys in the store
    #[command(subcommand)]
    Key(keys::KeyCommand),
    /// Members of a guild and their points
    #[command(subcommand)]
    Member(records::MemberCommand),
    /// Warns of members
    #[command(subcommand)]
    Warn(notes::WarnCommand),
    /// Reviews of members
    #[command(subcommand)]
    Review(notes::ReviewCommand),
    /// Takes guilds, members, warns and reviews from JSON Lines into the store
    Import(transfer::ImportArgs),
    /// Writes guilds, members, warns and reviews of the store as JSON Lines
    Export(transfer::ExportArgs),
    /// The store as a whole: backup, verify, restore
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// What recorded traffic says about limits
    #[command(subcommand)]
    Limits(limits::LimitsCommand),
    /// Prints the JSON Schema of gateway.toml, for editors
    Schema,
    /// Prints a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Prints the manual page
    Man,
}

/// Why the process ends otherwise than with 0.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Exit 1.
    #[error("{0}")]
    Failed(#[from] CommandError),
    /// Exit 2: bad usage or bad configuration.
    #[error("{0}")]
    Unusable(String),
    /// Exit 3: `limits plan` found requests that were accepted and would be refused.
    #[error("{0}")]
    WouldRefuse(String),
    /// The log names the reason already.
    #[error("")]
    Logged { code: u8 },
}

impl Failure {
    /// The process's exit code.
    fn code(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Unusable(_) => 2,
            Failure::WouldRefuse(_) => 3,
            Failure::Logged { code } => *code,
        }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Failure::Unusable(error.to_string())
    }
}

/// Reads the arguments, does what they say, and tells how it went.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misused(&error),
    };
    match cli.command.run(cli.config.filter(|path| !path.as_os_str().is_empty())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed(error)) if error.is_enough_read() => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::Logged { .. }) {
                tell(&failure.to_string());
            }
            ExitCode::from(failure.code())
        }
    }
}

/// Says on stderr why it ends. Where stderr is gone there is nobody to tell.
fn tell(why: &str) {
    let _ = io::stderr().write_all(format!("guildgate: {}\n", hide_keys(why)).as_bytes());
}

/// Says what is wrong with the arguments, or gives the help that was asked for.
fn misused(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Help or the version. Clap's own way out would pass over a disk that is full.
        return match unless_enough_read(error.print().and_then(|()| io::stdout().flush())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tell(&CommandError::from(error).to_string());
                ExitCode::from(1)
            }
        };
    }
    let text = error.to_string();
    let hidden = hide_keys(&text);
    // Clap's own printing has colours; a key that somebody typed must not be in it.
    if hidden == text {
        error.exit();
    }
    let _ = io::stderr().write_all(hidden.as_bytes());
    ExitCode::from(2)
}

impl Command {
    fn run(self, named: Option<PathBuf>) -> Result<(), Failure> {
        let load = || config::load(named.as_deref());
        let mut out = io::stdout().lock();
        match self {
            Command::Serve { demo } => {
                drop(out);
                serve::run(named, demo)
            }
            Command::Check => check::run(&load()?, &mut out),
            Command::Guild(command) => {
                let if_missing = command.if_missing();
                on_store(&load()?, if_missing, async |store, _| command.run(store, &mut out).await)
            }
            Command::Key(keys::KeyCommand::Hash) => Ok(keys::hash(&mut io::stdin().lock(), &mut out)?),
            Command::Key(command) => on_store(&load()?, IfMissing::Refuse, async |store, loaded| {
                command.run(store, &loaded.config.limits, &mut out).await
            }),
            Command::Member(command) => {
                on_store(&load()?, IfMissing::Refuse, async |store, _| command.run(store, &mut out).await)
            }
            Command::Warn(command) => {
                on_store(&load()?, IfMissing::Refuse, async |store, _| command.run(store, &mut out).await)
            }
            Command::Review(command) => {
                on_store(&load()?, IfMissing::Refuse, async |store, _| command.run(store, &mut out).await)
            }
            Command::Import(args) => {
                let loaded = load()?;
                args.is_there()?;
                Ok(runtime()?.block_on(args.run(&loaded, &mut out))?)
            }
            Command::Export(args) => {
                drop(out); // another thread may write the records to it
                Ok(runtime()?.block_on(args.run(&load()?))?)
            }
            Command::Store(command) => {
                let loaded = load()?;
                Ok(runtime()?.block_on(command.run(&loaded.config.origin.store, &mut out))?)
            }
            Command::Limits(command) => command.run(named.as_deref(), &mut out),
            Command::Schema => Ok(writeln!(out, "{:#}", config::schema()).map_err(CommandError::from)?),
            Command::Completions { shell } => {
                // Into memory first: the generator panics where its output ends early.
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "guildgate", &mut script);
                Ok(out.write_all(&script).map_err(CommandError::from)?)
            }
            Command::Man => Ok(clap_mangen::Man::new(Cli::command()).render(&mut out).map_err(CommandError::from)?),
        }
    }
}

/// Opens the store that the configuration names and runs a command on it.
fn on_store(
    loaded: &Loaded,
    if_missing: IfMissing,
    command: impl AsyncFnOnce(&AnyStore, &Loaded) -> Result<(), CommandError>,
) -> Result<(), Failure> {
    Ok(runtime()?.block_on(async {
        let store = open_store(loaded, if_missing).await?;
        command(&store, loaded).await
    })?)
}

/// Opens the store that the configuration names.
async fn open_store(loaded: &Loaded, if_missing: IfMissing) -> Result<AnyStore, StoreError> {
    let store = AnyStore::open(&loaded.config.origin.store, if_missing).await?;
    if store.is_new() {
        tell(&format!("made a new store at {}", store.place()));
    }
    Ok(store)
}

/// A runtime for the command's own thread.
fn runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| CommandError::new(format!("no runtime could be started: {e}")))
}
