//! `import` and `export`: JSON Lines, gzip or plain. Signals end them without a trace (`Interrupt`).

mod files; // plain files and gzip
mod meter; // progress

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use tokio::runtime::Handle;

use super::error::CommandError;
use super::interrupt::Interrupt;
use super::open_store;
use super::told::report;
use crate::config::Loaded;
use crate::files::follow_links;
use crate::store::temp_file::{PART, TempFile};
use crate::store::transfer::{ImportError, Imported, Mode, UncommittedImport};
use crate::store::{AnyStore, IfMissing, SQLITE_FILES, SQLITE_MAGIC, blocking};
use files::{Source, Target};
use meter::Meter;

pub(super) use meter::byte_bar;

/// `guildgate import …`
#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// The file of JSON Lines, gzip if its name ends in .gz, or - for stdin
    pub file: PathBuf,
    /// Imports the good lines of a file that has bad ones
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
    /// Whether there is a file to import: a store is not made for one that is missing.
    pub(super) fn is_there(&self) -> Result<(), CommandError> {
        match fs::metadata(&self.file) {
            Err(e) if !is_standard(&self.file) => Err(unreadable(&self.file, &e)),
            _ => Ok(()),
        }
    }

    /// Does it; the outcome goes to `out`, and lines left out to stderr.
    pub async fn run(self, loaded: &Loaded, out: &mut dyn Write) -> Result<(), CommandError> {
        let mut interrupt = Interrupt::listen("interrupted; nothing was imported")?;
        let store = interrupt.unless(open_store(loaded, IfMissing::Make)).await?;
        let import = interrupt.unless(self.import(&store)).await?;
        self.commit(import, out).await
    }

    async fn import<'s>(&self, store: &'s AnyStore) -> Result<UncommittedImport<'s>, CommandError> {
        let mode = if self.partial { Mode::Partial } else { Mode::AllOrNothing };
        let file = self.file.clone();
        // Opening a pipe waits for its writer.
        let open = move || match is_standard(&file) {
            true => Ok(Source::stdin()),
            false => Source::open(&file).map_err(|e| unreadable(&file, &e)),
        };
        let Source { lines, extent } = blocking(open).await?;
        let mut meter = Meter::new(extent);
        store.import(lines, mode, move |p| meter.show(p)).await.map_err(|error| match error {
            ImportError::Read(e) => {
                CommandError::new(format!("{} cannot be read: {e}; nothing was imported", named(&self.file)))
            }
            other => other.into(),
        })
    }

    async fn commit(&self, import: UncommittedImport<'_>, out: &mut dyn Write) -> Result<(), CommandError> {
        let Imported { records, bad } = import.commit().await?;
        if bad.total > 0 {
            let _ = writeln!(io::stderr(), "{bad}"); // it is imported even if nobody reads this
        }
        let left_out = if bad.total > 0 { format!(", bad lines left out: {}", bad.total) } else { String::new() };
        report(out, &format!("{records} records imported{left_out}"))
    }
}

impl ExportArgs {
    /// Does it.
    pub async fn run(self, loaded: &Loaded) -> Result<(), CommandError> {
        let line = match is_standard(&self.file) || is_no_file(&self.file) {
            true => "interrupted; what was written is not whole".to_owned(),
            false => format!("interrupted; {} is as it was, and there is no new export", self.file.display()),
        };
        let mut interrupt = Interrupt::listen(line)?;
        let store = interrupt.unless(open_store(loaded, IfMissing::Refuse)).await?;
        let exported = interrupt.unless(self.export(&store)).await?;
        self.finish(exported, &mut io::stdout())
    }

    /// Writes the records; answers how many, and the file in which they are if it is to replace another.
    async fn export(&self, store: &AnyStore) -> Result<(u64, Option<TempFile>), CommandError> {
        if is_standard(&self.file) {
            return Ok((self.write(store, io::stdout(), |e| e.into()).await?, None));
        }
        let file = self.file.clone();
        let unwritable = move |e| CommandError::new(format!("{} cannot be written: {e}", file.display()));
        let target = follow_links(&self.file).map_err(&unwritable)?;
        if let Some(why) = is_a_store(&target) {
            return Err(CommandError::new(format!("{} {why}; name another file", self.file.display())));
        }
        // A pipe or a device cannot be replaced, only written to. Opening a pipe waits for its reader.
        if is_no_file(&self.file) {
            let (path, failed) = (self.file.clone(), unwritable.clone());
            let to = blocking(move || OpenOptions::new().write(true).open(path).map_err(failed)).await?;
            return Ok((self.write(store, to, unwritable).await?, None));
        }
        let part = TempFile::new(&target, PART).map_err(&unwritable)?;
        let to = part.file().try_clone().map_err(&unwritable)?;
        Ok((self.write(store, to, unwritable).await?, Some(part)))
    }

