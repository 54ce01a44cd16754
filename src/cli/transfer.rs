//! `import` and `export`: JSON Lines, with a progress bar on a terminal and plain lines elsewhere.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::error::CommandError;
use crate::store::AnyStore;
use crate::store::transfer::{Imported, Mode, Progress};

/// Bytes read or written at once: few calls for a file of hundreds of megabytes.
const BUFFER: usize = 256 * 1024;

/// Records between two plain lines of progress: a line or two a second.
const LINE_EVERY: u64 = 250_000;

/// `guildgate import …`
#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// The file of JSON Lines, or - for stdin
    pub file: PathBuf,
    /// Takes the good lines of a file that has bad ones
    #[arg(long)]
    pub partial: bool,
}

/// `guildgate export …`
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// The file to write, or - for stdout
    pub file: PathBuf,
}

impl ImportArgs {
    /// Does it; what became of it goes to `out`, and lines left out to stderr.
    pub async fn run(self, store: &AnyStore, out: &mut dyn Write) -> Result<(), CommandError> {
        let mode = if self.partial { Mode::Partial } else { Mode::AllOrNothing };
        let Imported { records, bad } = if self.file.as_os_str() == "-" {
            let mut meter = Meter::new("read", None);
            store.import(BufReader::with_capacity(BUFFER, io::stdin().lock()), mode, &mut |p| meter.show(p)).await?
        } else {
            let unreadable = |e| CommandError::new(format!("{} cannot be read: {e}", self.file.display()));
            let file = File::open(&self.file).map_err(unreadable)?;
            let meta = file.metadata().map_err(unreadable)?;
            let mut meter = Meter::new("read", meta.is_file().then_some(meta.len()));
            store.import(BufReader::with_capacity(BUFFER, file), mode, &mut |p| meter.show(p)).await?
        };
        if bad.total > 0 {
            eprintln!("{bad}");
        }
        let left_out = if bad.total > 0 { format!(", bad lines left out: {}", bad.total) } else { String::new() };
        Ok(writeln!(out, "{records} records imported{left_out}")?)
    }
}

impl ExportArgs {
    /// Does it; with `-` the records go to `out`.
    pub async fn run(self, store: &AnyStore, out: &mut dyn Write) -> Result<(), CommandError> {
        let mut meter = Meter::new("written", None);
        if self.file.as_os_str() == "-" {
            let mut out = BufWriter::with_capacity(BUFFER, out);
            store.export(&mut out, &mut |p| meter.show(p)).await?;
            return Ok(());
        }
        let unwritable = |e| CommandError::new(format!("{} cannot be written: {e}", self.file.display()));
        // A pipe or a device cannot be replaced, only written to.
        if fs::metadata(&self.file).is_ok_and(|meta| !meta.is_file()) {
            let file = OpenOptions::new().write(true).open(&self.file).map_err(unwritable)?;
            let records = store.export(&mut BufWriter::with_capacity(BUFFER, file), &mut |p| meter.show(p)).await?;
            return Ok(writeln!(out, "{records} records exported")?);
        }
        let part = Part::create(&self.file).map_err(unwritable)?;
        let mut to = BufWriter::with_capacity(BUFFER, &part.file);
        let records = store.export(&mut to, &mut |p| meter.show(p)).await?;
        drop(to);
        part.finish(&self.file).map_err(unwritable)?;
        drop(meter);
        Ok(writeln!(out, "{records} records exported")?)
    }
}

/// An export under way, in a file of its own: one that is cut off replaces nothing.
struct Part {
    path: PathBuf,
    file: File,
    done: bool,
}

impl Part {
    fn create(target: &Path) -> io::Result<Self> {
        let mut path = OsString::from(target);
        path.push(format!(".{:08x}.part", fastrand::u32(..)));
        // 0600: it holds what was said about people.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Part { path: path.into(), file, done: false })
    }

