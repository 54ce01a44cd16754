//! Checks a whole answer of an HTTP origin (contract section 1, "Upstream"): the text to pass on, a refusal of 02 to
//! 05, or the reason why it is not usable. Only a text that passes here is sent to a caller or kept in the cache. The
//! reason goes to the process log and quotes nothing of the answer (guarantee 9). Pure; `fuzz` compares it with a second
//! reading.

use super::{Answer, Fault, Operation};

/// The most of an origin's answer that is read (contract section 1, "Upstream").
pub const MAX_ORIGIN_ANSWER: usize = 1 << 20;

/// Why an answer is not usable that is longer than [`MAX_ORIGIN_ANSWER`].
pub const TOO_LONG: &str = "it is longer than 1 MiB";

/// Returns the text of an answer that may be passed on, or the spec's refusal that it carries (02 to 05, at any
/// status).
///
/// # Errors
/// Why it is neither, and so not usable.
pub fn parse_origin_answer(
    operation: Operation,
    status: u16,
    body: &[u8],
) -> Result<Result<&str, Fault>, &'static str> {
    if body.len() > MAX_ORIGIN_ANSWER {
        return Err(TOO_LONG);
    }
    let text = std::str::from_utf8(body).map_err(|_| "it is not UTF-8")?;
    let text = text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(text);
    if text.contains(char::is_control) {
        return Err("it is not one line without control characters");
    }
    if let Some(fault) = refusal(text) {
        return Ok(Err(fault));
    }
    if !(200..300).contains(&status) {
        return Err("expected a status of 2xx or a line of 02 to 05");
    }
    match operation.row().answer {
        Answer::Number => {
            let digits = text.strip_prefix('-').unwrap_or(text);
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err("expected digits");
            }
        }
        Answer::Map { .. } if !(text.len() > 1 && text.starts_with('{') && text.ends_with('}')) => {
            return Err("expected a map in braces");
        }
        // A refusal of another code (another gateway's 12, sent with 200) is not a success.
        Answer::Line if text.is_empty() || is_refusal(text) => return Err("expected a line that says what was done"),
        Answer::Map { .. } | Answer::Line => {}
    }
    Ok(Ok(text))
}

/// The refusal that a line `0N | …` means.
fn refusal(text: &str) -> Option<Fault> {
    let (code, _) = text.split_once(" | ")?;
    match code.as_bytes() {
        [b'0', digit @ b'2'..=b'5'] => Fault::of_code(digit - b'0'),
        _ => None,
    }
}

/// Whether a line has the form of a refusal of any code.
fn is_refusal(text: &str) -> bool {
    matches!(text.as_bytes(), [a, b, b' ', b'|', b' ', ..] if a.is_ascii_digit() && b.is_ascii_digit())
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POINTS: Operation = Operation::GetPoints;
    const WARNS: Operation = Operation::GetWarns;

    #[test]
    fn a_good_answer_is_passed_on_without_its_newline() {
        assert_eq!(parse_origin_answer(POINTS, 200, b"1250"), Ok(Ok("1250")));
        assert_eq!(parse_origin_answer(POINTS, 201, b"-3\n"), Ok(Ok("-3")));
        assert_eq!(parse_origin_answer(POINTS, 200, b"3\r\n"), Ok(Ok("3")));
        assert_eq!(parse_origin_answer(WARNS, 200, b"{}"), Ok(Ok("{}")));
        assert_eq!(parse_origin_answer(Operation::SetPoints, 200, b"done"), Ok(Ok("done")));
    }

    #[test]
    fn a_line_of_the_spec_counts_at_any_status() {
        for status in [200, 401, 403, 500, 503] {
            let body = "03 | Error while retrieving guild using this API key. Is X still on guild?";
            assert_eq!(parse_origin_answer(POINTS, status, body.as_bytes()), Ok(Err(Fault::GuildDeparted)));
        }
        assert_eq!(
            parse_origin_answer(Operation::SetPoints, 200, b"02 | Incorrect API key!\n"),
            Ok(Err(Fault::IncorrectKey))
        );
    }

    #[test]
    fn what_is_no_answer_is_not_passed_on() {
        for body in [&b""[..], b"-", b"12a", b"1\n\n", b"1\n2", b"\xff", b"01 | No api key", b"06 | x", b"<html>"] {
            assert!(parse_origin_answer(POINTS, 200, body).is_err(), "{body:?}");
        }
        assert!(parse_origin_answer(POINTS, 500, b"1250").is_err());
        assert!(parse_origin_answer(POINTS, 304, b"1250").is_err());
        assert!(parse_origin_answer(WARNS, 200, b"{").is_err());
        assert!(parse_origin_answer(WARNS, 200, b"{a\tb}").is_err());
        assert!(parse_origin_answer(Operation::SetPoints, 200, b"\n").is_err());
        assert!(parse_origin_answer(Operation::SetPoints, 200, b"12 | Too many requests! Try again in 1 s.").is_err());
        let long = vec![b'1'; MAX_ORIGIN_ANSWER + 1];
        assert!(parse_origin_answer(POINTS, 200, &long).is_err());
        assert_eq!(parse_origin_answer(POINTS, 200, &long[1..]).map(|r| r.is_ok()), Ok(true));
    }

    proptest! {
        #[test]
        fn a_refusal_rendered_here_is_read_as_the_same_by_the_next_gateway(
            code in 2u8..=5, status in 100u16..600, service_name in "[ -~]{0,20}", newline: bool,
        ) {
            let fault = Fault::of_code(code).unwrap();
            let wording = super::super::Wording { service_name, key_command: String::new() };
            let line = fault.line(&wording) + if newline { "\n" } else { "" };
            for operation in Operation::ALL {
                prop_assert_eq!(parse_origin_answer(operation, status, line.as_bytes()), Ok(Err(fault)));
            }
        }

        #[test]
        fn a_map_rendered_here_is_passed_on_to_the_letter_by_the_next_gateway(
            texts in proptest::collection::vec("\\PC{0,20}", 0..5), member in 0..=i64::MAX as u64,
        ) {
            let member = crate::model::MemberId::new(member).unwrap();
            let review = |(id, text): (usize, &String)| crate::model::Note {
                id: id as i64, author: "Bo".into(), number: 5, text: crate::model::one_line(text).into_owned(),
            };
            let map = crate::model::REVIEW.answer(member, &texts.iter().enumerate().map(review).collect::<Vec<_>>());
            prop_assert_eq!(parse_origin_answer(Operation::GetReviews, 200, map.as_bytes()), Ok(Ok(map.as_str())));
        }

        #[test]
        fn no_answer_panics_or_carries_a_control_character(status in 0u16..1000, body in proptest::collection::vec(any::<u8>(), 0..60)) {
            for operation in Operation::ALL {
                if let Ok(Ok(text)) = parse_origin_answer(operation, status, &body) {
                    prop_assert!(!text.contains(char::is_control));
                }
            }
        }
    }
}
