//! `guildgate import` and `guildgate export`: JSON Lines, gzip or plain. A signal ends them without leaving files behind.

mod files; // plain files and gzip
mod progress; // bars and lines on stderr

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::error::CommandError;
use super::interrupt::Interrupt;
use super::open_store;
use super::output::{print_outcome, print_to_stderr};
use crate::config::Loaded;
use crate::files::follow_links;
use crate::store::temp_file::TempFile;
use crate::store::{ExportError, ImportError, Imported, Mode, UncommittedImport};
use crate::store::{IfMissing, SQLITE_FILES, SQLITE_MAGIC, Store, blocking};
use files::{ImportFile, write_buffered};
use progress::ProgressDisplay;

pub(super) use progress::byte_bar;

/// Lines of a file to import, for those who have none yet.
const EXAMPLES: &str = r#"Each line is a guild, a member, a warn or a review, such as:
  {"guild":"81384788765712384","name":"Night Watch"}
  {"guild":"81384788765712384","member":"190551803669118976","name":"Ada","points":1250}"#;

/// `guildgate import …`
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    /// The file of JSON Lines, gzip if its name ends in .gz, or - for stdin
    pub file: PathBuf,
    /// Imports the valid lines of a file that has invalid ones
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
    /// Prints the outcome to `out`, and the invalid lines to stderr.
    pub(super) async fn run(self, loaded: &Loaded, out: &mut dyn Write) -> Result<(), CommandError> {
        // Before the store is opened, so that none is made for a file that does not exist.
        if !is_standard(&self.file) {
            fs::metadata(&self.file).map_err(|e| cannot_read(&self.file, &e))?;
        }
        loaded.config.must_have_store().map_err(CommandError::new)?;
        let mut interrupt = Interrupt::listen("interrupted; nothing was imported")?;
        let store = interrupt.run(open_store(loaded, IfMissing::Make)).await?;
        let import = interrupt.run(self.import(&store)).await?;
        if import.imported.of_members > 0 {
            let refused = |why| CommandError::new(format!("{why}; nothing was imported"));
            loaded.config.must_store_members().map_err(refused)?;
        }
        self.commit(import, out).await
    }

    async fn import(&self, store: &Store) -> Result<UncommittedImport, CommandError> {
        let mode = if self.partial { Mode::Partial } else { Mode::AllOrNothing };
        let file = self.file.clone();
        let prepare = move || ImportFile::prepare(&file).map_err(|e| cannot_read(&file, &e));
        let file = blocking(prepare).await?;
        let mut display = ProgressDisplay::new(file.bytes_read());
        let import = store.import(move || file.open(), mode, move |p| display.show(p));
        import.await.map_err(|error| match error {
            ImportError::Read(e) => CommandError::new(format!("{}; nothing was imported", cannot_read(&self.file, &e))),
            other => other.into(),
        })
    }

    async fn commit(&self, import: UncommittedImport, out: &mut dyn Write) -> Result<(), CommandError> {
        let Imported { records, bad, .. } = import.commit().await?;
        if bad.total == 0 {
            return print_outcome(out, &format!("{records} records imported"));
        }
        print_to_stderr(&bad);
        print_outcome(out, &format!("{records} records imported, bad lines left out: {}", bad.total))
    }
}

impl ExportArgs {
    pub(super) async fn run(self, loaded: &Loaded) -> Result<(), CommandError> {
        let message = match is_standard(&self.file) || is_special(&self.file) {
            true => "interrupted; what was written is not whole".to_owned(),
            false => format!("interrupted; {} is as it was, and there is no new export", self.file.display()),
        };
        let mut interrupt = Interrupt::listen(message)?;
        let store = interrupt.run(open_store(loaded, IfMissing::Refuse)).await?;
        let exported = interrupt.run(self.export(&store)).await?;
        self.finish(exported, &mut io::stdout())
    }