    /// Writes the records to `to`, on another thread, since that may block.
    async fn write(
        &self,
        store: &AnyStore,
        to: impl Write + Send + 'static,
        unwritable: impl FnOnce(io::Error) -> CommandError + Send + 'static,
    ) -> Result<u64, CommandError> {
        let (store, runtime, mut to) = (store.clone(), Handle::current(), Target::new(&self.file, to));
        blocking(move || {
            let mut meter = Meter::new(None);
            let records = runtime.block_on(store.export(&mut to, &mut |p| meter.show(p)))?;
            to.finish().map_err(unwritable)?;
            Ok(records)
        })
        .await
    }

    fn finish(&self, (records, part): (u64, Option<TempFile>), out: &mut dyn Write) -> Result<(), CommandError> {
        if let Some(part) = part {
            let unwritable = |e| CommandError::new(format!("{} cannot be written: {e}", self.file.display()));
            part.replace_target().map_err(unwritable)?;
        }
        if is_standard(&self.file) { Ok(()) } else { report(out, &format!("{records} records exported")) }
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

/// Why an export must not replace this file: it belongs to a store.
fn is_a_store(path: &Path) -> Option<&'static str> {
    let mut begins = [0; SQLITE_MAGIC.len()];
    let is_sqlite = |mut file: File| file.read_exact(&mut begins).is_ok() && begins == *SQLITE_MAGIC;
    if !path.is_file() {
        return None;
    }
    if SQLITE_FILES.iter().any(|end| path.as_os_str().as_encoded_bytes().ends_with(end.as_bytes())) {
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

    async fn import(args: ImportArgs, store: &AnyStore, out: &mut Vec<u8>) -> Result<(), CommandError> {
        args.commit(args.import(store).await?, out).await
    }

    async fn export(file: &Path, store: &AnyStore, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let args = ExportArgs { file: file.to_owned() };
        args.finish(args.export(store).await?, out)
    }

    #[tokio::test]
    async fn an_import_and_an_export_say_how_many_and_the_file_is_replaced_whole() {
        let (folder, store) = store();
        let (from, to) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
        fs::write(&from, LINES).unwrap();
        fs::write(&to, "older and longer than what is exported now, so that a rest of it would be seen").unwrap();
        let mut out = Vec::new();
        import(ImportArgs { file: from, partial: false }, &store, &mut out).await.unwrap();
        export(&to, &store, &mut out).await.unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "1 records imported\n1 records exported\n");
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
            let refused = export(&file, &store, &mut Vec::new()).await.unwrap_err();
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
            export(&link, &store, &mut Vec::new()).await.unwrap();
            assert_eq!((fs::read_to_string(&to).unwrap(), link.is_symlink()), (String::new(), true));
        }
        for name in ["store.db", "store.db-wal"] {
            fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink(name, &link).unwrap();
            let refused = export(&link, &store, &mut Vec::new()).await.unwrap_err();
            assert!(refused.message.contains("link.jsonl ") && refused.message.ends_with("name another file"));
        }
    }

    #[tokio::test]
    async fn a_bad_file_fails_by_its_lines_and_partial_takes_the_rest() {
        let (folder, store) = store();
        let file = folder.path().join("in.jsonl");
        fs::write(&file, format!("nonsense\n{LINES}")).unwrap();
        let mut out = Vec::new();
        let error = import(ImportArgs { file: file.clone(), partial: false }, &store, &mut out).await.unwrap_err();
        assert!(error.message.starts_with("line 1: not JSON"), "{error}");
        assert!(error.message.ends_with("with --partial"), "{error}");
        import(ImportArgs { file, partial: true }, &store, &mut out).await.unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "1 records imported, bad lines left out: 1\n");
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_named() {
        let (folder, store) = store();
        let missing = folder.path().join("none/in.jsonl");
        let read = import(ImportArgs { file: missing.clone(), partial: false }, &store, &mut Vec::new()).await;
        let written = export(&missing, &store, &mut Vec::new()).await;
        assert!(read.unwrap_err().message.contains("none/in.jsonl cannot be read"));
        assert!(written.unwrap_err().message.contains("none/in.jsonl cannot be written"));
    }
}
