//! `import` and `export`: JSON Lines, packed or plain, with a progress bar on a terminal and plain lines elsewhere.

mod files; // plain files and gzip
mod meter; // how far it is

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::error::CommandError;
use super::told::report;
use crate::store::AnyStore;
use crate::store::transfer::{ImportError, Imported, Mode};
use crate::store::under_way::{self, PART, UnderWay};
use files::{BUFFER, Source, Target};
use meter::Meter;

pub(super) use meter::byte_bar;

/// How an SQLite file begins.
const SQLITE: &[u8; 16] = b"SQLite format 3\0";

/// `guildgate import …`
#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// The file of JSON Lines, gzip if its name ends in .gz, or - for stdin
    pub file: PathBuf,
    /// Takes the good lines of a file that has bad ones
    #[arg(long)]
    pub partial: bool,
}

/// `guildgate export …`
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// The file to write, as gzip if its name ends in .gz, or - for stdout
    pub file: PathBuf,
}

impl ImportArgs {
    /// What is left if a signal ends it midway.
    pub(super) fn if_interrupted(&self) -> String {
        "interrupted; nothing was imported".to_owned()
    }

    /// Whether there is a file to import: a store is not made for one that is missing.
    pub(super) fn is_there(&self) -> Result<(), CommandError> {
        match fs::metadata(&self.file) {
            Err(e) if !is_standard(&self.file) => Err(unreadable(&self.file, &e)),
            _ => Ok(()),
        }
    }

    /// Does it; what became of it goes to `out`, and lines left out to stderr.
    pub async fn run(self, store: &AnyStore, out: &mut dyn Write) -> Result<(), CommandError> {
        let mode = if self.partial { Mode::Partial } else { Mode::AllOrNothing };
        let imported = if is_standard(&self.file) {
            let mut meter = Meter::new(None);
            store.import(BufReader::with_capacity(BUFFER, io::stdin().lock()), mode, &mut |p| meter.show(p)).await
        } else {
            let Source { lines, extent } = Source::open(&self.file).map_err(|e| unreadable(&self.file, &e))?;
            let mut meter = Meter::new(extent);
            store.import(lines, mode, &mut |p| meter.show(p)).await
        };
        let Imported { records, bad } = imported.map_err(|error| match error {
            ImportError::Read(e) => {
                CommandError::new(format!("{} cannot be read: {e}; nothing was imported", named(&self.file)))
            }
            other => other.into(),
        })?;
        if bad.total > 0 {
            let _ = writeln!(io::stderr(), "{bad}"); // what was imported is imported, whoever listens
        }
        let left_out = if bad.total > 0 { format!(", bad lines left out: {}", bad.total) } else { String::new() };
        report(out, &format!("{records} records imported{left_out}"))
    }
}

impl ExportArgs {
    /// What is left if a signal ends it midway.
    pub(super) fn if_interrupted(&self) -> String {
        if is_standard(&self.file) || is_no_file(&self.file) {
            return "interrupted; what was written is not whole".to_owned();
        }
        format!("interrupted; {} is as it was, and there is no new export", self.file.display())
    }

    /// Does it; with `-` the records go to `out`.
    pub async fn run(self, store: &AnyStore, out: &mut dyn Write) -> Result<(), CommandError> {
        let mut meter = Meter::new(None);
        let unwritable = |e| CommandError::new(format!("{} cannot be written: {e}", self.file.display()));
        if is_standard(&self.file) {
            let mut to = Target::new(&self.file, out);
            store.export(&mut to, &mut |p| meter.show(p)).await?;
            return Ok(to.finish()?);
        }
        let target = under_way::led_to(&self.file).map_err(unwritable)?;
        if let Some(why) = is_a_store(&target) {
            return Err(CommandError::new(format!("{} {why}; name another file", self.file.display())));
        }
        // A pipe or a device cannot be replaced, only written to.
        let records = if is_no_file(&self.file) {
            let file = OpenOptions::new().write(true).open(&self.file).map_err(unwritable)?;
            let mut to = Target::new(&self.file, file);
            let records = store.export(&mut to, &mut |p| meter.show(p)).await?;
            to.finish().map_err(unwritable)?;
            records
        } else {
            let part = UnderWay::make(&target, PART).map_err(unwritable)?;
            let mut to = Target::new(&self.file, part.file());
            let records = store.export(&mut to, &mut |p| meter.show(p)).await?;
            to.finish().map_err(unwritable)?;
            part.put_in_place().map_err(unwritable)?;
            records
        };
        drop(meter);
        report(out, &format!("{records} records exported"))
    }
}

fn unreadable(file: &Path, error: &io::Error) -> CommandError {
    CommandError::new(format!("{} cannot be read: {error}", file.display()))
}

/// Stdin or stdout.
fn is_standard(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn named(file: &Path) -> String {
    if is_standard(file) { "stdin".to_owned() } else { file.display().to_string() }
}

/// Why an export must not take this file's place: it would take a store with it.
fn is_a_store(path: &Path) -> Option<&'static str> {
    let mut begins = [0; SQLITE.len()];
    let is_sqlite = |mut file: File| file.read_exact(&mut begins).is_ok() && begins == *SQLITE;
    if !path.is_file() {
        return None;
    }
    if under_way::BESIDE.iter().any(|end| path.as_os_str().as_encoded_bytes().ends_with(end.as_bytes())) {
        return Some("has a name that SQLite keeps for itself");
    }
    File::open(path).is_ok_and(is_sqlite).then_some("is an SQLite database")
}

fn is_no_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| !meta.is_file())
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
    async fn an_export_does_not_take_a_stores_place() {
        let (folder, store) = store();
        for name in ["store.db", "store.db-wal"] {
            let file = folder.path().join(name);
            let before = fs::read(&file).unwrap();
            let refused = ExportArgs { file: file.clone() }.run(&store, &mut Vec::new()).await.unwrap_err();
            assert!(refused.message.ends_with("name another file"), "{refused}");
            assert_eq!(fs::read(&file).unwrap(), before, "{name}");
        }
    }

    #[tokio::test]
    async fn an_export_through_a_link_writes_where_it_leads_and_takes_no_stores_place() {
        let (folder, store) = store();
        let (link, to) = (folder.path().join("link.jsonl"), folder.path().join("there/out.jsonl"));
        fs::create_dir(folder.path().join("there")).unwrap();
        std::os::unix::fs::symlink("there/out.jsonl", &link).unwrap();
        for before in [None, Some("as it was")] {
            before.iter().for_each(|before| fs::write(&to, before).unwrap());
            ExportArgs { file: link.clone() }.run(&store, &mut Vec::new()).await.unwrap();
            assert_eq!((fs::read_to_string(&to).unwrap(), link.is_symlink()), (String::new(), true));
        }
        for name in ["store.db", "store.db-wal"] {
            fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink(name, &link).unwrap();
            let refused = ExportArgs { file: link.clone() }.run(&store, &mut Vec::new()).await.unwrap_err();
            assert!(refused.message.contains("link.jsonl ") && refused.message.ends_with("name another file"));
        }
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
