//! `guildgate why`: finds one request in the access log, in rotated and compressed files too, or on stdin, and explains
//! it. Files are read as streams, so that a log of any size takes no memory. Nothing is changed.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime};

use clap::Args;
use memchr::memmem::Finder;

use super::error::CommandError;
use super::gzip::GzipMembers;
use super::{Failure, print_message, runtime};
use crate::config::{self, Access, Config, Keys, Loaded};
use crate::files::folder_of;
use crate::keys::read_key_file;
use crate::store::{IfMissing, Store, StoreState};
use crate::telemetry::{AccessLine, Explanation, KeyLookup, printable};

/// Longest line that is looked at. An access line has some 300 bytes.
const MAX_LINE: usize = 64 * 1024;

/// Bytes read at once.
const BUFFER: usize = 256 * 1024;

/// How long stdin may be silent before it counts as empty, if there are files to search too.
const STDIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the key's name is waited for: the store may be locked or away.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// Endings of compressed files that cannot be read here.
const OTHER_COMPRESSION: [&str; 4] = ["xz", "zst", "bz2", "lz4"];

#[derive(Debug, Args)]
pub(super) struct WhyArgs {
    /// The request's id: X-Request-Id of its answer, request_id in the process log
    #[arg(value_name = "REQUEST-ID", value_parser = request_id)]
    id: String,
    /// Where to look instead of in log.access and the rotated files beside it; `-` is stdin
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
        let line = self.find(loaded.as_ref())?;
        let key = line.key.as_deref().map_or(KeyLookup::NotListed, |id| look_up(id, loaded.as_ref()));
        let explanation = Explanation::new(line, &key, loaded.as_ref());
        let text = match self.json {
            true => serde_json::to_string(&explanation).map_err(CommandError::from)?,
            false => explanation.sentences().iter().map(|s| printable(s)).collect::<Vec<_>>().join("\n"),
        };
        Ok(writeln!(out, "{text}").map_err(CommandError::from)?)
    }

    fn find(&self, loaded: Option<&Loaded>) -> Result<AccessLine, CommandError> {
        let access = loaded.map(|loaded| &loaded.config.log.access);
        let is_stdin = |path: &&PathBuf| path.as_os_str() == "-";
        let files = match access {
            _ if !self.files.is_empty() => self.files.iter().filter(|path| !is_stdin(path)).cloned().collect(),
            Some(Access::File(path)) => with_rotated(path),
            _ => Vec::new(),
        };
        let (mut looked_in, mut skipped) = (Vec::new(), Vec::new());
        for path in &files {
            let name = printable(&path.display().to_string());
            match search_file(path, &self.id) {
                Ok(Some((found, is_only))) => {
                    if !is_only {
                        print_message(&format!("more than one line of {name} has this id; this is the first one"));
                    }
                    return Ok(found.line_of(&name));
                }
                Ok(None) => looked_in.push(name),
                Err(error) => {
                    print_message(&format!("{name} is skipped from here on: {}", printable(&error.to_string())));
                    skipped.push(name);
                }
            }
        }
        let is_stdin_named = self.files.iter().any(|path| is_stdin(&path));
        if is_stdin_named || self.files.is_empty() && !io::stdin().is_terminal() {
            // Without a file to search, and where it is named, stdin is waited for as long as it takes.
            let timeout = (!is_stdin_named && !files.is_empty()).then_some(STDIN_TIMEOUT);
            match search_stdin(&self.id, timeout)
                .map_err(|e| CommandError::new(format!("stdin cannot be read: {e}")))?
            {
                StdinSearch::Found(found) => return Ok(found.line_of("stdin")),
                StdinSearch::NotFound => looked_in.push("stdin".to_owned()),
                StdinSearch::Empty => {}
            }
        }
        Err(self.not_found(&looked_in, &skipped, access))
    }

    fn not_found(&self, looked_in: &[String], skipped: &[String], access: Option<&Access>) -> CommandError {
        let id = printable(&self.id);
        let searched = match looked_in {
            [] if !skipped.is_empty() => format!("{} could not be read to the end", skipped.join(", ")),
            [] => "there is no access log to look in".to_owned(),
            all => format!("no access line has this id in {}", all.join(", ")),
        };
        let next = match access {
            _ if !skipped.is_empty() && !self.files.is_empty() => {
                "name a log that can be read whole, or pipe what is left of it in and give `-`"
            }
            _ if !self.files.is_empty() => "name the log that has it, or pipe it in and give `-`",
            Some(Access::File(_)) => {
                "check the id (X-Request-Id of the answer); name an older log after it, as in `guildgate why ID FILE`; or \
                 pipe the log in and give `-`"
            }
            Some(Access::None) => {
                "log.access is \"\", so no request is logged; set it to a path, and later requests can be explained"
            }
            Some(Access::Stdout | Access::Stderr) | None => {
                "log.access is no file; pipe the log in, as in `journalctl -u guildgate | guildgate why ID`"
            }
        };
        CommandError::new(format!("request {id} was not found: {searched}; {next}"))
    }
}

