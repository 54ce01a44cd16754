//! Compares two answers byte for byte, and says whether the contract expects the difference. What is printed of an answer
//! has no control characters and no key in it.

use serde::Serialize;

use super::cases::Case;
use super::exchange::Answer;

/// The most bytes of each side that are printed of a difference.
const MAX_SHOWN: usize = 60;

/// How an answer compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Same,
    /// They differ as the contract says: the gateway refuses the request itself.
    Expected,
    Differs,
    /// One of the two refused it for the moment only (12, 21).
    Limited,
    /// One of the two gave no answer.
    Unanswered,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verdict::Same => "same",
            Verdict::Expected => "differs, as the contract says",
            Verdict::Differs => "DIFFERS",
            Verdict::Limited => "limited, not compared",
            Verdict::Unanswered => "NO ANSWER",
        }
    }
}

/// One row of the table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) case: String,
    pub(super) verdict: Verdict,
    /// A sentence for each part that differs.
    pub(super) differences: Vec<String>,
    /// The origin refuses with status 200, and the gateway with another.
    #[serde(skip)]
    pub(super) is_status_of_refusal: bool,
}

impl Row {
    /// Compares the answers to a case. `key` is shown nowhere.
    pub(super) fn new(
        case: &Case,
        origin: &Result<Answer, String>,
        gateway: &Result<Answer, String>,
        key: &[u8],
    ) -> Row {
        let row =
            |verdict, differences| Row { case: case.name.clone(), verdict, differences, is_status_of_refusal: false };
        let no_answer = |who, why: &str| {
            row(Verdict::Unanswered, vec![format!("the {who} gave no answer: {}", shown(why.as_bytes(), key))])
        };
        let (origin, gateway) = match (origin, gateway) {
            (Err(why), _) => return no_answer("origin", why),
            (_, Err(why)) => return no_answer("gateway", why),
            (Ok(origin), Ok(gateway)) => (origin, gateway),
        };
        for (who, answer) in [("origin", origin), ("gateway", gateway)] {
            if answer.is_limited() {
                let why = format!("the {who} refused it for the moment: {}", quoted(answer, key));
                return row(Verdict::Limited, vec![why]);
            }
        }
        let mut differences = differences(origin, gateway, key);
        let verdict = match case.refused {
            _ if differences.is_empty() => Verdict::Same,
            Some(code) if gateway.code() == Some(code) => Verdict::Expected,
            Some(code) => {
                differences.push(format!("by the contract, the gateway's answer is {code:02}"));
                Verdict::Differs
            }
            None => Verdict::Differs,
        };
        let is_status_of_refusal =
            verdict == Verdict::Differs && gateway.code().is_some() && origin.status == 200 && gateway.status != 200;
        Row { is_status_of_refusal, ..row(verdict, differences) }
    }
}

