//! `guildgate store`: backs up, restores and verifies the store's file.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::error::CommandError;
use super::output::ignore_broken_pipe;
use super::transfer::cannot_write;
use super::unless_interrupted;
use crate::config::{PostgresAt, StoreAt};
use crate::store::backup::{self, Restored};
use crate::store::blocking;

/// What to use instead if the store is in PostgreSQL.
const IN_POSTGRES: &str = "the store is in PostgreSQL, which is backed up by its own pg_dump (--schema=guildgate), restored by \
    pg_restore or psql, and checked by pg_amcheck; `store verify FILE` checks an SQLite store";

/// `guildgate store …`
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Copies the store to FILE as it is at one moment, while a server may write to it
    Backup {
        file: PathBuf,
        /// Replaces an older backup
        #[arg(long)]
        force: bool,
    },
    /// Replaces the store by a copy of a backup; the previous store is kept under another name. Refused while a
    /// server runs
    Restore {
        /// The backup
        file: PathBuf,
    },
    /// Checks the store and prints what is wrong with it; changes nothing
    Verify {
        /// The file to check, such as a backup; without it the store of the configuration
        file: Option<PathBuf>,
    },
}

impl StoreCommand {
    /// Runs the command on the store at `configured`, or on the file that is named.
    pub(super) async fn run(self, configured: &StoreAt, out: &mut dyn Write) -> Result<(), CommandError> {
        let file = match &self {
            StoreCommand::Backup { file, .. } | StoreCommand::Restore { file } => Some(file),
            StoreCommand::Verify { file } => file.as_ref(),
        };
        // A URL has a password in it, which no message may repeat.
        if file.and_then(|file| file.to_str()).is_some_and(PostgresAt::is_meant) {
            let why = "`store backup`, `store restore` and `store verify` take a file, and not a PostgreSQL server";
            return Err(CommandError::new(why));
        }
        if let StoreCommand::Verify { file: Some(file) } = &self {
            return verify(file, out);
        }
        let path = match configured {
            StoreAt::Sqlite(path) => path,
            StoreAt::Postgres(_) => return Err(CommandError::new(IN_POSTGRES)),
        };
        // Absolute, so that messages name the folder.
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.clone());
        if !matches!(self, StoreCommand::Restore { .. }) {
            backup::must_exist(path)?;
        }
        match self {
            StoreCommand::Backup { file, force } => back_up(path, &file, force, out).await,
            StoreCommand::Restore { file } => restore(&file, path, out).await,
            StoreCommand::Verify { .. } => verify(path, out),
        }
    }
}

async fn back_up(from: &Path, to: &Path, force: bool, out: &mut dyn Write) -> Result<(), CommandError> {
    let message = format!("interrupted; {} is as it was, and there is no new backup", to.display());
    let copy = unless_interrupted(&message, async { Ok(backup::backup(from, to, force).await?) }).await?;
    let size = copy.replace_target().map_err(cannot_write(to))?;
    Ok(writeln!(out, "{size} bytes written to {}", to.display())?)
}

async fn restore(from: &Path, store: &Path, out: &mut dyn Write) -> Result<(), CommandError> {
    if store.is_dir() {
        let store = store.display();
        return Err(CommandError::new(format!(
            "{store} is a folder, and a store is a file; move it away (mv {store} …)"
        )));
    }
    let paths = (from.to_owned(), store.to_owned());
    let Restored { size, kept } = blocking(move || backup::restore(&paths.0, &paths.1)).await?;
    let was = match kept {
        None => "there was no store before".to_owned(),
        Some(file) => format!("what was there is {} now", file.display()),
    };
    Ok(writeln!(out, "{} is a copy of {} now, {size} bytes\n{was}", store.display(), from.display())?)
}

fn verify(path: &Path, out: &mut dyn Write) -> Result<(), CommandError> {
    let report = backup::verify(path)?;
    let (schema, newest) = report.schema;
    let note = match schema.cmp(&newest) {
        std::cmp::Ordering::Less => format!(", brought up to {newest} when it is next opened"),
        std::cmp::Ordering::Equal => String::new(),
        std::cmp::Ordering::Greater => format!(", of a newer Guildgate (this one knows {newest})"),
    };
    let mut lines = vec![format!("{}: schema {schema}{note}", path.display())];
    lines.extend(report.rows.iter().map(|(table, rows)| format!("{table}: {rows}")));
    lines.extend(report.flaws.iter().map(|flaw| format!("wrong: {flaw}")));
    lines.push(match report.flaws.is_empty() {
        true => "nothing is wrong".to_owned(),
        false => {
            "it cannot be used: take another backup, or if it is the store, stop the server and put a backup in its \
            place (`guildgate store restore FILE`)"
                .to_owned()
        }
    });
    // If the reader closes stdout early, the exit code is still that of the verification.
    ignore_broken_pipe(writeln!(out, "{}", lines.join("\n")).and_then(|()| out.flush()))?;
    match report.flaws.len() {
        0 => Ok(()),
        1 => Err(CommandError::new(format!("something is wrong with {}", path.display()))),
        flaws => Err(CommandError::new(format!("{flaws} things are wrong with {}", path.display()))),
    }
}
