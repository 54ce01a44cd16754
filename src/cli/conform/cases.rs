//! The requests that are compared, as one list: the reads, and each bad input of the contract (section 1). Those that
//! could write are in a list of their own, which is used with `--writes` only. The operations are those of the table.

use crate::model::MemberId;
use crate::wire::{Fault, Operation, Param};

const FORM: &str = "application/x-www-form-urlencoded";

/// More than a body may have by default (`server.max_body`).
const TOO_LARGE: usize = 5000;

/// What a case sends as its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeySent {
    Right,
    /// In two header fields.
    Twice,
    Bearer,
    Wrong,
    Empty,
    None,
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) method: &'static str,
    /// After the upstream's path and a slash.
    pub(super) target: String,
    pub(super) key: KeySent,
    pub(super) content_type: Option<&'static str>,
    pub(super) content_encoding: Option<&'static str>,
    pub(super) body: String,
    /// The code with which the gateway itself refuses it, by the contract; `None`: the answer is the origin's.
    pub(super) refused: Option<u8>,
    /// Whether it may change anything at an origin, however lenient that is.
    pub(super) may_write: bool,
}

impl Case {
    fn new(name: impl Into<String>, operation: Operation, body: impl Into<String>) -> Case {
        Case {
            name: name.into(),
            method: "POST",
            target: operation.name().to_owned(),
            key: KeySent::Right,
            content_type: Some(FORM),
            content_encoding: None,
            body: body.into(),
            refused: None,
            may_write: operation.is_write(),
        }
    }

    fn refused(self, code: u8) -> Case {
        Case { refused: Some(code), ..self }
    }

    /// The member's points, asked for as any caller does.
    pub(super) fn get_points(member: MemberId) -> Case {
        Case::new("getPoints", Operation::GetPoints, format!("memberID={member}"))
    }

    pub(super) fn set_points(name: &str, member: MemberId, amount: i64) -> Case {
        Case::new(name, Operation::SetPoints, format!("memberID={member}&amount={amount}"))
    }
}

/// Each bad value of a parameter. `others`: the other parameters; `good`: a good value.
fn bad_values(operation: Operation, param: Param, others: &str, good: &str) -> Vec<Case> {
    let (name, missing, not_integer) = match param {
        Param::MemberId => (param.name(), Fault::MemberMissing, Fault::MemberNotInteger),
        Param::Amount => (param.name(), Fault::AmountMissing, Fault::AmountNotInteger),
    };
    let case = |what: &str, given: String| Case::new(format!("{name} {what}"), operation, format!("{others}{given}"));
    let value = |what, value: &str| case(what, format!("{name}={value}"));
    let not_integer = |what, text: &str| value(what, text).refused(not_integer.code());
    vec![
        value("of letters", "abc"), // callers may depend on how the service refuses it
        value("empty", "").refused(missing.code()),
        case("twice", format!("{name}={good}&{name}={good}")).refused(Fault::Repeated(param).code()),
        not_integer("with a plus sign", &format!("%2B{good}")),
        not_integer("with a fraction", &format!("{good}.0")),
        not_integer("with a space", &format!("+{good}")),
        not_integer("of 2^63", "9223372036854775808"),
    ]
}

