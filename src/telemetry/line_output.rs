//! Where a log of lines is written: a file, which may be opened again after it was moved, or a stream.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

/// Where lines are written.
#[expect(missing_debug_implementations, reason = "a stream cannot be shown")]
pub struct LineOutput {
    output: Box<dyn Write + Send>,
    /// Of a file, to open it again.
    path: Option<PathBuf>,
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
        Ok(LineOutput { output: Box::new(file), path: Some(path.to_owned()) })
    }

    pub fn stream(stream: impl Write + Send + 'static) -> Self {
        LineOutput { output: Box::new(stream), path: None }
    }

    /// The path of a file, for messages.
    pub(super) fn path(&self) -> Option<String> {
        self.path.as_ref().map(|path| path.display().to_string())
    }

    pub(super) fn reopen(&mut self, name: &str) {
        let Some(path) = &self.path else { return };
        match LineOutput::file(path) {
            Ok(file) => *self = file,
            Err(error) => tracing::error!(%error, "{name} cannot be reopened"),
        }
    }

    /// Writes lines, with a newline at the end of each.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.output.write_all(lines)?;
        self.output.flush() // so that a line is never delayed on standard output
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_named_pipe_that_nobody_reads_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let refused = LineOutput::file(&path).err().unwrap().to_string();
        assert!(refused.ends_with("a.log: it is a pipe that nobody reads"), "{refused}");
        let mut reader = OpenOptions::new().read(true).custom_flags(0x800).open(&path).unwrap(); // O_NONBLOCK
        LineOutput::file(&path).unwrap().write(b"new\n").unwrap();
        let mut text = String::new();
        let _ = reader.read_to_string(&mut text); // there may be no more yet
        assert_eq!(text, "new\n");
    }
}
