//! Compares the monitor of frames with a splitter that sees all bytes at once.

use std::time::Duration;

use super::*;

fuzz_target!(frames, 10_000, check);

/// The input: where to cut, how many frames are allowed, then what follows the preface.
fn check(input: &[u8]) {
    let [cut, allowed, bytes @ ..] = input else { return };
    let stream = [&[b'P'; PREFACE][..], bytes].concat();
    let read_in_pieces = |cut: usize| {
        let mut frames = Frames::new(Instant::now());
        frames.allowed = u32::from(*allowed);
        frames.allowed_at += Duration::from_secs(3600); // so that no time is credited during the test
        stream.chunks(cut).for_each(|piece| frames.read(piece));
        assert_eq!(
            frames.open_since.is_some(),
            !frames.is_between(),
            "a frame is timed exactly while it is unfinished"
        );
        let kind = (frames.is_data, frames.is_header);
        let inside = (frames.header_read, frames.payload_left, kind, frames.in_block);
        ((inside, frames.allowed, frames.flooded), format!("{:?}", frames.trailers))
    };
    let whole = read_in_pieces(stream.len());
    for cut in [1, 2, 9, usize::from(*cut).max(1)] {
        assert_eq!(read_in_pieces(cut), whole, "in pieces of {cut}");
    }

    let (mut rest, mut left, mut flooded, mut last, mut in_block) = (bytes, u32::from(*allowed), false, None, false);
    let inside = loop {
        let [a, b, c, kind, flags, _, _, _, _, payload @ ..] = rest else { break (rest.len(), 0) };
        last = Some(*kind);
        in_block = if matches!(*kind, 1 | 9) { flags & 4 == 0 } else { in_block };
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        let cost = if matches!(*kind, 0 | 1 | 9) { 1 } else { 1 + length as u32 / 1024 };
        flooded |= cost > left;
        left = left.saturating_sub(cost);
        match payload.split_at_checked(length) {
            Some((_, after)) => rest = after,
            None => break (0, length - payload.len()),
        }
    };
    // The kind is known of an unfinished frame or block only.
    let unfinished = last.filter(|_| inside.1 > 0 || in_block);
    let kind = (unfinished == Some(0), matches!(unfinished, Some(1 | 9)));
    let model = ((inside.0, inside.1, kind, in_block), left, flooded);
    assert_eq!(whole.0, model);
}
