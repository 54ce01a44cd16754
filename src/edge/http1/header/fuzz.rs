//! Holds the header's parser to what every header that is read must be, however it comes: the ways in which an origin could
//! frame it differently.

use super::*;

const MAX: usize = 512;

fuzz_target!(header, 20_000, check);

fn check(input: &[u8]) {
    let all = verdict(input);
    if let Verdict::Accepted { length, .. } = &all {
        assert!(*length <= MAX);
        is_unambiguous(&input[..*length]);
        assert_eq!(verdict(&input[..*length]), all, "what follows the header counts");
        assert_eq!(verdict(&[&input[..*length], b"\r\n\r\n\nGET"].concat()), all, "what follows the header counts");
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
    Accepted {
        length: usize,
        framing: Framing,
    },
}

fn verdict(bytes: &[u8]) -> Verdict {
    match parse(bytes, 0, MAX, true) {
        Parsed::Partial => Verdict::Partial,
        Parsed::Malformed => Verdict::Refused,
        Parsed::Whole(header) => match header.framing {
            Some(framing) => Verdict::Accepted { length: header.length, framing },
            None => Verdict::Refused,
        },
    }
}

/// Asserts that a header says nothing twice, and that its lines end in one way only.
fn is_unambiguous(header: &[u8]) {
    let text = header.strip_prefix(b"\r\n").unwrap_or(header).strip_suffix(b"\r\n\r\n").expect("it has an end");
    let text = String::from_utf8_lossy(text).to_ascii_lowercase();
    let mut lines = text.split("\r\n");
    let is_http_11 = lines.next().expect("it has a request line").ends_with(" http/1.1");
    let names: Vec<&str> = lines.map(|line| line.split_once(':').expect("it has a colon").0).collect();
    let count = |name: &str| names.iter().filter(|other| **other == name).count();
    assert!(!text.replace("\r\n", "").contains(['\r', '\n', '\0']), "a bare line end");
    assert!(names.len() <= MAX_FIELDS && !names.iter().any(|name| name.is_empty() || name.contains([' ', '\t'])));
    assert!(count("host") == 1 || count("host") == 0 && !is_http_11, "the host");
    assert!(
        count("authorization") <= 1 && count("content-length") + count("transfer-encoding") <= 1,
        "it is told twice"
    );
    assert!(count("transfer-encoding") == 0 || is_http_11 && text.contains("chunked"));
}
