//! Splits a stream into lines of bounded length. A longer line is skipped, and never kept in memory.

use std::io::{self, BufRead, Read};

/// The longest line that is read. The longest record that an answer can carry (1 MiB in all) is shorter.
pub(super) const MAX_LINE: usize = 1 << 20;

/// Reads lines, and counts them.
#[derive(Debug)]
pub(super) struct Lines<R> {
    source: R,
    line: Vec<u8>,
    number: u64,
}

/// A line's number, from 1, and the line without its end; `None`: it is too long.
pub(super) type Line<'a> = (u64, Option<&'a [u8]>);

impl<R: BufRead> Lines<R> {
    pub(super) fn of(source: R) -> Self {
        Lines { source, line: Vec::new(), number: 0 }
    }

    /// The next line; `None` after the last.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let longest = MAX_LINE as u64 + 1; // with its end
        let read = self.source.by_ref().take(longest).read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.line.pop_if(|last| *last == b'\n').is_none() && read > MAX_LINE {
            self.source.skip_until(b'\n')?;
            return Ok(Some((self.number, None)));
        }
        Ok(Some((self.number, Some(&self.line))))
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn lines_are_numbered_from_one_with_or_without_an_end() {
        let mut lines = Lines::of(BufReader::with_capacity(2, &b"one\n\nthree"[..]));
        assert_eq!(lines.next().unwrap(), Some((1, Some(&b"one"[..]))));
        assert_eq!(lines.next().unwrap(), Some((2, Some(&b""[..]))));
        assert_eq!(lines.next().unwrap(), Some((3, Some(&b"three"[..]))));
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn a_line_of_ten_megabytes_is_skipped_without_being_held() {
        let long = io::repeat(b'x').take(10 << 20);
        let mut lines = Lines::of(BufReader::new(long.chain(&b"\nnext\n"[..])));
        assert_eq!(lines.next().unwrap(), Some((1, None)));
        assert!(lines.line.capacity() <= 2 * MAX_LINE);
        assert_eq!(lines.next().unwrap(), Some((2, Some(&b"next"[..]))));
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn a_line_of_exactly_the_longest_length_is_accepted() {
        let text = [vec![b'x'; MAX_LINE], b"\n".to_vec(), vec![b'y'; MAX_LINE + 1]].concat();
        let mut lines = Lines::of(&text[..]);
        assert!(matches!(lines.next().unwrap(), Some((1, Some(line))) if line.len() == MAX_LINE));
        assert_eq!(lines.next().unwrap(), Some((2, None)));
    }
}
