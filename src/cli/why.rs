//! `guildgate why`: finds one request in the access log and explains it. Files are read as streams, so that a log of any
//! size takes no memory. Nothing is changed.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use memchr::memmem::Finder;

use super::error::CommandError;
use super::input::{decompressed, open};
use super::store_as_it_is;
use super::transfer::cannot_read;
use crate::config::{Access, Config, Keys, Loaded};
use crate::files::with_suffix;
use crate::keys::read_key_file;
use crate::model::GuildId;
use crate::telemetry::{AccessLine, Explanation, KeyLookup, printable};

/// How much of a line is looked at together. An access line has some 300 bytes.
const MAX_LINE: u64 = 64 * 1024;

/// How long a request that is not there is waited for in `log.access`: a server writes its line a moment after the answer.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(super) struct WhyArgs {
    /// The request's id: X-Request-Id of its answer, request_id in the process log
    #[arg(value_name = "REQUEST-ID")]
    id: String,
    /// Where to look instead, plain or gzip; `-` is stdin
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

impl WhyArgs {
    pub(super) async fn run(self, loaded: &Loaded, out: &mut dyn Write) -> Result<(), CommandError> {
        let line = self.find_by(&loaded.config)?;
        let key = match line.key.as_deref() {
            Some(id) => look_up(id, &loaded.config).await,
            None => KeyLookup::NotListed,
        };
        let explanation = Explanation::new(line, &key, Some(loaded));
        let text = match self.json {
            true => serde_json::to_string(&explanation)?,
            false => explanation.sentences().iter().map(|s| printable(s)).collect::<Vec<_>>().join("\n"),
        };
        Ok(writeln!(out, "{text}")?)
    }

    /// Looks into the files that are named, or where the configuration says that requests are logged.
    fn find_by(&self, config: &Config) -> Result<AccessLine, CommandError> {
        let piped = "log.access is no file; pipe the log in, as in `journalctl -u guildgate | guildgate why ID`";
        match &config.log.access {
            _ if !self.files.is_empty() => {
                self.find(&self.files, Duration::ZERO, "name the log that has it, or pipe it in and give `-`")
            }
            Access::File(log) => {
                let older = Some(with_suffix(log, ".1")).filter(|older| older.exists());
                let files: Vec<PathBuf> = [log.clone()].into_iter().chain(older).collect();
                let next = "check the id (X-Request-Id of the answer), or name an older log: `guildgate why ID FILE`";
                self.find(&files, WRITTEN_WITHIN, next)
            }
            Access::None => Err(CommandError::new(
                "log.access is \"\", so no request is logged; set it to a path, and later requests can be explained",
            )),
            Access::Stdout | Access::Stderr if io::stdin().is_terminal() => Err(CommandError::new(piped)),
            Access::Stdout | Access::Stderr => self.find(&["-".into()], Duration::ZERO, piped),
        }
    }

    /// Looks into one file after another, and again until `within` has passed, since each may grow.
    fn find(&self, files: &[PathBuf], within: Duration, next: &str) -> Result<AccessLine, CommandError> {
        let open = |path: &PathBuf| open(path).and_then(decompressed).map_err(|e| cannot_read(path, &e));
        let mut logs = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let until = Instant::now() + within;
        loop {
            for (path, log) in files.iter().zip(&mut logs) {
                if let Some(line) = search(log, &self.id).map_err(|e| cannot_read(path, &e))? {
                    return Ok(line);
                }
            }
            if Instant::now() >= until {
                break;
            }
            sleep(Duration::from_millis(100));
        }
        let names: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
        let text = format!("request {} was not found: no access line has this id in {}", self.id, names.join(", "));
        Err(CommandError::new(format!("{}; {next}", printable(&text))))
    }
}

/// Looks for the request in what `from` yields from here on.
fn search(mut from: impl BufRead, id: &str) -> io::Result<Option<AccessLine>> {
    let (finder, mut line) = (Finder::new(id), Vec::new());
    while from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
        if finder.find(&line).is_some()
            && let Some(found) = AccessLine::of_request(&String::from_utf8_lossy(&line), id)
        {
            return Ok(Some(found));
        }
        line.clear();
    }
    Ok(None)
}

/// What is known of the key with this id.
async fn look_up(id: &str, config: &Config) -> KeyLookup {
    let found = match &config.keys {
        Keys::Origin { .. } => return KeyLookup::AtOrigin,
        Keys::File(path) => match read_key_file(path) {
            Ok(keys) => Ok(keys.into_iter().find(|key| *key.id == *id).map(|key| (None, key.guild))),
            Err(error) => Err(format!("the key file cannot be used: {error}")),
        },
        Keys::Store => in_store(id, config).await.map_err(|why| why.to_string()),
    };
    match found {
        Ok(Some((name, guild))) => KeyLookup::Found { name, guild: guild.to_string() },
        Ok(None) => KeyLookup::NotListed,
        Err(why) => KeyLookup::Failed(why),
    }
}

async fn in_store(id: &str, config: &Config) -> Result<Option<(Option<String>, GuildId)>, CommandError> {
    let key = store_as_it_is(&config.origin.store).await?.key(id).await?;
    Ok(key.map(|key| (Some(key.name).filter(|name| !name.is_empty()), key.guild)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "2026-09-21T14:13:20.123Z 10.0.0.1 - 404 10 key=- cache=- took_us=9 id=abc\n";

    #[test]
    fn a_line_of_any_length_and_a_last_line_without_its_end_do_not_matter() {
        let long = "x".repeat(3 * MAX_LINE as usize) + "abc\n";
        for text in [LINE.to_owned(), LINE.trim_end().to_owned(), format!("\n{long}\u{0}{long}\n{LINE}")] {
            assert!(search(text.as_bytes(), "abc").unwrap().is_some(), "{} bytes", text.len());
        }
        assert!(search(LINE.as_bytes(), "abcd").unwrap().is_none());
    }
}