    fn finish(mut self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, target)?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.done {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A bar on stderr for so many bytes; `None` where stderr is no terminal.
pub(super) fn byte_bar(total: u64) -> Option<ProgressBar> {
    on_terminal(|| {
        let template = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {msg}, {eta} left";
        ProgressBar::new(total).with_style(style(template))
    })
}

fn on_terminal(bar: impl FnOnce() -> ProgressBar) -> Option<ProgressBar> {
    io::stderr().is_terminal().then(bar)
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Shows how far it is, on stderr.
struct Meter {
    /// What is being done to the records: read, written.
    done: &'static str,
    bar: Option<ProgressBar>,
    said: u64,
}

impl Meter {
    fn new(done: &'static str, bytes: Option<u64>) -> Self {
        let bar = match bytes {
            Some(total) => byte_bar(total),
            None => {
                on_terminal(|| ProgressBar::no_length().with_style(style("{spinner} {bytes} {bytes_per_sec} {msg}")))
            }
        };
        Meter { done, bar, said: 0 }
    }

    fn show(&mut self, progress: Progress) {
        if let Some(bar) = &self.bar {
            bar.set_position(progress.bytes);
            let applying = if progress.applying { ", applying" } else { "" };
            bar.set_message(format!("{} records{applying}", progress.records));
            return;
        }
        if progress.records / LINE_EVERY > self.said {
            self.said = progress.records / LINE_EVERY;
            eprintln!("{} records {} so far", progress.records, self.done);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SqliteStore;

    const LINES: &str = "{\"guild\":\"81\",\"name\":\"Night Watch\"}\n";

    fn store() -> (tempfile::TempDir, AnyStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("store.db")).unwrap();
        (folder, store.into())
    }

    #[tokio::test]
    async fn an_import_and_an_export_say_how_many_and_the_file_is_replaced_whole() {
        let (folder, store) = store();
        let (from, to) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
        fs::write(&from, LINES).unwrap();
        fs::write(&to, "older and longer than what is exported now, so that a rest of it would be seen").unwrap();
        let mut out = Vec::new();
        ImportArgs { file: from, partial: false }.run(&store, &mut out).await.unwrap();
        ExportArgs { file: to.clone() }.run(&store, &mut out).await.unwrap();
        ExportArgs { file: "-".into() }.run(&store, &mut out).await.unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), format!("1 records imported\n1 records exported\n{LINES}"));
        assert_eq!(fs::read_to_string(&to).unwrap(), LINES);
        assert_eq!(fs::read_dir(folder.path()).unwrap().filter(|e| is_part(e.as_ref().unwrap())).count(), 0);
    }

    fn is_part(entry: &fs::DirEntry) -> bool {
        entry.path().extension().is_some_and(|extension| extension == "part")
    }

    #[tokio::test]
    async fn a_bad_file_fails_by_its_lines_and_partial_takes_the_rest() {
        let (folder, store) = store();
        let file = folder.path().join("in.jsonl");
        fs::write(&file, format!("nonsense\n{LINES}")).unwrap();
        let mut out = Vec::new();
        let error = ImportArgs { file: file.clone(), partial: false }.run(&store, &mut out).await.unwrap_err();
        assert!(error.message.starts_with("line 1: not JSON"), "{error}");
        assert!(error.message.ends_with("with --partial"), "{error}");
        ImportArgs { file, partial: true }.run(&store, &mut out).await.unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "1 records imported, bad lines left out: 1\n");
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_named() {
        let (folder, store) = store();
        let missing = folder.path().join("none/in.jsonl");
        let read = ImportArgs { file: missing.clone(), partial: false }.run(&store, &mut Vec::new()).await;
        let written = ExportArgs { file: missing }.run(&store, &mut Vec::new()).await;
        assert!(read.unwrap_err().message.contains("none/in.jsonl cannot be read"));
        assert!(written.unwrap_err().message.contains("none/in.jsonl cannot be written"));
    }
}
