//! A log of one line for each record, to a file, stdout or stderr: the access log and the audit log. A request pushes
//! its record into the ring of a [`BackgroundWriter`], whose thread writes the lines. A line that was written in part, on a
//! full disk, is ended before the next one.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use super::background_writer::BackgroundWriter;

/// The most bytes in one write to what is no regular file: so many the kernel takes as one, so that lines of two processes
/// with the same pipe do not mix (`PIPE_BUF`). A longer line may.
const MAX_PIECE: usize = 4096;

/// Pause before a stream that is full, and that somebody made non-blocking, is tried again.
const FULL_FOR: Duration = Duration::from_millis(10);

/// Where lines are written.
#[expect(missing_debug_implementations, reason = "a stream cannot be shown")]
pub struct LineOutput {
    output: Box<dyn Write + Send>,
    /// Of a file, to open it again.
    path: Option<PathBuf>,
    /// The most bytes in one write.
    max_piece: usize,
    /// The last line has no end.
    is_in_line: bool,
}

impl LineOutput {
    /// Appends to a file. A named pipe that nobody reads is an error.
    pub fn file(path: &Path) -> io::Result<Self> {
        // The log says who called and when, so other users must not read it.
        let no_wait = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().create(true).append(true).mode(0o640).custom_flags(no_wait).open(path);
        let file = file.map_err(|error| {
            let nobody_reads = error.raw_os_error() == Some(Errno::NXIO.raw_os_error());
            let why = if nobody_reads { "it is a pipe that nobody reads".to_owned() } else { error.to_string() };
            io::Error::new(error.kind(), format!("{}: {why}", path.display()))
        })?;
        fcntl_setfl(&file, OFlags::APPEND)?;
        let max_piece = if file.metadata()?.is_file() { usize::MAX } else { MAX_PIECE };
        let is_in_line = ends_in_line(path);
        Ok(LineOutput { output: Box::new(file), path: Some(path.to_owned()), max_piece, is_in_line })
    }

    pub fn stream(stream: impl Write + Send + 'static) -> Self {
        LineOutput { output: Box::new(stream), path: None, max_piece: MAX_PIECE, is_in_line: false }
    }

    fn reopen(&mut self, name: &str) {
        let Some(path) = &self.path else { return };
        match LineOutput::file(path) {
            Ok(file) => *self = file,
            Err(error) => tracing::error!(%error, "{name} cannot be reopened"),
        }
    }

    /// Writes lines, with a newline at the end of each.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.is_in_line {
            self.output.write_all(b"\n")?;
            self.is_in_line = false;
        }
        let mut rest = lines;
        while !rest.is_empty() {
            match self.output.write(whole_lines(rest, self.max_piece)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.is_in_line = rest[count - 1] != b'\n';
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(FULL_FOR),
                Err(error) => return Err(error),
            }
        }
        self.output.flush() // so that a line is never delayed on standard output
    }
}

impl<T: Send + 'static> BackgroundWriter<T> {
    /// Starts a thread that writes what `write_line` makes of each record, the line's end included. `name` is the
    /// log's, for messages.
    pub fn of_lines(
        name: &'static str,
        thread: &str,
        capacity: usize,
        mut to: LineOutput,
        mut write_line: impl FnMut(&T, &mut String) + Send + 'static,
    ) -> io::Result<Self> {
        let (mut lines, mut is_failing) = (String::new(), false);
        BackgroundWriter::start(name, thread, capacity, move |batch| {
            if batch.reopen {
                to.reopen(name);
            }
            batch.records().for_each(|record| write_line(&record, &mut lines));
            if lines.is_empty() {
                return None;
            }
            let written = to.write(lines.as_bytes());
            if let Err(error) = &written
                && !is_failing
            {
                let path = to.path.as_deref().map(|path| tracing::field::display(path.display()));
                tracing::error!(%error, path, "{name} cannot be written; its lines are lost");
            }
            is_failing = written.is_err();
            lines.clear();
            None
        })
    }
}

