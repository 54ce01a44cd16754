//! The requests that are compared, as one table: the reads, and each bad input of the contract (section 1). Those that
//! could write are in a list of their own, which is used with `--writes` only. The operations are those of the table.

use std::borrow::Cow;

use crate::wire::{Fault, Operation, Param};

const FORM: &str = "application/x-www-form-urlencoded";

/// One request. In its target, key and body, [`Values`] stand for what is in braces.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: Cow<'static, str>,
    pub(super) method: &'static str,
    /// After the upstream's path and a slash.
    pub(super) target: &'static str,
    /// Instead of both, for what is no operation.
    pub(super) path: Option<String>,
    /// The `Authorization` fields.
    pub(super) key: &'static [&'static str],
    /// Empty: none.
    pub(super) content_type: &'static str,
    pub(super) content_encoding: &'static str,
    pub(super) body: Cow<'static, str>,
    /// The code with which the gateway itself refuses it, by the contract; 0: the answer is the origin's.
    pub(super) refused: u8,
}

/// What stands for the braces.
pub(super) struct Values {
    pub(super) key: String,
    pub(super) member: String,
    pub(super) points: i64,
}

impl Values {
    pub(super) fn fill(&self, text: &str) -> String {
        let Values { key, member, points } = self;
        let encoded: String = member.bytes().map(|digit| format!("%{digit:x}")).collect();
        // It is another amount whatever the points are, and more than a body may have by default (server.max_body).
        let (another, long) = (points.checked_add(1).unwrap_or(i64::MAX - 1).to_string(), "x".repeat(5000));
        let text =
            text.replace("{m}", member).replace("{encoded m}", &encoded).replace("{points}", &points.to_string());
        text.replace("{another}", &another).replace("{long}", &long).replace("{key}", key)
    }
}

/// A right request, of which the others are changes.
pub(super) const GET_POINTS: Case = Case {
    name: Cow::Borrowed("getPoints"),
    method: "POST",
    target: "getPoints",
    path: None,
    key: &["{key}"],
    content_type: FORM,
    content_encoding: "",
    body: Cow::Borrowed("memberID={m}"),
    refused: 0,
};

/// Sets the points to what they were.
pub(super) const SET_POINTS: Case = Case {
    name: Cow::Borrowed("setPoints, the same amount"),
    target: "setPoints",
    body: Cow::Borrowed("memberID={m}&amount={points}"),
    ..GET_POINTS
};

impl Case {
    fn named(self, name: impl Into<Cow<'static, str>>) -> Self {
        Case { name: name.into(), ..self }
    }

    fn body(self, body: impl Into<Cow<'static, str>>) -> Self {
        Case { body: body.into(), ..self }
    }

    fn refused(self, refused: u8) -> Self {
        Case { refused, ..self }
    }
}

/// Each bad value of a parameter of `case`. `others`: the other parameters; `good`: a good value.
fn bad_values(case: Case, param: Param, others: &str, good: &str) -> Vec<Case> {
    let (name, missing, not_integer) = match param {
        Param::MemberId => (param.name(), Fault::MemberMissing, Fault::MemberNotInteger),
        Param::Amount => (param.name(), Fault::AmountMissing, Fault::AmountNotInteger),
    };
    let not_integer = not_integer.code();
    let values = [
        ("of letters", "abc".to_owned(), 0), // callers may depend on how the service refuses it
        ("empty", String::new(), missing.code()),
        ("twice", format!("{good}&{name}={good}"), Fault::Repeated(param).code()),
        ("with a plus sign", format!("%2B{good}"), not_integer),
        ("with a fraction", format!("{good}.0"), not_integer),
        ("with a space", format!("+{good}"), not_integer),
        ("of 2^63", "9223372036854775808".to_owned(), not_integer),
    ];
    let bad = |(what, value, code)| {
        case.clone().named(format!("{name} {what}")).body(format!("{others}{name}={value}")).refused(code)
    };
    values.map(bad).into()
}