/// The log and the rotated files beside it, newest first.
fn with_rotated(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (stem, ending) = name.rsplit_once('.').unwrap_or((&name, ""));
    let (ends, goes_on) = (format!(".{ending}"), format!(".{ending}."));
    let is_rotated = |other: &str| {
        let after = |start: &str| other.strip_prefix(start).is_some_and(|rest| rest.starts_with(['.', '-']));
        // `access.log.1`, `access.log-20261122.gz`, and `access-20261122.log`, as logrotate's `extension` has it.
        other != name
            && (after(&name)
                || !ending.is_empty() && after(stem) && (other.ends_with(&ends) || other.contains(&goes_on)))
    };
    let entries = fs::read_dir(folder_of(path)).into_iter().flatten().flatten();
    let mut rotated: Vec<(SystemTime, PathBuf)> = entries
        .filter(|entry| is_rotated(&entry.file_name().to_string_lossy()))
        .filter_map(|entry| {
            let metadata = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file)?;
            Some((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), entry.path()))
        })
        .collect();
    rotated.sort_by(|a, b| b.cmp(a));
    [path.to_owned()].into_iter().chain(rotated.into_iter().map(|(_, path)| path)).collect()
}

/// A line that was found.
struct Found {
    line: AccessLine,
    /// It ends as a line of the log does.
    has_end: bool,
}

impl Found {
    /// The line, after a message if it may be cut.
    fn line_of(self, name: &str) -> AccessLine {
        if !self.has_end {
            print_message(&format!(
                "the line with this id, the last one of {name}, has no line feed at its end, so it may be incomplete: a \
                 field may be cut or missing below"
            ));
        }
        self.line
    }
}

/// Looks for the request in a file, which is decompressed if it is gzip. Says besides whether no other line of it has
/// the id.
fn search_file(path: &Path, id: &str) -> io::Result<Option<(Found, bool)>> {
    if path.extension().is_some_and(|ending| OTHER_COMPRESSION.iter().any(|other| ending == *other)) {
        return Err(io::Error::other("only gzip is decompressed here; decompress it, and pipe it in with `-`"));
    }
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut file = BufReader::with_capacity(BUFFER, File::open(path)?);
    if !file.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        return first_of_all(file, id);
    }
    let found = first_of_all(BufReader::with_capacity(BUFFER, GzipMembers::new(file)), id);
    found.map_err(|error| match error.kind() {
        _ if error.raw_os_error().is_some() => error,
        io::ErrorKind::UnexpectedEof => io::Error::other("it is cut off: its gzip data has no end"),
        _ => io::Error::other(format!("its gzip data is damaged: {error}")),
    })
}

/// Looks for the request up to the end of `from`: a second line may have the id, and only the end of gzip data tells
/// that it is sound. What precedes a cut is.
fn first_of_all(mut from: impl BufRead, id: &str) -> io::Result<Option<(Found, bool)>> {
    let Some(first) = search(&mut from, id)? else { return Ok(None) };
    let mut is_only = true;
    loop {
        match search(&mut from, id) {
            Ok(Some(_)) => is_only = false,
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            Ok(None) | Err(_) => return Ok(Some((first, is_only))),
        }
    }
}

