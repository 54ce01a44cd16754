//! The memory in which a thread reads requests and writes answers. A connection takes it when something has come, and gives
//! it back when it waits for its next request: so an idle connection has none, and a busy thread uses the same few
//! buffers for all of its connections, which the processor has in its cache.

use std::cell::RefCell;

/// Capacity of a buffer. A normal request is at most about 600 bytes long, so that several pipelined ones fit.
pub(super) const CAPACITY: usize = 4096;

/// Buffers that a thread keeps. Connections give back at most two at a time.
const KEPT: usize = 4;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer.
pub(super) fn take() -> Vec<u8> {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(CAPACITY))
}

/// Gives back a buffer whose content is done with. One that has grown is freed.
pub(super) fn give_back(buffer: &mut Vec<u8>) {
    let mut buffer = std::mem::take(buffer);
    SPARE.with_borrow_mut(|spare| {
        if buffer.capacity() == CAPACITY && spare.len() < KEPT {
            buffer.clear();
            spare.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_empty_and_one_that_has_grown_is_freed() {
        let mut buffer = take();
        buffer.extend_from_slice(b"a request");
        let at = buffer.as_ptr();
        give_back(&mut buffer);
        assert_eq!(buffer.capacity(), 0);
        let mut buffer = take();
        assert_eq!((buffer.as_ptr(), buffer.len(), buffer.capacity()), (at, 0, CAPACITY));
        buffer.reserve(2 * CAPACITY);
        give_back(&mut buffer);
        assert_eq!(SPARE.with_borrow(Vec::len), 0);
        let mut many: Vec<_> = (0..2 * KEPT).map(|_| take()).collect();
        many.iter_mut().for_each(give_back);
        assert_eq!(SPARE.with_borrow(Vec::len), KEPT);
    }
}
