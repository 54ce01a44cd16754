//! Splits a stream into lines of bounded length. A longer line is skipped, and never kept in memory.

use std::io::{self, BufRead};

/// The longest line that is read. The longest record that an answer can carry (1 MiB in all) is shorter.
pub(super) const MAX_LINE: usize = 1 << 20;

/// Reads lines, and counts them and their bytes.
#[derive(Debug)]
pub(super) struct Lines<R> {
    source: R,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
}

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Text(&'a [u8]),
    TooLong,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn of(source: R) -> Self {
        Lines { source, line: Vec::new(), number: 0, bytes: 0 }
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next line's number, from 1, and the line without its end; `None` after the last.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Line<'_>)>> {
        self.line.clear();
        let (mut began, mut too_long) = (false, false);
        loop {
            let chunk = match self.source.fill_buf() {
                Ok(chunk) => chunk,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if chunk.is_empty() && !began {
                return Ok(None);
            }
            began = true;
            let end = memchr::memchr(b'\n', chunk);
            let piece = &chunk[..end.unwrap_or(chunk.len())];
            too_long |= self.line.len() + piece.len() > MAX_LINE;
            if !too_long {
                self.line.extend_from_slice(piece);
            }
            let (used, last) = (end.map_or(piece.len(), |at| at + 1), end.is_some() || chunk.is_empty());
            self.source.consume(used);
            self.bytes += used as u64;
            if last {
                break;
            }
        }
        self.number += 1;
        Ok(Some((self.number, if too_long { Line::TooLong } else { Line::Text(&self.line) })))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::*;

    #[test]
    fn lines_are_numbered_from_one_with_or_without_an_end() {
        let mut lines = Lines::of(BufReader::with_capacity(2, &b"one\n\nthree"[..]));
        assert_eq!(lines.next().unwrap(), Some((1, Line::Text(b"one"))));
        assert_eq!(lines.next().unwrap(), Some((2, Line::Text(b""))));
        assert_eq!(lines.next().unwrap(), Some((3, Line::Text(b"three"))));
        assert_eq!(lines.next().unwrap(), None);
        assert_eq!(lines.bytes(), 10);
    }

    #[test]
    fn a_line_of_ten_megabytes_is_skipped_without_being_held() {
        let long = io::repeat(b'x').take(10 << 20);
        let mut lines = Lines::of(BufReader::new(long.chain(&b"\nnext\n"[..])));
        assert_eq!(lines.next().unwrap(), Some((1, Line::TooLong)));
        assert!(lines.line.capacity() <= 2 * MAX_LINE);
        assert_eq!(lines.next().unwrap(), Some((2, Line::Text(b"next"))));
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn a_line_of_exactly_the_longest_length_is_accepted() {
        let text = [vec![b'x'; MAX_LINE], b"\n".to_vec(), vec![b'y'; MAX_LINE + 1]].concat();
        let mut lines = Lines::of(&text[..]);
        assert!(matches!(lines.next().unwrap(), Some((1, Line::Text(line))) if line.len() == MAX_LINE));
        assert_eq!(lines.next().unwrap(), Some((2, Line::TooLong)));
    }
}