/// Requests that change nothing anywhere.
pub(super) fn reads() -> Vec<Case> {
    let read = |name: &'static str| GET_POINTS.named(name);
    let mut cases = Vec::new();
    for target in Operation::ALL.into_iter().filter(|operation| !operation.is_write()).map(Operation::name) {
        cases.push(Case { target, ..read(target) });
        cases.push(Case { target, ..GET_POINTS.named(format!("{target}, no memberID")).body("") });
    }
    cases.extend(bad_values(GET_POINTS, Param::MemberId, "", "{m}"));
    cases.extend([
        read("a member that nobody knows").body("memberID=1"),
        read("leading zeros").body("memberID=00{m}"),
        read("percent-encoded digits").body("memberID={encoded m}"),
        read("an unknown parameter").body("memberID={m}&other=1"),
        Case { target: "getPoints?memberID=1&x=y", ..read("other parameters in the query string") },
        Case { content_type: "application/x-www-form-urlencoded; charset=utf-8", ..read("charset in Content-Type") },
        Case { content_type: "Application/X-WWW-Form-Urlencoded", ..read("Content-Type in capitals") },
        Case { content_type: "", ..read("no Content-Type") },
        Case { key: &[], ..read("no key") },
        Case { key: &["guildgate-conform-wrong-key"], ..read("a wrong key") },
        Case { key: &["Bearer {key}"], ..read("Bearer before the key") },
        // Bad input that the gateway refuses itself.
        read("a negative memberID").body("memberID=-1").refused(5),
        Case { target: "getPoints?memberID={m}", ..read("memberID in the query string alone").body("").refused(4) },
        Case { key: &[""], ..read("an empty key").refused(1) },
        Case { key: &["{key}", "{key}"], ..read("two Authorization fields").refused(16) },
        Case { method: "GET", target: "getPoints?memberID={m}", ..read("method GET").body("").refused(11) },
        Case { method: "PUT", ..read("method PUT").refused(11) },
        Case { target: "getNothing", ..read("an unknown path").refused(10) },
        Case { target: "getpoints", ..read("the path in small letters").refused(10) },
        Case { target: "getPoints/", ..read("a slash after the path").refused(10) },
        Case { content_type: "application/json", ..read("JSON").body("{\"memberID\":{m}}").refused(13) },
        Case { content_encoding: "gzip", ..read("Content-Encoding").refused(13) },
        read("a body over 4 KiB").body("memberID={m}&pad={long}").refused(14),
    ]);
    cases
}

/// A request for what is no operation.
pub(super) fn passed(path: &str) -> Case {
    let case = GET_POINTS.named(format!("GET {path}")).body("");
    Case { method: "GET", path: Some(path.to_owned()), content_type: "", ..case }
}

/// Requests that write, or that a lenient origin may take for a write.
pub(super) fn writes() -> Vec<Case> {
    let mut cases = vec![
        SET_POINTS,
        SET_POINTS.named("setPoints, another amount").body("memberID={m}&amount={another}"),
        GET_POINTS.named("getPoints after it"),
        Case { key: &["guildgate-conform-wrong-key"], ..SET_POINTS.named("setPoints with a wrong key") },
        SET_POINTS.named("setPoints, no memberID").body("amount={points}"),
        SET_POINTS.named("setPoints, no amount").body("memberID={m}"),
    ];
    cases.extend(bad_values(SET_POINTS, Param::Amount, "memberID={m}&", "{points}"));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_amount_is_written_whatever_the_points_are() {
        for (points, other) in [(i64::MAX, i64::MAX - 1), (i64::MIN, i64::MIN + 1), (-1, 0)] {
            let values = Values { key: String::new(), member: "7".to_owned(), points };
            assert_eq!(values.fill(&writes()[1].body), format!("memberID=7&amount={other}"));
        }
    }

    #[test]
    fn no_read_can_write_and_each_case_has_a_name() {
        assert!(reads().iter().all(|case| !case.target.to_lowercase().contains("set")));
        let mut names: Vec<_> = reads().into_iter().chain(writes()).map(|case| case.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
