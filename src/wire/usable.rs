use super::{Fault, Operation, Read};

/// The most of an origin's answer that is read (contract section 1, "Upstream").
pub const MAX_ORIGIN_ANSWER: usize = 1 << 20;

/// Judges a whole answer of an HTTP origin: its text as it may be passed on, or the spec's refusal
/// that it carries (02 to 05, at any status), or, if it is neither, `None`: no usable answer.
pub fn usable(operation: Operation, status: u16, body: &[u8]) -> Option<Result<&str, Fault>> {
    if body.len() > MAX_ORIGIN_ANSWER {
        return None;
    }
    let text = std::str::from_utf8(body).ok()?;
    let text = text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(text);
    if text.contains(char::is_control) {
        return None;
    }
    if let Some(fault) = refusal(text) {
        return Some(Err(fault));
    }
    let fits = match operation {
        Operation::Read(Read::Points) => {
            let digits = text.strip_prefix('-').unwrap_or(text);
            !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
        }
        Operation::Read(Read::Warns | Read::Reviews) => text.len() >= 2 && text.starts_with('{') && text.ends_with('}'),
        // A line of another code (another gateway's 12, sent with 200) is no success.
        Operation::SetPoints => !text.is_empty() && !is_refusal(text),
    };
    ((200..300).contains(&status) && fits).then_some(Ok(text))
}

/// The refusal that a line `0N | …` stands for.
fn refusal(text: &str) -> Option<Fault> {
    let (code, _) = text.split_once(" | ")?;
    match code.as_bytes() {
        [b'0', digit @ b'2'..=b'5'] => Fault::from_origin(digit - b'0'),
        _ => None,
    }
}

/// Whether a line has the form of a refusal, whichever its code.
fn is_refusal(text: &str) -> bool {
    matches!(text.as_bytes(), [a, b, b' ', b'|', b' ', ..] if a.is_ascii_digit() && b.is_ascii_digit())
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POINTS: Operation = Operation::Read(Read::Points);
    const WARNS: Operation = Operation::Read(Read::Warns);

    #[test]
    fn a_good_answer_is_passed_on_without_its_newline() {
        assert_eq!(usable(POINTS, 200, b"1250"), Some(Ok("1250")));
        assert_eq!(usable(POINTS, 201, b"-3\n"), Some(Ok("-3")));
        assert_eq!(usable(POINTS, 200, b"3\r\n"), Some(Ok("3")));
        assert_eq!(usable(WARNS, 200, b"{}"), Some(Ok("{}")));
        assert_eq!(usable(Operation::SetPoints, 200, b"done"), Some(Ok("done")));
    }

    #[test]
    fn a_line_of_the_spec_counts_at_any_status() {
        for status in [200, 401, 403, 500, 503] {
            let body = "03 | Error while retrieving guild using this API key. Is X still on guild?";
            assert_eq!(usable(POINTS, status, body.as_bytes()), Some(Err(Fault::GuildGone)));
        }
        assert_eq!(usable(Operation::SetPoints, 200, b"02 | Incorrect API key!\n"), Some(Err(Fault::IncorrectKey)));
    }

    #[test]
    fn what_is_no_answer_is_not_passed_on() {
        for body in [&b""[..], b"-", b"12a", b"1\n\n", b"1\n2", b"\xff", b"01 | No api key", b"06 | x", b"<html>"] {
            assert_eq!(usable(POINTS, 200, body), None, "{body:?}");
        }
        assert_eq!(usable(POINTS, 500, b"1250"), None);
        assert_eq!(usable(POINTS, 304, b"1250"), None);
        assert_eq!(usable(WARNS, 200, b"{"), None);
        assert_eq!(usable(WARNS, 200, b"{a\tb}"), None);
        assert_eq!(usable(Operation::SetPoints, 200, b"\n"), None);
        assert_eq!(usable(Operation::SetPoints, 200, b"12 | Too many requests! Try again in 1 s."), None);
        let long = vec![b'1'; MAX_ORIGIN_ANSWER + 1];
        assert_eq!(usable(POINTS, 200, &long), None);
        assert_eq!(usable(POINTS, 200, &long[1..]).map(|r| r.is_ok()), Some(true));
    }

    proptest! {
        #[test]
        fn a_refusal_rendered_here_is_read_as_the_same_by_the_next_gateway(
            code in 2u8..=5, status in 100u16..600, service_name in "[ -~]{0,20}", newline: bool,
        ) {
            let fault = Fault::from_origin(code).unwrap();
            let wording = super::super::Wording { service_name, key_command: String::new() };
            let line = fault.line(&wording) + if newline { "\n" } else { "" };
            for operation in Operation::ALL {
                prop_assert_eq!(usable(operation, status, line.as_bytes()), Some(Err(fault)));
            }
        }

        #[test]
        fn a_map_rendered_here_is_passed_on_to_the_letter_by_the_next_gateway(
            texts in proptest::collection::vec("\\PC{0,20}", 0..5), member in 0..=i64::MAX as u64,
        ) {
            let member = crate::model::MemberId::new(member).unwrap();
            let review = |(id, text): (usize, &String)| crate::model::Review {
                id: id as i64, author: "Bo".into(), rating: 5, text: crate::model::one_line(text).into_owned(),
            };
            let map = super::super::reviews(member, &texts.iter().enumerate().map(review).collect::<Vec<_>>());
            prop_assert_eq!(usable(Operation::Read(Read::Reviews), 200, map.as_bytes()), Some(Ok(map.as_str())));
        }

        #[test]
        fn no_answer_panics_or_carries_a_control_character(status in 0u16..1000, body in proptest::collection::vec(any::<u8>(), 0..60)) {
            for operation in Operation::ALL {
                if let Some(Ok(text)) = usable(operation, status, &body) {
                    prop_assert!(!text.contains(char::is_control));
                }
            }
        }
    }
}
