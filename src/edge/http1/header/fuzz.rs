//! Compares the header's parser with a second one, written independently from RFC 9112 and the contract's "Framing":
//! both must accept the same headers and read the same values.

use super::*;

const MAX: usize = 512;

fuzz_target!(header, 20_000, check);

fn check(input: &[u8]) {
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
    // A connection parses from the beginning again with each read, until the header is accepted or refused.
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

/// The values read from an accepted header.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    method: Vec<u8>,
    path: Vec<u8>,
    is_http_11: bool,
    keep_alive: bool,
    expect_continue: bool,
    framing: Framing,
    authorization: Option<Vec<u8>>,
    origin: Option<Vec<u8>>,
    length: usize,
}

fn verdict(bytes: &[u8]) -> Verdict {
    match parse(bytes, 0, MAX, true) {
        Parsed::Partial => Verdict::Partial,
        Parsed::Malformed => Verdict::Refused,
        Parsed::Whole(header) => header.framing.map_or(Verdict::Refused, |framing| {
            Verdict::Accepted(Read {
                method: header.method.to_vec(),
                path: header.path.to_vec(),
                is_http_11: header.is_http_11,
                keep_alive: header.keep_alive,
                expect_continue: header.fields.expect_continue,
                framing,
                authorization: header.fields.authorization.map(<[u8]>::to_vec),
                origin: header.fields.origin.map(<[u8]>::to_vec),
                length: header.length,
            })
        }),
    }
}

/// The second parser: line by line, one rule after another.
fn model(input: &[u8]) -> Option<Read> {
    let length = input.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    // One empty line before the request is allowed (RFC 9112, 2.2).
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
    // Of the characters that RFC 3986 does not allow, only white space, control characters and those beyond ASCII are refused.
    if target.iter().any(|b| b.is_ascii_control() || !b.is_ascii() || *b == b' ') {
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
            // An http URI must have a host (RFC 9110, 4.2.1).
            if end == 0 || !rest[..end].eq_ignore_ascii_case(&host?) {
                return None;
            }
            let path = until_query(&rest[end..]);
            if path.is_empty() { b"/".to_vec() } else { path }
        }
    };
    let connection = all("connection").join(&b","[..]).to_ascii_lowercase();
    let has_token = |word: &[u8]| connection.split(|b| *b == b',').any(|token| token.trim_ascii() == word);
    let expects = all("expect").iter().any(|value| value.eq_ignore_ascii_case(b"100-continue"));
    Some(Read {
        method: method.to_vec(),
        path,
        is_http_11,
        keep_alive: !has_token(b"close") && (is_http_11 || has_token(b"keep-alive")),
        expect_continue: is_http_11 && expects,
        framing,
        authorization,
        // Two origins are none that could be listed.
        origin: one("origin").unwrap_or(Some(Vec::new())),
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

/// `uri-host [ ":" port ]` (RFC 3986, 3.2.2 and 3.2.3): first the port at the end, then the text between brackets, or the
/// name in the pieces between its percent signs.
fn is_host_model(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let (name, port) = match host.rfind(':') {
        Some(colon) if !host.ends_with(']') => (&host[..colon], Some(&host[colon + 1..])),
        _ => (host, None),
    };
    if let Some(port) = port {
        let value = port.trim_start_matches('0');
        let is_port = port.chars().all(|c| c.is_ascii_digit()) && (value.is_empty() || value.parse::<u16>().is_ok());
        if !is_port || name.is_empty() {
            return false;
        }
    }
    if let Some(literal) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        return is_ipv6_model(literal) || is_future_model(literal);
    }
    let mut pieces = name.split('%');
    pieces.next().is_some_and(is_name_model)
        && pieces.all(|piece| {
            let (octet, rest) = piece.split_at_checked(2).unwrap_or_default();
            octet.len() == 2 && octet.chars().all(|c| c.is_ascii_hexdigit()) && is_name_model(rest)
        })
}

/// unreserved and sub-delims.
fn is_name_model(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=".contains(c))
}

/// Eight groups of up to four digits, of which `::` replaces one or more, and an IPv4 address for the last two.
fn is_ipv6_model(text: &str) -> bool {
    let is_group = |group: &str| matches!(group.len(), 1..=4) && group.chars().all(|c| c.is_ascii_hexdigit());
    let is_octet = |octet: &str| {
        let digits = octet.len() <= 3 && octet.chars().all(|c| c.is_ascii_digit());
        digits && octet.parse().is_ok_and(|value: u32| value <= 255 && value.to_string() == octet)
    };
    let mut text = text.to_owned();
    let last = text.rfind(':').map_or(0, |colon| colon + 1);
    if text[last..].contains('.') {
        if text[last..].split('.').count() != 4 || !text[last..].split('.').all(is_octet) {
            return false;
        }
        text.replace_range(last.., "0:0");
    }
    let groups = |part: &str| match part {
        "" => Some(0),
        _ => part.split(':').all(is_group).then(|| part.split(':').count()),
    };
    match text.split_once("::") {
        Some((before, behind)) => groups(before).zip(groups(behind)).is_some_and(|(a, b)| a + b <= 7),
        None => groups(&text) == Some(8),
    }
}

/// `v`, a version, `.`, and an address of that version.
fn is_future_model(text: &str) -> bool {
    let version = text.strip_prefix(['v', 'V']).and_then(|text| text.split_once('.'));
    version.is_some_and(|(version, address)| {
        let is_version = !version.is_empty() && version.chars().all(|c| c.is_ascii_hexdigit());
        is_version && !address.is_empty() && is_name_model(&address.replace(':', ""))
    })
}
