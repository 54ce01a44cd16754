//! The header's reader against a second reading of RFC 9112 and the contract's "Framing", written
//! without it: what either accepts the other does, and to the same end.

use super::*;

const MAX: usize = 512;

fuzz_target!(header, 20_000, judge);

fn judge(input: &[u8]) {
    let all = verdict(input);
    let model = model(input).filter(|accepted| accepted.length <= MAX);
    match (&all, &model) {
        (Verdict::Accepted(read), Some(model)) => assert_eq!(read, model),
        (Verdict::Accepted(read), None) => panic!("accepted against the rules: {read:?}"),
        (other, Some(model)) => panic!("{other:?}, but it is within the rules: {model:?}"),
        (Verdict::Partial | Verdict::Refused, None) => {}
    }
    if let Verdict::Accepted(read) = &all {
        assert_eq!(verdict(&input[..read.length]), all, "what follows the header counts");
        assert_eq!(verdict(&[&input[..read.length], b"\r\n\r\n\nGET"].concat()), all, "what follows the header counts");
    }
    // As the connection reads: from the beginning again with each piece, until it is decided.
    let mut decided = None;
    let lines_end = |end: &usize| input[end.saturating_sub(4)..*end].iter().any(|b| matches!(b, b'\r' | b'\n'));
    let longest = input.len().min(2 * MAX);
    let ends = (0..=longest).filter(|end| lines_end(end) || end % 32 == 0 || [MAX - 1, MAX, longest].contains(end));
    for end in ends {
        let now = verdict(&input[..end]);
        match &decided {
            None if now == Verdict::Partial => assert!(end < MAX, "nothing is decided within the bound"),
            None => decided = Some(now),
            Some(first) => assert_eq!(first, &now, "decided otherwise by more bytes, {end}"),
        }
    }
    if input.len() <= 2 * MAX {
        assert_eq!(decided.unwrap_or(Verdict::Partial), all, "in pieces it is read otherwise");
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Partial,
    /// 16, then close.
    Refused,
    Accepted(Read),
}

/// What is read of a header that is acted upon.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    method: Vec<u8>,
    path: Vec<u8>,
    is_http_11: bool,
    keep_alive: bool,
    expect_continue: bool,
    framing: Framing,
    authorization: Option<Vec<u8>>,
    length: usize,
}

fn verdict(bytes: &[u8]) -> Verdict {
    match parse(bytes, MAX, true) {
        Parsed::Partial => Verdict::Partial,
        Parsed::Malformed => Verdict::Refused,
        Parsed::Whole(head) => head.framing.map_or(Verdict::Refused, |framing| {
            Verdict::Accepted(Read {
                method: head.method.to_vec(),
                path: head.path.to_vec(),
                is_http_11: head.is_http_11,
                keep_alive: head.keep_alive,
                expect_continue: head.seen.expect_continue,
                framing,
                authorization: head.seen.authorization.map(<[u8]>::to_vec),
                length: head.length,
            })
        }),
    }
}