/// Requests that change nothing anywhere.
pub(super) fn reads(member: MemberId) -> Vec<Case> {
    let (m, get) = (format!("memberID={member}"), Operation::GetPoints);
    let read = |name: &str| Case { name: name.to_owned(), ..Case::get_points(member) };
    let with = |name: &str, body: String| Case::new(name, get, body);
    let at = |name: &str, target: &str| Case { target: target.to_owned(), ..read(name) };
    let keyed = |name: &str, key| Case { key, ..read(name) };
    let typed = |name: &str, content_type| Case { content_type, ..read(name) };
    let no_body = |case: Case| Case { body: String::new(), ..case };
    let encoded: String = member.to_string().bytes().map(|digit| format!("%{digit:x}")).collect();
    let each = || Operation::ALL.into_iter().filter(|operation| !operation.is_write());
    let mut cases: Vec<Case> = each().map(|operation| Case::new(operation.name(), operation, &*m)).collect();
    cases.extend(each().map(|operation| Case::new(format!("{}, no memberID", operation.name()), operation, "")));
    cases.extend(bad_values(get, Param::MemberId, "", &member.to_string()));
    cases.extend([
        with("a member that nobody knows", "memberID=1".into()),
        with("leading zeros", format!("memberID=00{member}")),
        with("percent-encoded digits", format!("memberID={encoded}")),
        with("an unknown parameter", format!("{m}&other=1")),
        at("other parameters in the query string", "getPoints?memberID=1&x=y"),
        typed("charset in Content-Type", Some("application/x-www-form-urlencoded; charset=utf-8")),
        typed("Content-Type in capitals", Some("Application/X-WWW-Form-Urlencoded")),
        typed("no Content-Type", None),
        keyed("no key", KeySent::None),
        keyed("a wrong key", KeySent::Wrong),
        keyed("Bearer before the key", KeySent::Bearer),
        // Bad input that the gateway refuses itself.
        with("a negative memberID", "memberID=-1".into()).refused(5),
        no_body(at("memberID in the query string alone", &format!("getPoints?{m}"))).refused(4),
        keyed("an empty key", KeySent::Empty).refused(1),
        keyed("two Authorization fields", KeySent::Twice).refused(16),
        no_body(Case { method: "GET", ..at("method GET", &format!("getPoints?{m}")) }).refused(11),
        Case { method: "PUT", ..read("method PUT") }.refused(11),
        at("an unknown path", "getNothing").refused(10),
        at("the path in small letters", "getpoints").refused(10),
        at("a slash after the path", "getPoints/").refused(10),
        Case { body: format!("{{\"memberID\":{member}}}"), ..typed("JSON", Some("application/json")) }.refused(13),
        Case { content_encoding: Some("gzip"), ..read("Content-Encoding") }.refused(13),
        with("a body over 4 KiB", format!("{m}&pad={}", "x".repeat(TOO_LARGE))).refused(14),
    ]);
    cases
}

/// Requests that write, or that a lenient origin may take for a write. `points` is what the member has.
pub(super) fn writes(member: MemberId, points: i64) -> Vec<Case> {
    let another = points.checked_add(1).unwrap_or_else(|| points - 1);
    let (set, m) = (Operation::SetPoints, format!("memberID={member}"));
    let mut cases = vec![
        Case::set_points("setPoints, the same amount", member, points),
        Case::set_points("setPoints, another amount", member, another),
        Case::new("getPoints after it", Operation::GetPoints, &*m),
        Case { key: KeySent::Wrong, ..Case::set_points("setPoints with a wrong key", member, points) },
        Case::new("setPoints, no memberID", set, format!("amount={points}")),
        Case::new("setPoints, no amount", set, &*m),
    ];
    cases.extend(bad_values(set, Param::Amount, &format!("{m}&"), &points.to_string()));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_amount_is_written_whatever_the_points_are() {
        for (points, other) in [(i64::MAX, i64::MAX - 1), (i64::MIN, i64::MIN + 1), (-1, 0)] {
            let cases = writes(MemberId::new(7).unwrap(), points);
            assert_eq!(cases[1].body, format!("memberID=7&amount={other}"));
        }
    }

    #[test]
    fn no_read_can_write_and_every_write_is_known_as_one() {
        let member = MemberId::new(7).unwrap();
        assert!(reads(member).iter().all(|case| !case.may_write && !case.target.to_lowercase().contains("set")));
        assert!(writes(member, 3).iter().all(|case| case.may_write == case.target.starts_with("setPoints")));
        let mut names: Vec<_> =
            reads(member).iter().chain(&writes(member, i64::MAX)).map(|case| case.name.clone()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
