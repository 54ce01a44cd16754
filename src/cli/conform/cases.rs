//! The requests that are compared, as one list: the reads, and each bad input of the contract (section 1). Those that
//! could write are in a list of their own, which is used with `--writes` only.

use crate::model::MemberId;
use crate::wire::Operation;

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

/// What the contract says of the gateway's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// It is the origin's.
    OriginAnswer,
    /// The gateway itself refuses it with this code, whatever the origin would do.
    Refusal(u8),
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
    pub(super) expected: Expected,
    /// Whether it may change anything at an origin, however lenient that is.
    pub(super) may_write: bool,
}

impl Case {
    fn new(name: impl Into<String>, operation: Operation, body: String) -> Case {
        Case {
            name: name.into(),
            method: "POST",
            target: operation.name().to_owned(),
            key: KeySent::Right,
            content_type: Some(FORM),
            content_encoding: None,
            body,
            expected: Expected::OriginAnswer,
            may_write: operation.is_write(),
        }
    }

    /// The gateway refuses it with `code`.
    fn refused(mut self, code: u8) -> Case {
        self.expected = Expected::Refusal(code);
        self
    }

    fn key(mut self, key: KeySent) -> Case {
        self.key = key;
        self
    }

    fn content_type(mut self, content_type: Option<&'static str>) -> Case {
        self.content_type = content_type;
        self
    }

    /// The member's points, asked for as any caller does.
    pub(super) fn get_points(member: MemberId) -> Case {
        Case::new("getPoints", Operation::GetPoints, format!("memberID={member}"))
    }

    pub(super) fn set_points(name: &str, member: MemberId, amount: i64) -> Case {
        Case::new(name, Operation::SetPoints, format!("memberID={member}&amount={amount}"))
    }
}

/// Requests that change nothing anywhere.
pub(super) fn reads(member: MemberId) -> Vec<Case> {
    let m = format!("memberID={member}");
    let each = || Operation::ALL.into_iter().filter(|operation| !operation.is_write());
    let read = |name: &str, body: String| Case::new(name, Operation::GetPoints, body);
    let get = |name| read(name, m.clone());
    let at = |name, target: &str| Case { target: target.to_owned(), ..get(name) };
    let encoded: String = member.to_string().bytes().map(|digit| format!("%{digit:x}")).collect();
    let mut cases: Vec<Case> = each().map(|operation| Case::new(operation.name(), operation, m.clone())).collect();
    cases.extend(
        each().map(|operation| Case::new(format!("no memberID, {}", operation.name()), operation, String::new())),
    );
    cases.extend([
        read("a member that nobody knows", "memberID=1".into()),
        read("leading zeros", format!("memberID=00{member}")),
        read("percent-encoded digits", format!("memberID={encoded}")),
        read("an unknown parameter", format!("{m}&other=1")),
        at("other parameters in the query string", "getPoints?memberID=1&x=y"),
        get("charset in Content-Type").content_type(Some("application/x-www-form-urlencoded; charset=utf-8")),
        get("Content-Type in capitals").content_type(Some("Application/X-WWW-Form-Urlencoded")),
        get("no Content-Type").content_type(None),
        // Bad input that the spec knows: callers may depend on how it is refused.
        read("letters as memberID", "memberID=abc".into()),
        get("no key").key(KeySent::None),
        get("a wrong key").key(KeySent::Wrong),
        get("Bearer before the key").key(KeySent::Bearer),
        // Bad input that the gateway refuses itself.
        read("an empty memberID", "memberID=".into()).refused(4),
        at("memberID in the query string alone", &format!("getPoints?{m}")).without_body().refused(4),
        read("memberID twice", format!("{m}&{m}")).refused(8),
        read("a negative memberID", "memberID=-1".into()).refused(5),
        read("a memberID with a plus sign", format!("memberID=%2B{member}")).refused(5),
        read("a memberID with a fraction", format!("{m}.0")).refused(5),
        read("a memberID with a space", format!("memberID=+{member}")).refused(5),
        read("a memberID of 2^63", "memberID=9223372036854775808".into()).refused(5),
        get("an empty key").key(KeySent::Empty).refused(1),
        get("two Authorization fields").key(KeySent::Twice).refused(16),
        Case { method: "GET", ..at("method GET", &format!("getPoints?{m}")) }.without_body().refused(11),
        Case { method: "PUT", ..get("method PUT") }.refused(11),
        at("an unknown path", "getNothing").refused(10),
        at("the path in small letters", "getpoints").refused(10),
        at("a slash after the path", "getPoints/").refused(10),
        Case { body: format!("{{\"memberID\":{member}}}"), ..get("JSON") }
            .content_type(Some("application/json"))
            .refused(13),
        Case { content_encoding: Some("gzip"), ..get("Content-Encoding") }.refused(13),
        read("a body over 4 KiB", format!("{m}&pad={}", "x".repeat(TOO_LARGE))).refused(14),
    ]);
    cases
}

impl Case {
    fn without_body(self) -> Case {
        Case { body: String::new(), ..self }
    }
}

/// The amount that is written besides `points`.
pub(super) fn another_amount(points: i64) -> i64 {
    points.checked_add(1).unwrap_or_else(|| points - 1)
}

/// Requests that write, or that a lenient origin may take for a write. `points` is what the member has.
pub(super) fn writes(member: MemberId, points: i64) -> Vec<Case> {
    let set = |name: &str, amount: &str| Case::new(name, Operation::SetPoints, format!("memberID={member}{amount}"));
    vec![
        Case::set_points("setPoints, the same amount", member, points),
        Case::set_points("setPoints, another amount", member, another_amount(points)),
        Case::new("getPoints after it", Operation::GetPoints, format!("memberID={member}")),
        set("no amount", ""),
        set("letters as amount", "&amount=abc"),
        Case { key: KeySent::Wrong, ..Case::set_points("setPoints with a wrong key", member, points) },
        set("an empty amount", "&amount=").refused(6),
        set("amount twice", &format!("&amount={points}&amount={points}")).refused(8),
        set("an amount with a fraction", &format!("&amount={points}.0")).refused(7),
        set("an amount of 2^63", "&amount=9223372036854775808").refused(7),
        Case::new("setPoints, no memberID", Operation::SetPoints, format!("amount={points}")),
    ]
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
