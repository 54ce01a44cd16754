//! The files of `import` and `export`: gzip if the name ends in `.gz`, otherwise plain.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, IntoInnerError, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::cli::error::CommandError;
use crate::cli::gzip::GzipMembers;

/// Bytes read or written at once: few calls for a file of hundreds of megabytes.
const BUFFER: usize = 256 * 1024;

fn is_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

/// A file to import, which is read twice.
pub(super) struct ImportFile {
    file: File,
    is_gzip: bool,
    /// Bytes read of it, in its present reading.
    count: Arc<AtomicU64>,
    size: u64,
}

/// How many bytes of a file have been read, and its size.
pub(super) struct BytesRead {
    pub(super) count: Arc<AtomicU64>,
    pub(super) size: u64,
}

impl ImportFile {
    /// Opens a file (`-`: stdin). What can be read only once is copied to an unnamed file.
    pub(super) fn prepare(path: &Path) -> io::Result<Self> {
        let is_standard = path.as_os_str() == "-";
        let file = if is_standard { None } else { Some(File::open(path)?) };
        let file = match file {
            Some(file) if file.metadata()?.is_file() => file,
            source => {
                let mut copy = tempfile::tempfile().map_err(|e| cannot_copy(&e))?;
                let copied = match source {
                    Some(mut pipe) => io::copy(&mut pipe, &mut copy),
                    None => io::copy(&mut io::stdin().lock(), &mut copy),
                };
                copied.map_err(|e| match e.kind() {
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded => cannot_copy(&e),
                    _ => e,
                })?;
                copy
            }
        };
        let size = file.metadata()?.len();
        Ok(ImportFile { file, is_gzip: !is_standard && is_gzip(path), count: Arc::default(), size })
    }

    pub(super) fn bytes_read(&self) -> Option<BytesRead> {
        Some(BytesRead { count: self.count.clone(), size: self.size })
    }

    /// Its content, decompressed, from the beginning.
    pub(super) fn open(&self) -> io::Result<Box<dyn BufRead + Send>> {
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        self.count.store(0, Ordering::Relaxed);
        let counted = CountingReader { file, count: self.count.clone() };
        let mut lines: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(BUFFER, counted));
        if self.is_gzip {
            let decoder = GzipReader { decoder: GzipMembers::new(lines), has_begun: false };
            lines = Box::new(BufReader::with_capacity(BUFFER, decoder));
        }
        Ok(lines)
    }
}

fn cannot_copy(error: &io::Error) -> io::Error {
    let folder = std::env::temp_dir();
    io::Error::other(format!(
        "it is read twice, and its copy in {} cannot be written ({error}); make room there, or name another folder by TMPDIR",
        folder.display()
    ))
}

/// Counts the bytes read from a file.
struct CountingReader {
    file: File,
    count: Arc<AtomicU64>,
}

impl Read for CountingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Decompresses all members of a gzip file. Its errors say whether the file is truncated, damaged or not gzip.
struct GzipReader {
    decoder: GzipMembers<Box<dyn BufRead + Send>>,
    /// Whether some bytes have been decompressed.
    has_begun: bool,
}

impl Read for GzipReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).inspect(|read| self.has_begun |= *read > 0).map_err(|error| match error.kind() {
            // Reading the file failed, not decompressing it.
            _ if error.raw_os_error().is_some() => error,
            io::ErrorKind::UnexpectedEof => io::Error::other("it is cut off: its gzip data has no end"),
            _ if !self.has_begun => io::Error::other("it is not gzip, as the ending .gz says it is"),
            _ => io::Error::other(format!("it is damaged, or something else follows its gzip data: {error}")),
        })
    }
}

/// Has `write` write to `file`, buffered, and as gzip if `path`, where the file is or will be, says so. `cannot_write`
/// is for an error at the end, when the last bytes are flushed.
pub(super) fn write_buffered(
    path: &Path,
    file: impl Write,
    write: impl FnOnce(&mut dyn Write) -> Result<u64, CommandError>,
    cannot_write: impl FnOnce(io::Error) -> CommandError,
) -> Result<u64, CommandError> {
    let (records, flushed);
    if is_gzip(path) {
        let mut to = BufWriter::with_capacity(BUFFER, GzEncoder::new(file, Compression::default()));
        records = write(&mut to)?;
        flushed = to.into_inner().map_err(IntoInnerError::into_error).and_then(|gzip| gzip.finish()?.flush());
    } else {
        let mut to = BufWriter::with_capacity(BUFFER, file);
        records = write(&mut to)?;
        flushed = to.flush();
    }
    flushed.map(|()| records).map_err(cannot_write)
}
