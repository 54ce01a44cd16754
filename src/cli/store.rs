//! `store`: the store's file as a whole.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::error::{CommandError, unless_enough_read};
use super::told::report;
use super::transfer::byte_bar;
use crate::config::{PostgresAt, StoreAt};
use crate::store::{Copied, Restored, SqliteStore, StoreError};

/// `guildgate store …`
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Copies the store to FILE as it is at one moment, while a server goes on writing to it
    Backup { file: PathBuf },
    /// Puts a copy of a backup in the store's place; what was there is set aside by another name. Refused while a
    /// server runs
    Restore {
        /// The backup
        file: PathBuf,
    },
    /// Looks for what is wrong with the store, and says what would repair it; changes nothing
    Verify {
        /// The file to look at, such as a backup; without it the store of the configuration
        file: Option<PathBuf>,
    },
}

impl StoreCommand {
    /// What is left if a signal ends it midway; `None` where nothing was being made.
    pub(super) fn if_interrupted(&self) -> Option<String> {
        match self {
            StoreCommand::Backup { file } => {
                Some(format!("interrupted; {} is as it was, and there is no new backup", file.display()))
            }
            StoreCommand::Restore { .. } => Some("interrupted; the store is as it was".to_owned()),
            StoreCommand::Verify { .. } => None,
        }
    }

    /// Does it to the store at `configured`, or to the file that is named.
    pub(super) fn run(self, configured: &StoreAt, out: &mut dyn Write) -> Result<(), CommandError> {
        let configured = match configured {
            // So that a message says which folder it was looked for in.
            StoreAt::Sqlite(path) => StoreAt::Sqlite(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
            StoreAt::Postgres(_) => configured.clone(),
        };
        match (self, &configured) {
            (StoreCommand::Verify { file: Some(file) }, _) => {
                // A URL has a password in it, which no message is to repeat.
                if file.to_str().is_some_and(PostgresAt::is_meant) {
                    return Err(CommandError::new("`store verify` looks at a file, and not at a PostgreSQL server"));
                }
                verify(&file, out)
            }
            (StoreCommand::Verify { file: None }, StoreAt::Sqlite(path)) => {
                must_be_there(path)?;
                verify(path, out)
            }
            (StoreCommand::Backup { file }, StoreAt::Sqlite(path)) => {
                must_be_there(path)?;
                backup(path, &file, out)
            }
            (StoreCommand::Backup { .. }, StoreAt::Postgres(_)) => Err(CommandError::new(
                "the store is in PostgreSQL, which is backed up by its own pg_dump (--schema=guildgate); \
                 `guildgate export` writes guilds, members, warns and reviews",
            )),
            (StoreCommand::Restore { file }, StoreAt::Sqlite(path)) => restore(&file, path, out),
            (StoreCommand::Restore { .. }, StoreAt::Postgres(_)) => Err(CommandError::new(
                "the store is in PostgreSQL, which is restored by its own pg_restore or psql, from what pg_dump \
                 (--schema=guildgate) wrote; `guildgate import` takes in what `guildgate export` wrote",
            )),
            (StoreCommand::Verify { file: None }, StoreAt::Postgres(_)) => Err(CommandError::new(
                "the store is in PostgreSQL, which keeps its own files in order (pg_amcheck looks at them); \
                 name a FILE to look at an SQLite store",
            )),
        }
    }
}

/// Refuses where there is no store, in the words that `serve` has for a link without a file or a log without one.
fn must_be_there(path: &Path) -> Result<(), StoreError> {
    if path.exists() {
        return Ok(());
    }
    SqliteStore::refuse_lone_link(path)?;
    SqliteStore::refuse_stray_log(path)?;
    SqliteStore::must_exist(path)
}

fn backup(from: &Path, to: &Path, out: &mut dyn Write) -> Result<(), CommandError> {
    let size = with_bar(|told| SqliteStore::backup(from, to, told))?;
    report(out, &format!("{size} bytes written to {}", to.display()))
}

fn restore(from: &Path, store: &Path, out: &mut dyn Write) -> Result<(), CommandError> {
    if store.is_dir() {
        let store = store.display();
        return Err(CommandError::new(format!(
            "{store} is a folder, and a store is a file; move it away (mv {store} …)"
        )));
    }
    let Restored { size, aside, finished } = with_bar(|told| SqliteStore::restore(from, store, told))?;
    let mut lines: Vec<String> = finished.into_iter().collect();
    lines.push(format!("{} is a copy of {} now, {size} bytes", store.display(), from.display()));
    match aside.split_first() {
        None => lines.push("there was no store before".to_owned()),
        Some((file, logs)) => {
            lines.push(format!("what was there is {} now", file.display()));
            lines.extend(logs.iter().map(|log| format!("and its log {}", log.display())));
        }
    }
    report(out, &lines.join("\n"))
}

/// Does `work` with a bar for what it copies.
fn with_bar<T>(work: impl FnOnce(&mut dyn FnMut(Copied)) -> Result<T, StoreError>) -> Result<T, CommandError> {
    let mut bar = None;
    let done = work(&mut |copied| {
        if let Some(bar) = bar.get_or_insert_with(|| byte_bar(copied.total)) {
            bar.set_position(copied.done);
        }
    });
    if let Some(bar) = bar.flatten() {
        bar.finish_and_clear();
    }
    Ok(done?)
}

fn verify(path: &Path, out: &mut dyn Write) -> Result<(), CommandError> {
    let report = SqliteStore::verify(path)?;
    let (schema, newest) = report.schema;
    let note = match schema.cmp(&newest) {
        std::cmp::Ordering::Less => format!(", brought up to {newest} when it is next opened"),
        std::cmp::Ordering::Equal => String::new(),
        std::cmp::Ordering::Greater => format!(", of a newer Guildgate (this one knows {newest})"),
    };
    let mut text = format!("{}: schema {schema}{note}\n", path.display());
    for (table, rows) in &report.rows {
        text += &format!("{table}: {rows}\n");
    }
    for flaw in &report.flaws {
        text += &format!("wrong: {}\n  repair: {}\n", flaw.what, flaw.repair);
    }
    if report.flaws.is_empty() {
        text += "nothing is wrong\n";
    }
    // A store is as sound or not, however much of this is read.
    unless_enough_read(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
    match report.flaws.len() {
        0 => Ok(()),
        1 => Err(CommandError::new(format!("something is wrong with {}", path.display()))),
        flaws => Err(CommandError::new(format!("{flaws} things are wrong with {}", path.display()))),
    }
}
