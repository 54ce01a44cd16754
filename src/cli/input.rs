//! What commands read: a file or stdin, plain or gzip.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
/// Bytes read or written at once: few calls for a file of hundreds of megabytes.
pub(super) const BUFFER: usize = 256 * 1024;

/// Whether stdin or stdout is meant.
pub(super) fn is_standard(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Opens a file, or stdin.
pub(super) fn open(file: &Path) -> io::Result<Box<dyn Read>> {
    if is_standard(file) { Ok(Box::new(io::stdin())) } else { Ok(Box::new(File::open(file)?)) }
}

/// Decompresses what begins as gzip does, all members of it. Anything else is read as it is.
pub(super) fn decompressed<'r>(from: impl Read + 'r) -> io::Result<Box<dyn BufRead + 'r>> {
    let mut from = BufReader::with_capacity(BUFFER, from);
    let is_gzip = from.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if is_gzip { Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(from))) } else { Box::new(from) })
}
