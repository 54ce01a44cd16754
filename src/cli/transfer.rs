//! `guildgate import` and `guildgate export`: JSON Lines, gzip or plain. SIGINT and SIGTERM end them without leaving files
//! behind.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufWriter, IntoInnerError, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use indicatif::ProgressBar;

use super::error::CommandError;
use super::input::{BUFFER, decompressed, is_standard, open};
use super::output::print_to_stderr;
use super::progress::{byte_bar, record_bar};
use super::{open_store, unless_interrupted};
use crate::config::Loaded;
use crate::store::temp_file::TempFile;
use crate::store::{IfMissing, SQLITE_MAGIC, Store, blocking};
use crate::store::{Imported, Mode, Progress, TransferError, UncommittedImport};

/// Lines of a file to import, for those who have none yet.
const EXAMPLES: &str = r#"Each line is a guild, a member, a warn or a review, such as:
  {"guild":"81384788765712384","name":"Night Watch"}
  {"guild":"81384788765712384","member":"190551803669118976","name":"Ada","points":1250}"#;

/// `guildgate import …`
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    /// The file of JSON Lines, plain or gzip, or - for stdin
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
        let read = async { self.read(&*open_store(loaded, IfMissing::Make).await?).await };
        let import = unless_interrupted("interrupted; nothing was imported", read).await?;
        if import.imported.of_members > 0 {
            let refused = |why| CommandError::new(format!("{why}; nothing was imported"));
            loaded.config.must_store_members().map_err(refused)?;
        }
        let Imported { records, bad, .. } = import.commit().await?;
        if bad.total == 0 {
            return Ok(writeln!(out, "{records} records imported")?);
        }
        print_to_stderr(&bad);
        Ok(writeln!(out, "{records} records imported, bad lines left out: {}", bad.total)?)
    }

    async fn read(&self, store: &Store) -> Result<UncommittedImport, CommandError> {
        let mode = if self.partial { Mode::Partial } else { Mode::AllOrNothing };
        let path = self.file.clone();
        let file = blocking(move || ImportFile::prepare(&path).map_err(|e| cannot_read(&path, &e))).await?;
        let bar = file.bar.clone();
        let show = move |progress: Progress| {
            let phase = if progress.of.is_none() { "reading " } else { "applying " };
            if bar.prefix() != phase {
                bar.set_prefix(phase);
                bar.force_draw();
            }
        };
        store.import(move || file.open(), mode, show).await.map_err(|error| match error {
            TransferError::File(e) => CommandError::new(format!("{}; nothing was imported", cannot_read(&self.file, &e))),
            TransferError::Bad(bad) => CommandError::new(format!(
                "{bad}\nnothing was imported; fix these lines (`guildgate import --help` shows two), or import only the valid \
                 ones with --partial"
            )),
            other => CommandError::new(other.to_string()),
        })
    }
}

/// A file to import, which is read twice.
struct ImportFile {
    file: File,
    /// How much of it has been read.
    bar: ProgressBar,
}

impl ImportFile {
    /// Opens a file (`-`: stdin). What can be read only once is copied to an unnamed file.
    fn prepare(path: &Path) -> io::Result<Self> {
        if path.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let file = if !is_standard(path) && path.is_file() { File::open(path)? } else { copied(open(path)?)? };
        let bar = byte_bar(file.metadata()?.len());
        Ok(ImportFile { file, bar })
    }

    /// Its content, decompressed, from the beginning.
    fn open(&self) -> io::Result<Box<dyn BufRead>> {
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        self.bar.reset();
        decompressed(self.bar.wrap_read(file))
    }
}

fn copied(mut from: impl Read) -> io::Result<File> {
    let copy = tempfile::tempfile().and_then(|mut copy| io::copy(&mut from, &mut copy).map(|_| copy));
    copy.map_err(|error| {
        let folder = std::env::temp_dir();
        io::Error::other(format!(
            "it is read twice, and could not be copied to {} ({error}); make room there, or name another folder by TMPDIR",
            folder.display()
        ))
    })
}

