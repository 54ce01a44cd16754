//! Compares the chunked body's decoder with a second one that works on the whole text at once, and with an encoder.

use super::*;

const MAX_FRAMING: usize = 4096;

fuzz_target!(chunked, 10_000, check);

/// The input: where to cut, the bound, then a stream or a body.
fn check(input: &[u8]) {
    let [cut, max, text @ ..] = input else { return };
    let max = usize::from(*max);
    let whole = decode(text, max, usize::MAX);
    for cut in [1, 2, 3, usize::from(*cut).max(1)] {
        assert_eq!(decode(text, max, cut), whole, "in pieces of {cut}");
    }
    let (progress, body) = &whole;
    assert!(body.len() <= max);
    match (progress, model(text)) {
        (Ok(Some(end)), Some((data, used, _))) => assert_eq!((end, body), (&used, &data)),
        (Ok(Some(end)), None) => panic!("accepted as a body of {end} bytes"),
        (Err(Fault::BodyTooLarge), Some((data, ..))) => assert!(data.len() > max),
        (Err(Fault::Malformed), Some((_, _, framing))) => assert!(framing > MAX_FRAMING),
        (Err(fault), Some(_)) => panic!("refused with {fault:?}"),
        (Ok(None), Some(_)) => panic!("a whole body was not recognised"),
        (_, None) => {}
    }
    encoded(text, usize::from(*cut));
}

/// Decodes a text that comes in pieces of this size.
fn decode(text: &[u8], max: usize, cut: usize) -> (Result<Option<usize>, Fault>, Vec<u8>) {
    let (mut decoder, mut body, mut fed) = (Chunked::new(MAX_FRAMING), Vec::new(), 0);
    for piece in text.chunks(cut.min(text.len().max(1))) {
        match decoder.feed(piece, &mut body, max) {
            Ok(None) => fed += piece.len(),
            Ok(Some(end)) => return (Ok(Some(fed + end)), body),
            refused => return (refused, body),
        }
    }
    (Ok(None), body)
}

/// The data, the bytes used, and how many of those were framing; `None` if it is not a whole body.
fn model(text: &[u8]) -> Option<(Vec<u8>, usize, usize)> {
    let line_at = |at: usize| {
        let end = at + text.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        let line = &text[at..end];
        (!line.contains(&b'\r') && !line.contains(&b'\n') && !line.contains(&0)).then_some((line, end + 2))
    };
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        let (line, next) = line_at(at)?;
        let digits = std::str::from_utf8(line).ok()?;
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let size = usize::try_from(u64::from_str_radix(digits, 16).ok()?).ok()?;
        at = next;
        if size == 0 {
            break;
        }
        data.extend_from_slice(text.get(at..at.checked_add(size)?)?);
        at += size;
        if text.get(at..at + 2)? != b"\r\n" {
            return None;
        }
        at += 2;
    }
    loop {
        let (line, next) = line_at(at)?;
        at = next;
        if line.is_empty() {
            return Some((data.clone(), at, at - data.len()));
        }
        let colon = line.iter().position(|b| *b == b':')?;
        if !is_token(&line[..colon]) || line[colon..].iter().any(|b| *b != b'\t' && b.is_ascii_control()) {
            return None;
        }
    }
}

/// RFC 9110, 5.6.2.
fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

/// Any body in any chunks is decoded to the same bytes, and what follows it is left.
fn encoded(body: &[u8], by: usize) {
    let mut text = String::new().into_bytes();
    for (n, chunk) in body.chunks(by + 1).enumerate() {
        let size = if n % 2 == 0 { format!("{:x}", chunk.len()) } else { format!("0{:X}", chunk.len()) };
        text.extend([size.as_bytes(), b"\r\n", chunk, b"\r\n"].concat());
    }
    text.extend_from_slice(b"00\r\nTrailer: x\r\n\r\n");
    let (end, framing) = (text.len(), text.len() - body.len());
    text.extend_from_slice(b"POST / HTTP/1.1\r\n");
    if framing <= MAX_FRAMING {
        assert_eq!(decode(&text, body.len(), usize::MAX), (Ok(Some(end)), body.to_vec()));
    }
}
