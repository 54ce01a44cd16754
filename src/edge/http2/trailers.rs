//! Counts the fields of trailers. The `h2` crate silently drops pseudo-fields in trailers, although they make a request
//! malformed (RFC 9113, 8.1). It returns every other field, so trailers with more fields than it returned had
//! pseudo-fields. It only reads bytes, which `frames` passes to it.

use std::collections::VecDeque;

use super::frames::MAX_FRAMES;

/// Counts that are kept until they are taken. A request that reads its body takes its count at once; those of streams that
/// were refused are dropped, the oldest first. As many frames may come before any is answered.
const MAX_COUNTS: usize = MAX_FRAMES as usize;

const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// Bytes of a HEADERS frame's priority (RFC 9113, 6.2).
const PRIORITY_LENGTH: usize = 5;

/// The trailers of a connection's streams.
#[derive(Debug, Default)]
pub(super) struct Trailers {
    /// The highest stream that a HEADERS frame was for. Another one for it, or for a lower one, has trailers.
    last_stream: u32,
    open: Option<HeaderBlock>,
    /// Streams, and how many fields their trailers had.
    counts: VecDeque<(u32, usize)>,
}

/// A block of trailers that has not ended.
#[derive(Debug)]
struct HeaderBlock {
    stream: u32,
    fields: FieldCount,
    /// Of the current frame: whether its first byte is the length of its padding, the bytes after that and before the
    /// block's part, and the bytes of that part.
    padded: bool,
    skip: usize,
    left: usize,
}

impl Trailers {
    /// Begins a HEADERS frame.
    pub(super) fn begin_headers(&mut self, stream: u32, flags: u8, payload: usize) {
        if stream > self.last_stream {
            self.last_stream = stream;
            self.open = None;
            return;
        }
        let padded = flags & PADDED != 0;
        let skip = if flags & PRIORITY == 0 { 0 } else { PRIORITY_LENGTH };
        let left = payload.saturating_sub(skip + usize::from(padded));
        self.open = Some(HeaderBlock { stream, fields: FieldCount::default(), padded, skip, left });
    }

    /// Begins a CONTINUATION frame.
    pub(super) fn begin_continuation(&mut self, payload: usize) {
        if let Some(block) = &mut self.open {
            (block.padded, block.skip, block.left) = (false, 0, payload);
        }
    }

    /// Reads the next bytes of the payload of such a frame.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        if let Some(block) = &mut self.open {
            block.read(bytes);
        }
    }

    /// Ends the open header block, if there is one.
    pub(super) fn end(&mut self) {
        let Some(block) = self.open.take() else { return };
        if self.counts.len() == MAX_COUNTS {
            self.counts.pop_front();
        }
        self.counts.push_back((block.stream, block.fields.count));
    }

    /// Returns once how many fields the trailers of this stream had.
    pub(super) fn take_count(&mut self, stream: u32) -> Option<usize> {
        let at = self.counts.iter().position(|(of, _)| *of == stream)?;
        self.counts.remove(at).map(|(_, count)| count)
    }
}

impl HeaderBlock {
    fn read(&mut self, mut bytes: &[u8]) {
        if self.padded
            && let [length, rest @ ..] = bytes
        {
            self.padded = false;
            self.left = self.left.saturating_sub(usize::from(*length));
            bytes = rest;
        }
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        let part = &bytes[skipped..];
        let part = &part[..part.len().min(self.left)];
        self.left -= part.len();
        self.fields.read(part);
    }
}

/// Counts the fields of a header block (RFC 7541, 6) whose bytes come in any pieces. It decodes none: where a field
/// ends does not depend on the fields before it.
#[derive(Debug, Default)]
struct FieldCount {
    count: usize,
    position: Position,
}

/// What the next byte is. `strings` counts the strings of the field that have not ended.
#[derive(Clone, Copy, Debug, Default)]
enum Position {
    /// The first byte of a field, or of a change of the table's size.
    #[default]
    Start,
    /// In the number of an index or a size.
    Index { strings: u8 },
    /// The first byte of a string.
    Length { strings: u8 },
    /// In the length of a string; `length` is its value so far.
    LengthMore { strings: u8, length: usize, shift: u32 },
    /// In a string.
    Text { strings: u8, left: usize },
}

impl FieldCount {
    fn read(&mut self, mut bytes: &[u8]) {
        while let [byte, rest @ ..] = bytes {
            bytes = rest;
            self.position = match self.position {
                Position::Start => self.start(*byte),
                Position::Index { strings } if byte & 0x80 != 0 => Position::Index { strings },
                Position::Index { strings } => before(strings),
                Position::Length { strings } if byte & 0x7f == 0x7f => {
                    Position::LengthMore { strings, length: 0x7f, shift: 0 }
                }
                Position::Length { strings } => within(strings, usize::from(byte & 0x7f)),
                Position::LengthMore { strings, length, shift } => {
                    // The crate ends the connection at a number that does not fit.
                    let more = usize::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
                    let length = length.saturating_add(more);
                    if byte & 0x80 == 0 {
                        within(strings, length)
                    } else {
                        Position::LengthMore { strings, length, shift: shift.saturating_add(7) }
                    }
                }
                Position::Text { strings, left } => {
                    let skipped = (left - 1).min(rest.len());
                    bytes = &rest[skipped..];
                    within(strings, left - 1 - skipped)
                }
            };
        }
    }

