//! The files of `import` and `export`: gzip if the name ends in `.gz`, and else plain.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IntoInnerError, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;

/// Bytes read or written at once: few calls for a file of hundreds of megabytes.
const BUFFER: usize = 256 * 1024;

fn is_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gz"))
}

/// A file to import.
pub(super) struct Source {
    /// Its lines, unpacked.
    pub(super) lines: Box<dyn BufRead + Send>,
    /// How far it is read; `None` if its size is not known.
    pub(super) extent: Option<Extent>,
}

/// How many bytes of a file were read, and its size.
pub(super) struct Extent {
    pub(super) read: Arc<AtomicU64>,
    pub(super) size: u64,
}

impl Source {
    pub(super) fn stdin() -> Source {
        Source { lines: Box::new(BufReader::with_capacity(BUFFER, io::stdin())), extent: None }
    }

    pub(super) fn open(path: &Path) -> io::Result<Source> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        let read = Arc::new(AtomicU64::new(0));
        let file = Counted { file, read: read.clone() };
        let lines: Box<dyn BufRead + Send> = if is_gzip(path) {
            let packed = BufReader::with_capacity(BUFFER, file);
            Box::new(BufReader::with_capacity(BUFFER, Unpacked { from: MultiGzDecoder::new(packed), begun: false }))
        } else {
            Box::new(BufReader::with_capacity(BUFFER, file))
        };
        Ok(Source { lines, extent: meta.is_file().then_some(Extent { read, size: meta.len() }) })
    }
}

/// Counts what is read.
struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(into)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Unpacks gzip, all members of it. One that is not whole to the last byte is an error that says so.
struct Unpacked {
    from: MultiGzDecoder<BufReader<Counted>>,
    /// Some bytes of it were unpacked.
    begun: bool,
}

impl Read for Unpacked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.from.read(into) {
            Ok(read) => {
                self.begun |= read > 0;
                Ok(read)
            }
            // The file's own.
            Err(error) if error.raw_os_error().is_some() => Err(error),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(io::Error::other("it is cut off: its gzip data has no end"))
            }
            Err(_) if !self.begun => Err(io::Error::other("it is not gzip, as the ending .gz says it is")),
            Err(error) => {
                Err(io::Error::other(format!("it is damaged, or something else follows its gzip data: {error}")))
            }
        }
    }
}

/// A file to export to.
pub(super) enum Target<W: Write> {
    Plain(BufWriter<W>),
    Gzip(BufWriter<GzEncoder<W>>),
}

impl<W: Write> Target<W> {
    /// `to` is, or will be, the file at `path`.
    pub(super) fn new(path: &Path, to: W) -> Self {
        if is_gzip(path) {
            Target::Gzip(BufWriter::with_capacity(BUFFER, GzEncoder::new(to, Compression::default())))
        } else {
            Target::Plain(BufWriter::with_capacity(BUFFER, to))
        }
    }

    /// Writes what is buffered, and the end of the gzip data.
    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Target::Plain(to) => to.into_inner().map_err(IntoInnerError::into_error)?.flush(),
            Target::Gzip(to) => to.into_inner().map_err(IntoInnerError::into_error)?.finish()?.flush(),
        }
    }
}

impl<W: Write> Write for Target<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Target::Plain(to) => to.write(bytes),
            Target::Gzip(to) => to.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Target::Plain(to) => to.flush(),
            Target::Gzip(to) => to.flush(),
        }
    }
}
