//! Compares two answers byte for byte, and says whether the contract expects the difference. What is printed of an answer
//! has no control characters and no key in it.

use super::exchange::Answer;

/// The most characters of each side that are printed of a difference.
const MAX_SHOWN: usize = 60;

/// How the answers compare.
pub(super) const SAME: &str = "same";

/// The gateway refuses the request itself.
pub(super) const EXPECTED: &str = "differs, as the contract says";

pub(super) const DIFFERS: &str = "DIFFERS";

/// One of the two gave no answer, or refused it for the moment only (12, 21).
pub(super) const NOT_COMPARED: &str = "NOT COMPARED";

/// Compares the answers to a case that the gateway refuses itself with the code `refused` (0: it does not). A sentence tells
/// each part that differs; `key` is in none.
pub(super) fn compare(
    refused: u8,
    origin: &Result<Answer, String>,
    gateway: &Result<Answer, String>,
    key: &str,
) -> (&'static str, Vec<String>) {
    let (origin, gateway) = match (origin, gateway) {
        (Err(why), _) => return (NOT_COMPARED, vec![format!("the origin gave no answer: {why}")]),
        (_, Err(why)) => return (NOT_COMPARED, vec![format!("the gateway gave no answer: {why}")]),
        (Ok(origin), Ok(gateway)) => (origin, gateway),
    };
    for (who, answer) in [("origin", origin), ("gateway", gateway)] {
        if answer.is_limited() {
            let why = format!("the {who} refused it for the moment: {}", answer.quoted(key));
            return (NOT_COMPARED, vec![why]);
        }
    }
    let mut found = differences(origin, gateway, key);
    match refused {
        _ if found.is_empty() => (SAME, found),
        code if gateway.code() == Some(code) => (EXPECTED, found),
        code => {
            found.extend((code > 0).then(|| format!("by the contract, the gateway's answer is {code:02}")));
            (DIFFERS, found)
        }
    }
}

fn differences(origin: &Answer, gateway: &Answer, key: &str) -> Vec<String> {
    let mut found = Vec::new();
    if origin.status != gateway.status {
        found.push(format!("status: origin {}, gateway {}", origin.status, gateway.status));
    }
    if origin.content_type != gateway.content_type {
        let [a, b] = [origin, gateway].map(|answer| shown(&text(&answer.content_type, key)));
        found.push(format!("content-type: origin {a}, gateway {b}"));
    }
    if origin.body != gateway.body {
        let at = common(origin.body.iter(), gateway.body.iter());
        // The key is taken out before the part that differs is cut out, so that no part of it is shown either.
        let (a, b) = (text(&origin.body, key), text(&gateway.body, key));
        let same = common(a.chars(), b.chars());
        let part = |of: &str| shown(&of.chars().skip(same).collect::<String>());
        found.push(format!("body, from byte {}: origin {}, gateway {}", at + 1, part(&a), part(&b)));
    }
    found
}

/// How many items from the first on are equal.
fn common<T: PartialEq>(a: impl Iterator<Item = T>, b: impl Iterator<Item = T>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

/// A character for each byte, and no key.
fn text(bytes: &[u8], key: &str) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect::<String>().replace(key, "[key]")
}

/// In quotes, escaped and cut.
fn shown(text: &str) -> String {
    let begin: String = text.chars().take(MAX_SHOWN).collect();
    format!("\"{}\"{}", begin.escape_default(), if begin.len() < text.len() { "…" } else { "" })
}

impl Answer {
    /// As a message tells it, without the key.
    pub(super) fn quoted(&self, key: &str) -> String {
        format!("status {}, {}", self.status, shown(&text(&self.body, key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Result<Answer, String> {
        Ok(Answer { status, content_type: Vec::new(), body: body.into() })
    }

    #[test]
    fn the_bytes_that_differ_are_shown_and_the_key_never() {
        let told = |a: &str, b: &str| {
            let (verdict, differences) = compare(0, &answer(200, a), &answer(200, b), "secret");
            assert_eq!(verdict, DIFFERS);
            differences.join("\n")
        };
        assert_eq!(told("1250\n", "1250"), "body, from byte 5: origin \"\\n\", gateway \"\"");
        assert_eq!(told("a-b-c", "a+b+c"), "body, from byte 2: origin \"-b-c\", gateway \"+b+c\"");
        assert_eq!(told("\u{1b}[1m", ""), "body, from byte 1: origin \"\\u{1b}[1m\", gateway \"\"");
        assert_eq!(told("secret", "secres"), "body, from byte 6: origin \"[key]\", gateway \"secres\"");
        assert!(told(&"x".repeat(100), "").contains("x\"…, gateway \"\""));
    }

    #[test]
    fn only_the_contracts_refusal_of_the_gateway_is_expected_and_no_other_for_the_moment_compared() {
        let limit = "12 | Too many requests! Try again in 2 s.";
        let repeated = "08 | Param 'memberID' is provided more than once!";
        for (origin, gateway, verdict) in [
            (answer(200, "3"), answer(400, repeated), EXPECTED),
            (answer(200, "3"), answer(400, "04 | Param 'memberID' is not provided!"), DIFFERS),
            (answer(200, "3"), answer(200, "3"), SAME),
            (Err("late".into()), answer(200, "3"), NOT_COMPARED),
            (answer(429, limit), answer(400, repeated), NOT_COMPARED),
            (answer(200, limit), answer(200, limit), NOT_COMPARED),
            (answer(200, "3"), answer(503, "21 | The service is not available."), NOT_COMPARED),
        ] {
            assert_eq!(compare(8, &origin, &gateway, "k").0, verdict, "{origin:?} {gateway:?}");
        }
    }
}