fn differences(origin: &Answer, gateway: &Answer, key: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    if origin.status != gateway.status {
        found.push(format!("status: origin {}, gateway {}", origin.status, gateway.status));
    }
    if origin.content_type != gateway.content_type {
        let text = |answer: &Answer| answer.content_type.as_ref().map_or("none".to_owned(), |t| shown(t, key));
        found.push(format!("content-type: origin {}, gateway {}", text(origin), text(gateway)));
    }
    if origin.body != gateway.body {
        // The key is taken out before the parts that differ are cut out, so that no part of it is shown either.
        let (a, b) = (without_key(&origin.body, key), without_key(&gateway.body, key));
        let common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        let rest = a.len().min(b.len()) - common;
        let end = a.iter().rev().zip(b.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
        let part = |of: &[u8]| shown(&of[common..of.len() - end], &[]);
        found.push(format!("body, from byte {}: origin {}, gateway {}", common + 1, part(&a), part(&b)));
    }
    found
}

/// An answer in a message, without the key.
pub(super) fn quoted(answer: &Answer, key: &[u8]) -> String {
    format!("status {}, {}", answer.status, shown(&answer.body, key))
}

/// Bytes in quotes, escaped and cut.
fn shown(bytes: &[u8], key: &[u8]) -> String {
    let bytes = without_key(bytes, key);
    let text = bytes[..bytes.len().min(MAX_SHOWN)].escape_ascii();
    match bytes.len() {
        0 => "nothing".to_owned(),
        length if length > MAX_SHOWN => format!("\"{text}\"… ({length} bytes)"),
        _ => format!("\"{text}\""),
    }
}

fn without_key(bytes: &[u8], key: &[u8]) -> Vec<u8> {
    if key.is_empty() {
        return bytes.to_vec();
    }
    let mut clean = Vec::with_capacity(bytes.len());
    let mut from = 0;
    for at in memchr::memmem::find_iter(bytes, key) {
        clean.extend_from_slice(&bytes[from..at]);
        clean.extend_from_slice(b"[key]");
        from = at + key.len();
    }
    clean.extend_from_slice(&bytes[from..]);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MemberId;

    fn answer(status: u16, body: &str) -> Result<Answer, String> {
        Ok(Answer { status, content_type: None, body: body.into() })
    }

    #[test]
    fn the_bytes_that_differ_are_shown_and_the_key_never() {
        let case = Case::get_points(MemberId::new(7).unwrap());
        let compare = |a: &str, b: &str| {
            let row = Row::new(&case, &answer(200, a), &answer(200, b), b"secret");
            assert_eq!(row.verdict, Verdict::Differs);
            row.differences.join("\n")
        };
        assert_eq!(compare("1250\n", "1250"), "body, from byte 5: origin \"\\n\", gateway nothing");
        assert_eq!(compare("a-b-c", "a+b+c"), "body, from byte 2: origin \"-b-\", gateway \"+b+\"");
        assert_eq!(compare("aaa", "aa"), "body, from byte 3: origin \"a\", gateway nothing");
        assert_eq!(compare("\u{1b}[1m", ""), "body, from byte 1: origin \"\\x1b[1m\", gateway nothing");
        assert_eq!(compare("secret", "secres"), "body, from byte 1: origin \"[key]\", gateway \"secres\"");
        assert!(compare(&"x".repeat(100), "").ends_with("… (100 bytes), gateway nothing"));
    }

    #[test]
    fn a_refusal_of_the_gateway_alone_is_expected_only_with_the_contracts_code() {
        let case = Case { refused: Some(8), ..Case::get_points(MemberId::new(7).unwrap()) };
        let verdict = |gateway: &str| Row::new(&case, &answer(200, "3"), &answer(400, gateway), b"k").verdict;
        assert_eq!(verdict("08 | Param 'memberID' is provided more than once!"), Verdict::Expected);
        assert_eq!(verdict("04 | Param 'memberID' is not provided!"), Verdict::Differs);
        assert_eq!(Row::new(&case, &answer(200, "3"), &answer(200, "3"), b"k").verdict, Verdict::Same);
        assert_eq!(Row::new(&case, &Err("late".into()), &answer(200, "3"), b"k").verdict, Verdict::Unanswered);
    }

    #[test]
    fn a_refusal_for_the_moment_is_neither_alike_nor_different() {
        let case = Case { refused: Some(8), ..Case::get_points(MemberId::new(7).unwrap()) };
        let limit = "12 | Too many requests! Try again in 2 s.";
        for (origin, gateway) in [
            (answer(429, limit), answer(503, "21 | The service is not available. Try again later.")),
            (answer(429, limit), answer(400, "08 | Param 'memberID' is provided more than once!")),
            (answer(200, limit), answer(200, limit)),
            (answer(429, "slow down"), answer(200, "3")),
        ] {
            let row = Row::new(&case, &origin, &gateway, b"k");
            assert_eq!(row.verdict, Verdict::Limited);
            assert!(row.differences[0].contains(&quoted(origin.as_ref().unwrap(), b"k")), "{:?}", row.differences);
        }
    }
}
