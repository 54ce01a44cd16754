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

/// Each extension of a few characters, of every sort that matters.
#[test]
fn extensions() {
    const SORTS: &[u8] = b";a= \"\\\x7f\xff";
    const BASE: usize = SORTS.len() + 1; // the last digit is the end
    for begin in [&b""[..], b";a", b";a=\""] {
        for n in 0..BASE.pow(5) {
            let extension = (0..5).map_while(|at| SORTS.get(n / BASE.pow(at) % BASE)).copied();
            let text: Vec<u8> = b"\x01\xff1".iter().chain(begin).copied().chain(extension).collect();
            check(&[&text, &b"\r\nx\r\n0\r\n\r\n"[..]].concat());
        }
    }
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
        let (size, extensions) = line.split_at(line.iter().position(|b| !b.is_ascii_hexdigit()).unwrap_or(line.len()));
        if !are_extensions(extensions) {
            return None;
        }
        let digits = std::str::from_utf8(size).ok()?;
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

/// `*( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] )` (RFC 9112, 7.1.1): the pieces between semicolons that
/// no quotes surround, each with one equals sign at most outside of them.
fn are_extensions(text: &[u8]) -> bool {
    if text.is_empty() {
        return true;
    }
    let [b"", extensions @ ..] = &*split_outside_quotes(trimmed_start(text), b';') else { return false };
    let (last, others) = extensions.split_last().map_or((None, extensions), |(last, others)| (Some(last), others));
    let is_extension = |extension: &[u8]| match &*split_outside_quotes(extension, b'=') {
        [name] => is_token(trimmed(name)),
        [name, value] => is_token(trimmed(name)) && is_value(trimmed(value)),
        _ => false,
    };
    let ends_in_blank = last.is_some_and(|last| last.last().is_some_and(|b| is_blank(*b)));
    last.is_some() && !ends_in_blank && others.iter().chain(last).all(|extension| is_extension(extension))
}

fn is_value(value: &[u8]) -> bool {
    let [b'"', quoted @ .., b'"'] = value else { return is_token(value) };
    let (mut is_escaped, mut is_string) = (false, true);
    for byte in quoted {
        is_string &= *byte == b'\t' || !byte.is_ascii_control();
        is_string &= is_escaped || *byte != b'"';
        is_escaped = !is_escaped && *byte == b'\\';
    }
    is_string && !is_escaped
}

/// The pieces of a text, cut at each `by` that is not between quotes.
fn split_outside_quotes(text: &[u8], by: u8) -> Vec<&[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(|byte| {
        is_quoted ^= !is_escaped && *byte == b'"';
        is_escaped = is_quoted && !is_escaped && *byte == b'\\';
        !is_quoted && *byte == by
    })
    .collect()
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn trimmed_start(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|b| is_blank(**b)).count()..]
}

fn trimmed(text: &[u8]) -> &[u8] {
    let text = trimmed_start(text);
    &text[..text.len() - text.iter().rev().take_while(|b| is_blank(**b)).count()]
}

/// RFC 9110, 5.6.2.
fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

/// Any body in any chunks is decoded to the same bytes, and what follows it is left.
fn encoded(body: &[u8], by: usize) {
    let mut text = String::new().into_bytes();
    for (n, chunk) in body.chunks(by + 1).enumerate() {
        let size =
            if n % 2 == 0 { format!("{:x}", chunk.len()) } else { format!("0{:X} ;a=\"b;\\\"\" ; c", chunk.len()) };
        text.extend([size.as_bytes(), b"\r\n", chunk, b"\r\n"].concat());
    }
    text.extend_from_slice(b"00\r\nTrailer: x\r\n\r\n");
    let (end, framing) = (text.len(), text.len() - body.len());
    text.extend_from_slice(b"POST / HTTP/1.1\r\n");
    if framing <= MAX_FRAMING {
        assert_eq!(decode(&text, body.len(), usize::MAX), (Ok(Some(end)), body.to_vec()));
    }
}