/// Looks for the request in what `from` yields. What is longer than any access line is passed over.
fn search(mut from: impl BufRead, id: &str) -> io::Result<Option<Found>> {
    let (finder, mut line) = (Finder::new(id), Vec::new());
    loop {
        line.clear();
        let read = from.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') && read == MAX_LINE {
            line.clear();
            from.skip_until(b'\n')?;
        }
        if finder.find(&line).is_some()
            && let Some(found) = AccessLine::of_request(&String::from_utf8_lossy(&line), id)
        {
            // JSON without its end is not read at all.
            let has_end = matches!(line.last(), Some(b'\n' | b'}'));
            return Ok(Some(Found { line: found, has_end }));
        }
    }
}

enum StdinSearch {
    Found(Box<Found>),
    NotFound,
    /// Nothing came.
    Empty,
}

/// Looks for the request on stdin. A stdin that stays silent for `timeout` counts as empty: nobody may ever write to
/// it.
fn search_stdin(id: &str, timeout: Option<Duration>) -> io::Result<StdinSearch> {
    let (begun, has_begun) = mpsc::channel();
    let id = id.to_owned();
    // A read of stdin cannot be given up; the thread ends with the process.
    let reader = std::thread::spawn(move || {
        let mut stdin = BufReader::with_capacity(BUFFER, io::stdin().lock());
        let is_empty = stdin.fill_buf()?.is_empty();
        let _ = begun.send(()); // nobody waits any more
        if is_empty {
            return Ok(StdinSearch::Empty);
        }
        Ok(search(stdin, &id)?.map_or(StdinSearch::NotFound, |found| StdinSearch::Found(Box::new(found))))
    });
    if let Some(timeout) = timeout
        && has_begun.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout)
    {
        return Ok(StdinSearch::Empty);
    }
    reader.join().unwrap_or_else(|_| Err(io::Error::other("the thread that reads it has ended by a defect")))
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
        Keys::Store => in_store(id, config).unwrap_or_else(KeyLookup::Failed),
    }
}

/// A store that is not there, or is an older version's, is left as it is.
fn in_store(id: &str, config: &Config) -> Result<KeyLookup, String> {
    let at = &config.origin.store;
    let runtime = runtime().map_err(|e| e.to_string())?;
    let looked_up = runtime.block_on(async {
        let look_up = async {
            match Store::state(at).await.map_err(|e| e.to_string())? {
                StoreState::Missing => return Err(format!("there is no store at {at}")),
                StoreState::Older => return Err(format!("{at} is of an older version")),
                StoreState::Current => {}
            }
            let store = Store::open(at, IfMissing::Refuse).await.map_err(|e| e.to_string())?;
            let key = store.key(id).await.map_err(|e| e.to_string())?;
            let name = |name: String| (!name.is_empty()).then_some(name);
            Ok(key.map_or(KeyLookup::NotListed, |key| KeyLookup::Found {
                name: name(key.name),
                guild: key.guild.to_string(),
            }))
        };
        let late = |_| Err(format!("the store did not answer within {} s", STORE_TIMEOUT.as_secs()));
        tokio::time::timeout(STORE_TIMEOUT, look_up).await.unwrap_or_else(late)
    });
    runtime.shutdown_background(); // does not wait for a store that hangs
    looked_up
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "2026-09-21T14:13:20.123Z 10.0.0.1 - 404 10 key=- cache=- took_us=9 id=abc\n";

    #[test]
    fn a_line_of_any_length_and_a_last_line_without_its_end_do_not_matter() {
        let long = "x".repeat(3 * MAX_LINE) + "abc\n";
        let exactly = "abc".repeat(MAX_LINE) + "\n";
        for text in [LINE.to_owned(), LINE.trim_end().to_owned(), format!("\n{long}{exactly}\u{0}{long}\n{LINE}")] {
            assert!(search(text.as_bytes(), "abc").unwrap().is_some(), "{} bytes", text.len());
        }
        assert!(search(LINE.as_bytes(), "abcd").unwrap().is_none());
    }

    #[test]
    fn rotated_files_are_found_newest_first() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["access.log-20261122", "access.log.2.gz", "access.log.1", "access-20261120.log", "access.log"];
        let others = ["access.logs", "other.log", "access.txt", "error.log.1"];
        for (age, name) in names.iter().chain(&others).enumerate() {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age as u64)).unwrap();
        }
        fs::create_dir(folder.path().join("access.log.d")).unwrap();
        let found = with_rotated(&folder.path().join("access.log"));
        let found: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(found, ["access.log", names[0], names[1], names[2], names[3]]);
    }
}
