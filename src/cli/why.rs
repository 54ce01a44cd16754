//! `guildgate why`: finds one request in the access log and explains it. Files are read as streams, so that a log of any
//! size takes no memory. Nothing is changed.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use memchr::memmem::Finder;

use super::error::CommandError;
use super::input::{decompressed, open};
use super::transfer::cannot_read;
use super::{Failure, print_message, runtime, store_as_it_is};
use crate::config::{self, Access, Config, Keys, Loaded};
use crate::files::with_suffix;
use crate::keys::read_key_file;
use crate::telemetry::{AccessLine, Explanation, KeyLookup, printable};

/// How much of a line is looked at together. An access line has some 300 bytes.
const MAX_LINE: u64 = 64 * 1024;

/// How long a request that is not there is waited for in `log.access`: a server writes its line a moment after the answer.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

/// How often the log is looked at meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(super) struct WhyArgs {
    /// The request's id: X-Request-Id of its answer, request_id in the process log
    #[arg(value_name = "REQUEST-ID", value_parser = request_id)]
    id: String,
    /// Where to look instead, plain or gzip; `-` is stdin
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

fn request_id(text: &str) -> Result<String, String> {
    let is_id = (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    if is_id {
        Ok(text.to_owned())
    } else {
        Err("a request id is 1 to 128 visible characters without spaces".to_owned())
    }
}

impl WhyArgs {
    /// Explains the request, by the configuration at `named`.
    pub(super) fn run(self, named: Option<&Path>, out: &mut dyn Write) -> Result<(), Failure> {
        let loaded = match config::load(named) {
            Ok(loaded) => Some(loaded),
            // The log that is named on the command line can be explained without a configuration.
            Err(faults) if !self.files.is_empty() => {
                print_message(&format!(
                    "limits and keys are not explained, because the configuration cannot be read: {faults}"
                ));
                None
            }
            Err(faults) => return Err(faults.into()),
        };
        let line = match loaded.as_ref().map(|loaded| &loaded.config.log.access) {
            Some(access) if self.files.is_empty() => self.find_in(access)?,
            _ => self.find(&self.files, Duration::ZERO, "name the log that has it, or pipe it in and give `-`")?,
        };
        let key = line.key.as_deref().map_or(KeyLookup::NotListed, |id| look_up(id, loaded.as_ref()));
        let explanation = Explanation::new(line, &key, loaded.as_ref());
        let text = match self.json {
            true => serde_json::to_string(&explanation).map_err(CommandError::from)?,
            false => explanation.sentences().iter().map(|s| printable(s)).collect::<Vec<_>>().join("\n"),
        };
        Ok(writeln!(out, "{text}").map_err(CommandError::from)?)
    }

    /// Looks where the configuration says that requests are logged.
    fn find_in(&self, access: &Access) -> Result<AccessLine, CommandError> {
        let piped = "log.access is no file; pipe the log in, as in `journalctl -u guildgate | guildgate why ID`";
        match access {
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
                let names: Vec<_> = files.iter().map(|path| printable(&path.display().to_string())).collect();
                let (id, names) = (printable(&self.id), names.join(", "));
                return Err(CommandError::new(format!(
                    "request {id} was not found: no access line has this id in {names}; {next}"
                )));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
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
fn look_up(id: &str, loaded: Option<&Loaded>) -> KeyLookup {
    let Some(loaded) = loaded else { return KeyLookup::Failed("the configuration cannot be read".to_owned()) };
    let config = &loaded.config;
    match &config.keys {
        Keys::Origin { .. } => KeyLookup::AtOrigin,
        Keys::File(path) => match read_key_file(path) {
            Ok(keys) => keys
                .into_iter()
                .find(|key| *key.id == *id)
                .map_or(KeyLookup::NotListed, |key| KeyLookup::Found { name: None, guild: key.guild.to_string() }),
            Err(error) => KeyLookup::Failed(format!("the key file cannot be used: {error}")),
        },
        Keys::Store => in_store(id, config).unwrap_or_else(|why| KeyLookup::Failed(why.message)),
    }
}

fn in_store(id: &str, config: &Config) -> Result<KeyLookup, CommandError> {
    let key = runtime()?
        .block_on(async { Ok::<_, CommandError>(store_as_it_is(&config.origin.store).await?.key(id).await?) })?;
    Ok(key.map_or(KeyLookup::NotListed, |key| KeyLookup::Found {
        name: Some(key.name).filter(|name| !name.is_empty()),
        guild: key.guild.to_string(),
    }))
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