impl ExportArgs {
    pub(super) async fn run(self, loaded: &Loaded, out: &mut dyn Write) -> Result<(), CommandError> {
        let message = match self.has_place() {
            true => format!("interrupted; {} is as it was, and there is no new export", self.file.display()),
            false => "interrupted; what was written is not whole".to_owned(),
        };
        let write = async { self.write(open_store(loaded, IfMissing::Refuse).await?).await };
        let (records, part) = unless_interrupted(&message, write).await?;
        if let Some(part) = part {
            part.replace_target().map_err(cannot_write(&self.file))?;
        }
        if is_standard(&self.file) { Ok(()) } else { Ok(writeln!(out, "{records} records exported")?) }
    }

    /// Whether it is a file that can be replaced whole. A pipe or a device can only be written to.
    fn has_place(&self) -> bool {
        !is_standard(&self.file) && fs::metadata(&self.file).map_or(true, |metadata| metadata.is_file())
    }

    /// Writes the records. Returns how many, and the temporary file that is to replace the target, if there is one.
    async fn write(&self, store: Arc<Store>) -> Result<(u64, Option<TempFile>), CommandError> {
        let cannot_write = cannot_write(&self.file);
        let mut part = None;
        if self.has_place() {
            if is_store(&self.file) {
                let why = format!("{} is an SQLite database; name another file", self.file.display());
                return Err(CommandError::new(why));
            }
            part = Some(TempFile::new(&self.file).map_err(&cannot_write)?);
        }
        let file = part.as_ref().map(|part| part.file.try_clone()).transpose().map_err(&cannot_write)?;
        let path = self.file.clone();
        // On another thread: opening a pipe waits for its reader, and so does writing to one.
        let records = blocking(move || {
            let file: Box<dyn Write> = match file {
                Some(file) => Box::new(file),
                None if is_standard(&path) => Box::new(io::stdout()),
                None => Box::new(OpenOptions::new().write(true).open(&path).map_err(&cannot_write)?),
            };
            let gzip = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
            write(&store, file, gzip).map_err(|error| match error {
                TransferError::File(error) => cannot_write(error),
                other => CommandError::new(other.to_string()),
            })
        });
        Ok((records.await?, part))
    }
}

fn write(store: &Store, to: impl Write, gzip: bool) -> Result<u64, TransferError> {
    let mut bar = None;
    let mut show = |Progress { records, of, .. }: Progress| {
        bar.get_or_insert_with(|| record_bar(of.unwrap_or_default()).with_prefix("writing ")).set_position(records);
    };
    if !gzip {
        return store.export(&mut BufWriter::with_capacity(BUFFER, to), &mut show); // which flushes it
    }
    let mut to = BufWriter::with_capacity(BUFFER, GzEncoder::new(to, Compression::default()));
    let records = store.export(&mut to, &mut show)?;
    to.into_inner().map_err(IntoInnerError::into_error)?.finish()?.flush()?;
    Ok(records)
}

pub(super) fn cannot_read(file: &Path, error: &io::Error) -> CommandError {
    let name = if is_standard(file) { Path::new("stdin") } else { file };
    CommandError::new(format!("{} cannot be read: {error}", name.display()))
}

/// A pipe that its reader has closed is told as such, and is no failure.
pub(super) fn cannot_write(file: &Path) -> impl Fn(io::Error) -> CommandError + Clone + Send + use<> {
    let file = file.to_owned();
    move |error| match error.kind() {
        _ if is_standard(&file) => error.into(),
        io::ErrorKind::BrokenPipe => error.into(),
        _ => CommandError::new(format!("{} cannot be written: {error}", file.display())),
    }
}

/// Whether the file is a store, which an export must not replace.
fn is_store(path: &Path) -> bool {
    let mut magic = [0; SQLITE_MAGIC.len()];
    File::open(path).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok() && magic == *SQLITE_MAGIC)
}