    fn start(&mut self, byte: u8) -> Position {
        let (is_field, prefix, named) = match byte {
            0x80.. => (true, 0x7f, false), // the whole field by its index
            0x40.. => (true, 0x3f, true),
            0x20.. => (false, 0x1f, false), // the table's size
            _ => (true, 0x0f, true),
        };
        self.count += usize::from(is_field);
        let strings = match byte & prefix {
            _ if !named => 0,
            0 => 2, // its name is a string, too
            _ => 1,
        };
        if byte & prefix == prefix { Position::Index { strings } } else { before(strings) }
    }
}

/// The position before this many strings.
fn before(strings: u8) -> Position {
    if strings == 0 { Position::Start } else { Position::Length { strings } }
}

/// The position in the first of this many strings, of which `left` bytes are to come.
fn within(strings: u8, left: usize) -> Position {
    if left == 0 { before(strings - 1) } else { Position::Text { strings, left } }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The blocks of RFC 7541, C.2 to C.4, and what they hold.
    const BLOCKS: [(&[u8], usize); 7] = [
        (b"\x40\x0acustom-key\x0dcustom-header", 1),
        (b"\x04\x0c/sample/path", 1),
        (b"\x10\x08password\x06secret", 1),
        (b"\x82", 1),
        (b"\x82\x86\x84\x41\x0fwww.example.com", 4),
        (b"\x82\x86\x84\xbe\x58\x08no-cache", 5),
        (b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf", 5),
    ];

    /// Counts a block that comes in pieces, as the trailers of stream 1.
    fn count(block: &[u8], piece: usize) -> Option<usize> {
        let mut trailers = Trailers::default();
        trailers.begin_headers(1, 0, 3); // the request's own header
        trailers.begin_headers(1, 0, block.len());
        block.chunks(piece).for_each(|bytes| trailers.read(bytes));
        trailers.end();
        trailers.take_count(1)
    }

    #[test]
    fn fields_are_counted_however_their_bytes_come() {
        for (block, fields) in BLOCKS {
            for piece in 1..=block.len() {
                assert_eq!(count(block, piece), Some(fields), "{block:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn long_numbers_and_changes_of_the_table_are_no_fields() {
        let long = [&b"\x00\x01x\x7f\xe1\x07"[..], &vec![b'y'; 0x7f + 0x61 + (7 << 7)], b"\x82"].concat();
        assert_eq!(count(&long, 7), Some(2));
        assert_eq!(count(b"\x3f\xe1\x1f\xff\x80\x01\x20\x7f\x01\x00", 1), Some(2));
        assert_eq!(count(b"", 1), Some(0));
    }

    #[test]
    fn padding_and_priority_are_no_part_of_the_block() {
        let mut trailers = Trailers::default();
        trailers.begin_headers(1, 0, 1);
        trailers.begin_headers(1, PADDED | PRIORITY, 1 + 5 + 2 + 3);
        for byte in [3, 0x82, 0x82, 0x82, 0x82, 0x82, 0x82, 0x86, 0x84, 0x84, 0x84] {
            trailers.read(&[byte]);
        }
        trailers.begin_continuation(1);
        trailers.read(b"\x84");
        trailers.end();
        assert_eq!((trailers.take_count(1), trailers.take_count(1)), (Some(3), None));
    }

    #[test]
    fn trailers_that_nobody_reads_are_forgotten() {
        let mut trailers = Trailers::default();
        trailers.begin_headers(2000, 0, 1);
        for stream in 1..=2000 {
            trailers.begin_headers(stream, 0, 1);
            trailers.end();
        }
        assert_eq!((trailers.take_count(1), trailers.take_count(2000)), (None, Some(0)));
        assert_eq!(trailers.counts.len(), MAX_COUNTS - 1);
    }

    /// A number as RFC 7541, 5.1 writes it, behind the bits of `first`.
    fn number(first: u8, prefix: u8, n: usize) -> Vec<u8> {
        let most = usize::from(prefix);
        if n < most {
            return vec![first | n as u8];
        }
        let (mut bytes, mut rest) = (vec![first | prefix], n - most);
        while rest >= 128 {
            bytes.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        bytes.push(rest as u8);
        bytes
    }

    proptest! {
        #[test]
        fn as_many_fields_are_counted_as_were_written(
            fields in proptest::collection::vec((0..6, 0usize..70_000, 0usize..400, any::<u8>()), 0..20),
            piece in 1usize..50,
        ) {
            let (mut block, mut written) = (Vec::new(), 0);
            for (kind, index, length, byte) in fields {
                let text = |length: usize| [number(byte & 0x80, 0x7f, length), vec![byte; length]].concat();
                written += usize::from(kind != 5);
                block.extend(match kind {
                    0 => number(0x80, 0x7f, index),
                    1 => [number(0x40, 0x3f, index), text(length)].concat(),
                    2 => [number(0x10, 0x0f, index), text(length)].concat(),
                    3 => [number(0, 0x0f, index + 1), text(length)].concat(),
                    4 => [vec![0x40], text(length), text(index % 300)].concat(),
                    _ => number(0x20, 0x1f, index),
                });
                // Without an index a name stands in front of the value.
                if matches!(kind, 1 | 2) && index == 0 {
                    block.extend(text(length));
                }
            }
            prop_assert_eq!(count(&block, piece), Some(written));
        }
    }
}
