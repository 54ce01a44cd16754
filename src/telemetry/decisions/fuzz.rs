//! Reads any bytes as a file, any content in complete blocks, and what a writer wrote with any damage to it.

use std::path::Path;

use super::*;

fuzz_target!(decisions, 5_000, check);

/// The input: the kind and place of the damage, then contents of blocks after their lengths, which are also read as a
/// whole file.
fn check(input: &[u8]) {
    let _ = read(input);
    let [damage, at, fine, xor, rest @ ..] = input else { return };
    let _ = read(&[MAGIC, rest].concat());

    // Blocks with a valid checksum and any content.
    let (mut file, mut rest) = (MAGIC.to_vec(), rest);
    while let [length, more @ ..] = rest {
        let (content, more) = more.split_at(usize::from(*length).min(more.len()));
        raw_blocks::put(content, &mut file);
        rest = more;
    }
    let (blocks, _) = read(&file);

    // Written again, they read the same.
    let (mut encoder, mut file, mut ends) = (None::<(u64, Encoder)>, MAGIC.to_vec(), vec![MAGIC.len()]);
    for block in &blocks {
        let encoder = match &mut encoder {
            Some((run, encoder)) if *run == block.run => encoder,
            other => &mut other.insert((block.run, Encoder::new(block.run))).1,
        };
        encoder.block(block.written_at, block.counts, &mut block.decisions.clone(), &mut file);
        ends.push(file.len());
    }
    assert_eq!(read(&file), (blocks.clone(), End::Whole));

    // Damaged, they read the same up to the damage, or the error names the file.
    let at = (usize::from(*at) * 256 + usize::from(*fine)) % file.len();
    if damage % 2 == 0 {
        file.truncate(at);
        let whole = ends.iter().filter(|end| **end <= at).count();
        let (left, end) = read(&file);
        assert_eq!(left, blocks[..whole.saturating_sub(1)]);
        let expected = if at == 0 || ends.contains(&at) { End::Whole } else { End::CutShort };
        assert_eq!(end, expected, "cut at {at} of {ends:?}");
    } else if *xor != 0 {
        file[at] ^= xor;
        let whole = ends.iter().filter(|end| **end <= at).count();
        let (left, end) = read(&file);
        assert_eq!(left, blocks[..whole.saturating_sub(1)], "damaged at {at}");
        assert_ne!(end, End::Whole, "damaged at {at}");
    }
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Whole,
    CutShort,
    /// An error that names the file.
    Refused,
}

fn read(file: &[u8]) -> (Vec<Block>, End) {
    let mut reader = RecordReader::new(file, file.len() as u64, Path::new("d.log"));
    let mut blocks = Vec::new();
    let end = loop {
        match reader.next_block() {
            Ok(Some(block)) => blocks.push(block),
            Ok(None) if reader.cut_short().is_some() => break End::CutShort,
            Ok(None) => break End::Whole,
            Err(error) => {
                assert!(error.to_string().contains("d.log"), "{error}");
                break End::Refused;
            }
        }
        // A decision has at least three bytes, so memory is bounded by the bytes read.
        let block = blocks.last().unwrap();
        assert!(block.decisions.len() * 3 <= file.len() && block.decisions.capacity() * 3 <= file.len());
    };
    assert!(reader.position() <= file.len() as u64);
    (blocks, end)
}
