//! Compares the parser of an answer's header with a second one, written independently from RFC 9112: both must accept
//! the same headers and read the same values. A line may end in a bare LF (RFC 9112, 2.2), which only a request must not
//! have: nobody reads an answer behind this gateway by other rules.

use super::*;

fuzz_target!(answer_header, 20_000, check);

fn check(input: &[u8]) {
    let read = parse(input).map(|header| header.map(|header| AnswerHeader { retry_after: None, ..header }));
    let model = model(input).filter(|accepted| accepted.length <= MAX_HEADER);
    match (&read, &model) {
        (Ok(Some(read)), Some(model)) => assert_eq!(read, model),
        (Ok(Some(read)), None) => panic!("accepted against the rules: {read:?}"),
        (other, Some(model)) => panic!("{other:?}, but it is within the rules: {model:?}"),
        (Ok(None) | Err(_), None) => {}
    }
    let Some(header) = model else { return };
    // A connection parses from the beginning again with each read, until the header is accepted or refused.
    for length in 0..header.length {
        assert_eq!(parse(&input[..length]), Ok(None), "its first {length} bytes");
    }
    let glued = [&input[..header.length], b"\r\n\nHTTP/1.1 500 \r\n\r\n"].concat();
    assert_eq!(parse(&glued).unwrap().unwrap().length, header.length, "what follows the header counts");
}

/// The header, without its `Retry-After`; `None` if this is no whole header within the rules.
fn model(text: &[u8]) -> Option<AnswerHeader> {
    let mut at = 0;
    // A line without its end, which is CRLF or LF.
    let mut line = || {
        let length = text[at..].iter().position(|b| *b == b'\n')?;
        let line = &text[at..at + length];
        at += length + 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let is_text = |b: &u8| matches!(b, b'\t' | b' '..=b'~' | 0x80..);
        Some((line, at)).filter(|_| line.iter().all(is_text))
    };
    let status_line = std::iter::from_fn(&mut line).find(|(line, _)| !line.is_empty())?.0;
    let (version, rest) = status_line.split_at_checked(9)?;
    let is_http_11 = match version {
        b"HTTP/1.1 " => true,
        b"HTTP/1.0 " => false,
        _ => return None,
    };
    let (code, reason) = rest.split_at_checked(3)?;
    if !code.iter().all(u8::is_ascii_digit) || code[0] == b'0' || !matches!(reason, [] | [b' ', ..]) {
        return None;
    }
    let status = std::str::from_utf8(code).ok()?.parse().ok()?;
    let mut fields: Vec<(String, Vec<u8>)> = Vec::new();
    let length = loop {
        let (line, end) = line()?;
        if line.is_empty() {
            break end;
        }
        let colon = line.iter().position(|b| *b == b':').filter(|at| *at > 0)?;
        let is_name = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
        let name = std::str::from_utf8(&line[..colon]).ok().filter(|name| name.as_bytes().iter().all(is_name))?;
        fields.push((name.to_ascii_lowercase(), line[colon + 1..].trim_ascii().to_vec()));
    };
    if fields.len() > MAX_FIELDS {
        return None;
    }
    let all = |name: &str| -> Vec<String> {
        let values = fields.iter().filter(|(n, _)| n == name).map(|(_, value)| String::from_utf8_lossy(value));
        values
            .flat_map(|v| v.split(',').map(|token| token.trim_ascii().to_ascii_lowercase()).collect::<Vec<_>>())
            .collect()
    };
    let (lengths, codings, connection) = (all("content-length"), all("transfer-encoding"), all("connection"));
    if lengths.iter().any(|length| *length != lengths[0])
        || fields.iter().filter(|(n, _)| n == "transfer-encoding").count() > 1
    {
        return None;
    }
    let framing = match (status, &lengths[..], &codings[..]) {
        (100..=199 | 204 | 304, ..) => Some(Framing::Length(0)),
        (_, [], []) => None,
        (_, [length, ..], []) if length.bytes().all(|b| b.is_ascii_digit()) => {
            Some(Framing::Length(length.parse().ok()?))
        }
        (_, [], [coding]) if is_http_11 && coding == "chunked" => Some(Framing::Chunked),
        _ => return None,
    };
    let says = |token: &str| connection.iter().any(|t| t == token);
    let keep_alive = framing.is_some() && status != 101 && !says("close") && (is_http_11 || says("keep-alive"));
    Some(AnswerHeader { status, framing, keep_alive, retry_after: None, length })
}
