//! Collects the answers to be sent on an HTTP/1.1 connection. A short answer is copied into one buffer, so that many
//! go out in one write. A long text stays shared with the cache until it is sent, so that it is in memory once however
//! many slow callers read it (guarantee 8).

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use super::spare_buffers;

/// Length from which a text is shared. Below it a copy is cheaper than another slice in a write.
pub(super) const SHARED_FROM: usize = 8 * 1024;

/// Slices of one write. The 64 KiB that are written under one deadline are at most 8 texts of [`SHARED_FROM`] bytes or
/// more, and the bytes around them.
pub(super) const MAX_SLICES: usize = 18;

#[derive(Debug, Default)]
pub(super) struct WriteBuffer {
    /// Headers, and short texts.
    bytes: Vec<u8>,
    /// How many of these bytes are sent.
    sent: usize,
    /// Long texts, in the order in which they are sent.
    texts: VecDeque<SharedText>,
}

#[derive(Debug)]
struct SharedText {
    /// How many of the bytes are sent before it.
    at: usize,
    text: Arc<str>,
    sent: usize,
}

impl SharedText {
    fn rest(&self) -> &[u8] {
        &self.text.as_bytes()[self.sent..]
    }
}

impl WriteBuffer {
    /// Where headers and short texts are appended.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = spare_buffers::take();
        }
        &mut self.bytes
    }

    /// Appends the text of an answer.
    pub(super) fn push_text(&mut self, text: &Arc<str>) {
        if text.len() < SHARED_FROM {
            self.bytes().extend_from_slice(text.as_bytes());
        } else {
            self.texts.push_back(SharedText { at: self.bytes.len(), text: text.clone(), sent: 0 });
        }
    }

    /// How many bytes are still to be sent.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.sent + self.texts.iter().map(|text| text.rest().len()).sum::<usize>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len() && self.texts.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
        self.texts.clear();
    }

    /// Gives its memory back, once everything is sent.
    pub(super) fn give_back(&mut self) {
        spare_buffers::give_back(&mut self.bytes);
        self.texts = VecDeque::new();
    }

    /// At most `most` of the bytes to send, if all that is to be sent is one slice.
    pub(super) fn single_slice(&self, most: usize) -> Option<&[u8]> {
        let rest = &self.bytes[self.sent..];
        self.texts.is_empty().then(|| &rest[..rest.len().min(most)])
    }

    /// At most `most` of the bytes to send, as the slices of a vectored write.
    pub(super) fn io_slices(&self, most: usize) -> [IoSlice<'_>; MAX_SLICES] {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let ends = self.texts.iter().map(|text| (text.at, text.rest())).chain([(self.bytes.len(), &[][..])]);
        let (mut free, mut left, mut from) = (slices.iter_mut(), most, self.sent);
        for (at, text) in ends {
            for slice in [&self.bytes[from..at], text] {
                let slice = &slice[..slice.len().min(left)];
                if !slice.is_empty()
                    && let Some(place) = free.next()
                {
                    *place = IoSlice::new(slice);
                    left -= slice.len();
                }
            }
            from = at;
        }
        slices
    }

    /// Marks `n` more bytes as sent and releases each text that is sent whole.
    pub(super) fn advance(&mut self, mut n: usize) {
        loop {
            let end = self.texts.front().map_or(self.bytes.len(), |text| text.at);
            let taken = n.min(end - self.sent);
            self.sent += taken;
            n -= taken;
            let Some(text) = self.texts.front_mut().filter(|_| n > 0) else { return };
            let taken = n.min(text.rest().len());
            text.sent += taken;
            n -= taken;
            if text.rest().is_empty() {
                self.texts.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_bytes_sent_are_those_appended_in_any_pieces(
            answers in proptest::collection::vec((0usize..200, 0usize..4 * SHARED_FROM), 0..40),
            most in 1usize..100_000,
            taken in proptest::collection::vec(1usize..100_000, 1..20),
        ) {
            let (mut output, mut whole) = (WriteBuffer::default(), Vec::new());
            for (n, (header, length)) in answers.iter().enumerate() {
                let letter = char::from(b'a' + (n % 26) as u8);
                output.bytes().extend(std::iter::repeat_n(n as u8, *header));
                whole.resize(whole.len() + header, n as u8);
                let text: Arc<str> = String::from(letter).repeat(*length).into();
                output.push_text(&text);
                whole.extend_from_slice(text.as_bytes());
            }
            prop_assert_eq!(output.len(), whole.len());
            let (mut sent, mut taken) = (Vec::new(), taken.iter().cycle());
            while !output.is_empty() {
                let slices = output.io_slices(most);
                let there = slices.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<_>>();
                if let Some(only) = output.single_slice(most) {
                    prop_assert_eq!(only, &there[..]);
                }
                prop_assert!(!there.is_empty() && there.len() <= most);
                let n = there.len().min(*taken.next().unwrap());
                sent.extend_from_slice(&there[..n]);
                output.advance(n);
                prop_assert_eq!(output.len(), whole.len() - sent.len());
            }
            prop_assert!(sent == whole);
        }
    }

    #[test]
    fn a_long_text_is_shared_until_it_is_sent() {
        let (long, short): (Arc<str>, Arc<str>) = ("x".repeat(SHARED_FROM).into(), "y".into());
        let mut output = WriteBuffer::default();
        output.bytes().extend_from_slice(b"header");
        output.push_text(&long);
        output.push_text(&short);
        assert_eq!((Arc::strong_count(&long), Arc::strong_count(&short)), (2, 1));
        output.advance(6 + SHARED_FROM - 1);
        assert_eq!(Arc::strong_count(&long), 2);
        output.advance(1);
        assert_eq!((Arc::strong_count(&long), output.single_slice(10)), (1, Some(&b"y"[..])));
    }
}