/// The second reading: by lines, slowly, a rule after another.
fn model(input: &[u8]) -> Option<Read> {
    let length = input.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    // One empty line before the request is let pass (RFC 9112, 2.2).
    let text = &input[..length - 4];
    let text = text.strip_prefix(b"\r\n").unwrap_or(text);
    let mut lines: Vec<&[u8]> = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        lines.push(&rest[..end]);
        rest = &rest[end + 2..];
    }
    lines.push(rest);
    if lines.iter().any(|line| line.iter().any(|b| matches!(b, b'\r' | b'\n' | b'\0'))) {
        return None;
    }
    let mut lines = lines.into_iter();
    let mut parts = lines.next()?.split(|b| *b == b' ');
    let (method, target, version) = (parts.next()?, parts.next()?, parts.next()?);
    let is_http_11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return None,
    };
    if parts.next().is_some() || !is_token(method) || target.is_empty() {
        return None;
    }
    // Of what RFC 3986 has no place for, only white space and control characters split a line.
    if std::str::from_utf8(target).ok()?.chars().any(|c| c.is_ascii_control() || c == ' ') {
        return None;
    }
    let mut fields: Vec<(String, Vec<u8>)> = Vec::new();
    for line in lines {
        let colon = line.iter().position(|b| *b == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if !is_token(name) || value.iter().any(|b| (*b < b' ' && *b != b'\t') || *b == 0x7f) {
            return None;
        }
        let is_blank = |b: &u8| matches!(b, b' ' | b'\t');
        let start = value.iter().position(|b| !is_blank(b)).unwrap_or(value.len());
        let end = value.iter().rposition(|b| !is_blank(b)).map_or(start, |last| last + 1);
        let name = String::from_utf8(name.to_ascii_lowercase()).ok()?;
        fields.push((name, value[start..end].to_vec()));
    }
    if fields.len() > 100 {
        return None;
    }
    let all = |name: &str| fields.iter().filter(|f| f.0 == name).map(|f| f.1.clone()).collect::<Vec<_>>();
    let one = |name: &str| match &all(name)[..] {
        [] => Some(None),
        [only] => Some(Some(only.clone())),
        _ => None,
    };
    let (host, authorization) = (one("host")?, one("authorization")?);
    if host.as_deref().map_or(is_http_11, |host| !is_host_model(host)) {
        return None;
    }
    let framing = match (one("content-length")?, one("transfer-encoding")?) {
        (None, None) => Framing::Length(0),
        (Some(length), None) => {
            if length.is_empty() || !length.iter().all(u8::is_ascii_digit) {
                return None;
            }
            let sum = length.iter().try_fold(0u64, |n, b| n.checked_mul(10)?.checked_add(u64::from(b - b'0')));
            Framing::Length(sum?)
        }
        (None, Some(coding)) if is_http_11 && coding.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
        _ => return None,
    };
    let lower = target.to_ascii_lowercase();
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| lower.starts_with(scheme));
    let path = match scheme {
        _ if target == b"*" => target.to_vec(),
        _ if target[0] == b'/' => until_query(target),
        None => return None,
        Some(scheme) => {
            let rest = &target[scheme.len()..];
            let end = rest.iter().position(|b| b"/?".contains(b)).unwrap_or(rest.len());
            if !rest[..end].eq_ignore_ascii_case(&host?) {
                return None;
            }
            let path = until_query(&rest[end..]);
            if path.is_empty() { b"/".to_vec() } else { path }
        }
    };
    let connection = all("connection").join(&b","[..]).to_ascii_lowercase();
    let says = |word: &[u8]| connection.split(|b| *b == b',').any(|token| token.trim_ascii() == word);
    let expects = all("expect").iter().any(|value| value.eq_ignore_ascii_case(b"100-continue"));
    Some(Read {
        method: method.to_vec(),
        path,
        is_http_11,
        keep_alive: !says(b"close") && (is_http_11 || says(b"keep-alive")),
        expect_continue: is_http_11 && expects,
        framing,
        authorization,
        length,
    })
}

fn until_query(target: &[u8]) -> Vec<u8> {
    target.split(|b| *b == b'?').next().unwrap_or_default().to_vec()
}

/// RFC 9110, 5.6.2.
fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

/// A host read from its end: the port off, then the brackets or none, then letter by letter.
fn is_host_model(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let portless = host.trim_end_matches(|c: char| c.is_ascii_digit()).strip_suffix(':');
    [Some(host), portless].into_iter().flatten().any(|host| {
        let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let text = literal.unwrap_or(host);
        let is_letter = |c: char| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=".contains(c);
        match literal {
            Some(_) => !text.is_empty() && text.chars().all(|c| is_letter(c) || c == ':'),
            None => text.chars().all(|c| is_letter(c) || c == '%'),
        }
    })
}