/// The first lines that together have at most so many bytes; the first one in any case.
fn whole_lines(lines: &[u8], most: usize) -> &[u8] {
    let fits = lines[..lines.len().min(most)].iter().rposition(|byte| *byte == b'\n');
    let end = fits.or_else(|| lines.iter().position(|byte| *byte == b'\n'));
    &lines[..end.map_or(lines.len(), |end| end + 1)]
}

/// Whether the last line has no end. A file that cannot be read is taken to be whole.
fn ends_in_line(path: &Path) -> bool {
    let last = || {
        let metadata = path.metadata().ok()?;
        (metadata.is_file() && metadata.len() > 0).then_some(())?; // opening a pipe would wait for its writer
        let mut file = File::open(path).ok()?;
        file.seek(SeekFrom::End(-1)).ok()?;
        let mut last = [0];
        file.read_exact(&mut last).ok()?;
        Some(last)
    };
    last().is_some_and(|last| last != *b"\n")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// What is on a disk with room for so many bytes.
    #[derive(Clone)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock();
            let count = bytes.len().min(disk.1 - disk.0.len());
            disk.0.extend(&bytes[..count]);
            if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_a_full_disk_cut_off_is_ended_before_the_next_one() {
        let disk = Disk(Arc::new(Mutex::new((Vec::new(), 10))));
        let mut log = LineOutput::stream(disk.clone());
        log.write(b"first\n").unwrap();
        assert!(log.write(b"second\n").is_err());
        assert!(log.write(b"lost\n").is_err());
        disk.0.lock().1 = 100;
        log.write(b"third\nfourth\n").unwrap();
        assert_eq!(String::from_utf8_lossy(&disk.0.lock().0), "first\nseco\nthird\nfourth\n");
    }

    #[test]
    fn a_stream_gets_whole_lines_in_pieces_that_the_kernel_does_not_mix_with_those_of_another_process() {
        #[derive(Clone, Default)]
        struct Pieces(Arc<Mutex<Vec<Vec<u8>>>>);

        impl Write for Pieces {
            /// Takes nothing every second time, as a full stream that does not block.
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let mut pieces = self.0.lock();
                match pieces.pop_if(|last| last.is_empty()) {
                    Some(_) => pieces.push(bytes.to_vec()),
                    None => {
                        pieces.push(Vec::new());
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                }
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let pieces = Pieces::default();
        let line = |length: usize| format!("{}\n", "x".repeat(length - 1));
        let lines = [line(4000), line(96), line(1), line(5000), line(7)];
        LineOutput::stream(pieces.clone()).write(lines.concat().as_bytes()).unwrap();
        let lengths: Vec<usize> = pieces.0.lock().iter().map(Vec::len).collect();
        assert_eq!(lengths, [4096, 1, 5000, 7]);
    }

    #[test]
    fn a_named_pipe_that_nobody_reads_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let refused = LineOutput::file(&path).err().unwrap().to_string();
        assert!(refused.ends_with("a.log: it is a pipe that nobody reads"), "{refused}");
        let mut reader = OpenOptions::new().read(true).custom_flags(0x800).open(&path).unwrap(); // O_NONBLOCK
        let mut log = LineOutput::file(&path).unwrap();
        log.write(b"new\n").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap_err(); // there is no more yet
        assert_eq!((text.as_str(), log.max_piece), ("new\n", MAX_PIECE));
    }

    #[test]
    fn a_line_that_was_cut_off_before_the_start_is_ended_and_a_whole_one_is_left() {
        let folder = tempfile::tempdir().unwrap();
        for (before, after) in [("", "new\n"), ("old\n", "old\nnew\n"), ("old\nha", "old\nha\nnew\n")] {
            let path = folder.path().join("a.log");
            fs::write(&path, before).unwrap();
            LineOutput::file(&path).unwrap().write(b"new\n").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), after);
        }
    }
}
