//! Compares the check of an origin's answer with a second implementation of the contract's "Upstream", and the first
//! expiry of a map with a simple search.

use super::super::{Wording, first_expiry};
use super::*;
use crate::model::MemberId;

fuzz_target!(origin_answer, 20_000, check);

/// The input: which operation, the status, then the body.
fn check(input: &[u8]) {
    let [operation, status, body @ ..] = input else { return };
    let operation = Operation::ALL[usize::from(*operation) % Operation::ALL.len()];
    let status = 100 + 2 * u16::from(*status);
    let answer = parse_origin_answer(operation, status, body);
    assert_eq!(answer.ok().map(|a| a.map(str::to_owned)), model(operation, status, body));
    if let Ok(Ok(text)) = answer {
        assert!(text.len() <= body.len() && !text.contains(['\n', '\r', '\0']), "it is one line");
        assert_eq!(parse_origin_answer(operation, status, text.as_bytes()), answer, "the next gateway passes it on");
    }
    if let Ok(Err(fault)) = answer {
        let wording = Wording { service_name: "S".into(), key_command: "K".into() };
        assert_eq!(parse_origin_answer(operation, 200, fault.line(&wording).as_bytes()), Ok(Err(fault)));
    }
    if let Err(why) = answer {
        assert!(why.to_string().len() < 100, "it does not repeat the answer");
    }
    if let Ok(text) = std::str::from_utf8(body) {
        for member in [7, 0] {
            let member = MemberId::new(member).unwrap();
            assert_eq!(first_expiry(text, "warns", member), expiry_model(text, member));
        }
    }
}

fn model(operation: Operation, status: u16, body: &[u8]) -> Option<Result<String, Fault>> {
    let mut chars: Vec<char> = String::from_utf8(body.to_vec()).ok()?.chars().collect();
    match chars[..] {
        [.., '\r', '\n'] => chars.truncate(chars.len() - 2),
        [.., '\n'] => chars.truncate(chars.len() - 1),
        _ => {}
    }
    if chars.iter().any(|c| matches!(*c, '\0'..='\x1f' | '\x7f'..='\u{9f}')) {
        return None;
    }
    let refusal = match chars[..] {
        ['0', '2', ' ', '|', ' ', ..] => Some(Fault::IncorrectKey),
        ['0', '3', ' ', '|', ' ', ..] => Some(Fault::GuildDeparted),
        ['0', '4', ' ', '|', ' ', ..] => Some(Fault::MemberMissing),
        ['0', '5', ' ', '|', ' ', ..] => Some(Fault::MemberNotInteger),
        _ => None,
    };
    if let Some(fault) = refusal {
        return Some(Err(fault));
    }
    let fits = match (operation.row().answer, &chars[..]) {
        (_, []) => false,
        (Answer::Number, ['-', digits @ ..] | digits) => !digits.is_empty() && digits.iter().all(char::is_ascii_digit),
        (Answer::Map { .. }, all) => matches!(all, ['{', .., '}']),
        (Answer::Line, ['0'..='9', '0'..='9', ' ', '|', ' ', ..]) => false,
        (Answer::Line, _) => true,
    };
    (status / 100 == 2 && fits).then(|| Ok(chars.into_iter().collect()))
}

/// The text between the last `_` and the `=` of each warn's key, and that in each entry's end.
fn expiry_model(text: &str, member: MemberId) -> Option<i64> {
    let begin = format!("warns_{member}_id_");
    let places = (0..text.len()).filter(|at| text.get(*at..).is_some_and(|rest| rest.starts_with(&begin)));
    let in_keys = places.filter_map(|at| {
        let (key, _) = text[at + begin.len()..].split_once('=')?;
        key.rsplit_once('_')?.1.parse().ok()
    });
    let at_ends = [")}", "), warns_"].into_iter().flat_map(|end| {
        let places = text.match_indices(end);
        places.filter_map(|(at, _)| text[..at].rsplit_once("(Expires ")?.1.parse::<i64>().ok())
    });
    in_keys.chain(at_ends).min()
}