    /// Writes the records. Returns how many, and the temporary file that is to replace the target, if there is one.
    async fn export(&self, store: &Arc<Store>) -> Result<(u64, Option<TempFile>), CommandError> {
        if is_standard(&self.file) {
            return Ok((self.write(store, io::stdout(), CommandError::from).await?, None));
        }
        let cannot_write = cannot_write(&self.file);
        let target = follow_links(&self.file).map_err(&cannot_write)?;
        if let Some(why) = store_file(&target) {
            return Err(CommandError::new(format!("{} {why}; name another file", self.file.display())));
        }
        // A pipe or a device cannot be replaced, only written to. Opening a pipe waits for its reader.
        if is_special(&self.file) {
            let (path, cannot_open) = (self.file.clone(), cannot_write.clone());
            let file = blocking(move || OpenOptions::new().write(true).open(path).map_err(cannot_open)).await?;
            return Ok((self.write(store, file, cannot_write).await?, None));
        }
        let part = TempFile::new(&target).map_err(&cannot_write)?;
        let file = part.file().try_clone().map_err(&cannot_write)?;
        Ok((self.write(store, file, cannot_write).await?, Some(part)))
    }

    /// Writes the records to `file` on another thread, since that may block.
    async fn write(
        &self,
        store: &Arc<Store>,
        file: impl Write + Send + 'static,
        cannot_write: impl Fn(io::Error) -> CommandError + Send + 'static,
    ) -> Result<u64, CommandError> {
        let (store, path) = (store.clone(), self.file.clone());
        blocking(move || {
            let mut display = ProgressDisplay::new(None);
            let mut show = |p| display.show(p);
            let write = |to: &mut dyn Write| {
                store.export(to, &mut show).map_err(|error| match error {
                    ExportError::Write(e) if e.kind() != io::ErrorKind::BrokenPipe => cannot_write(e),
                    other => other.into(),
                })
            };
            write_buffered(&path, file, write, &cannot_write)
        })
        .await
    }

    fn finish(&self, (records, part): (u64, Option<TempFile>), out: &mut dyn Write) -> Result<(), CommandError> {
        if let Some(part) = part {
            part.replace_target().map_err(cannot_write(&self.file))?;
        }
        if is_standard(&self.file) { Ok(()) } else { print_outcome(out, &format!("{records} records exported")) }
    }
}

fn cannot_read(file: &Path, error: &io::Error) -> CommandError {
    let name = if is_standard(file) { Path::new("stdin") } else { file };
    CommandError::new(format!("{} cannot be read: {error}", name.display()))
}

pub(super) fn cannot_write(file: &Path) -> impl Fn(io::Error) -> CommandError + Clone + Send + use<> {
    let file = file.to_owned();
    move |e| CommandError::new(format!("{} cannot be written: {e}", file.display()))
}

/// Whether stdin or stdout is meant.
fn is_standard(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// If the file belongs to a store, which an export must not replace, what it is.
fn store_file(path: &Path) -> Option<&'static str> {
    let mut magic = [0; SQLITE_MAGIC.len()];
    let is_sqlite = |mut file: File| file.read_exact(&mut magic).is_ok() && magic == *SQLITE_MAGIC;
    if !path.is_file() {
        return None;
    }
    if SQLITE_FILES.iter().any(|suffix| path.as_os_str().as_encoded_bytes().ends_with(suffix.as_bytes())) {
        return Some("has a name that SQLite keeps for itself");
    }
    File::open(path).is_ok_and(is_sqlite).then_some("is an SQLite database")
}

/// Whether it exists and is not a regular file: a pipe or a device.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "{\"guild\":\"81\",\"name\":\"Night Watch\"}\n";

    async fn store() -> (tempfile::TempDir, Arc<Store>) {
        let folder = tempfile::tempdir().unwrap();
        let at = crate::config::StoreAt::Sqlite(folder.path().join("store.db"));
        (folder, Store::open(&at, IfMissing::Make).await.unwrap())
    }

    async fn import(args: ImportArgs, store: &Arc<Store>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        args.commit(args.import(store).await?, out).await
    }

    async fn export(file: &Path, store: &Arc<Store>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let args = ExportArgs { file: file.to_owned() };
        args.finish(args.export(store).await?, out)
    }

    #[tokio::test]
    async fn an_import_and_an_export_say_how_many_and_the_file_is_replaced_whole() {
        let (folder, store) = store().await;
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
        let (folder, store) = store().await;
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
        let (folder, store) = store().await;
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
        let (folder, store) = store().await;
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
        let (folder, store) = store().await;
        let missing = folder.path().join("none/in.jsonl");
        let read = import(ImportArgs { file: missing.clone(), partial: false }, &store, &mut Vec::new()).await;
        let written = export(&missing, &store, &mut Vec::new()).await;
        assert!(read.unwrap_err().message.contains("none/in.jsonl cannot be read"));
        assert!(written.unwrap_err().message.contains("none/in.jsonl cannot be written"));
    }
}
