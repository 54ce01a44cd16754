//! A log of one line for each record, to a file, stdout or stderr: the access log and the audit log. A request pushes
//! its record into the ring of a [`BackgroundWriter`], whose thread writes the lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::background_writer::BackgroundWriter;

/// Where lines are written.
#[expect(missing_debug_implementations, reason = "a stream cannot be shown")]
pub struct LineOutput {
    output: Box<dyn Write + Send>,
    /// Of a file, to open it again.
    path: Option<PathBuf>,
}

impl LineOutput {
    /// Appends to a file.
    pub fn file(path: &Path) -> io::Result<Self> {
        Ok(LineOutput { output: Box::new(append(path)?), path: Some(path.to_owned()) })
    }

    pub fn stream(stream: impl Write + Send + 'static) -> Self {
        LineOutput { output: Box::new(stream), path: None }
    }

    fn reopen(&mut self, name: &str) {
        let Some(path) = &self.path else { return };
        match append(path) {
            Ok(file) => self.output = Box::new(file),
            Err(error) => tracing::error!(%error, path = %path.display(), "{name} cannot be reopened"),
        }
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
                return;
            }
            // Standard output is flushed, so that a line is never delayed.
            let written = to.output.write_all(lines.as_bytes()).and_then(|()| to.output.flush());
            if let Err(error) = &written
                && !is_failing
            {
                let path = to.path.as_deref().map(|path| tracing::field::display(path.display()));
                tracing::error!(%error, path, "{name} cannot be written; its lines are lost");
            }
            is_failing = written.is_err();
            lines.clear();
        })
    }
}

fn append(path: &Path) -> io::Result<File> {
    // The log says who called and when, so other users must not read it.
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}
