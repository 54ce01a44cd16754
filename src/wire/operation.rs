//! The operations of the service, as one table: what callers send and get, how long an answer is fresh, and what data it
//! is about. Every other module asks the table, so another operation is another row. The form body that is sent to an
//! origin is made here, and contains nothing else of the caller's. Pure.

use std::time::Duration;

use self::Operation::{GetPoints, GetReviews, GetWarns, Pass, PassWrite, SetPoints};
use serde::{Deserialize, Serialize};

use crate::model::{MemberId, NoteKind, REVIEW, Scope, WARN};

/// An operation: the number of its row. Logs have its name. What is passed on counts as two more, which no path names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operation {
    #[default]
    GetPoints,
    SetPoints,
    GetWarns,
    GetReviews,
    /// A request that is no operation and goes on to an upstream as it came.
    Pass,
    /// The same with a method that may change something there.
    PassWrite,
}

/// One row of the table.
#[derive(Debug)]
pub struct Row {
    operation: Operation,
    /// In the path and in answers.
    name: &'static str,
    pub params: &'static [Param],
    /// The least scope that may use it (contract section 1, code 15).
    pub scope: Scope,
    pub answer: Answer,
    pub kind: Kind,
}

/// What an operation answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `-?` and digits.
    Number,
    /// Entries in braces. Those that expire have their expiry in their keys.
    Map { expires: bool },
    /// A sentence that says what was done.
    Line,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It changes nothing, and its answers are cached.
    Read {
        /// The name of its section in `[cache]`, with which each key of a map begins.
        section: &'static str,
        /// How long an answer is fresh, and for how long after that it may stand in for a failed origin, by default.
        ttl: Duration,
        stale_if_error: Duration,
        source: Source,
    },
    /// It sets a member's points.
    Write {
        /// The reads whose cached answers about the member it invalidates.
        invalidates: &'static [Operation],
    },
    /// It goes on as it came.
    Pass { is_write: bool },
}

/// What the built-in backend reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Points,
    Notes(&'static NoteKind),
}

/// The table, in the contract's order. The decision record stores the number of a row, so new rows are added at the
/// end. The two numbers of a read are how long its answer is fresh and may stand in for a failed origin, in seconds, where
/// the section `cache` says nothing.
static TABLE: [Row; Operation::COUNT + 2] = [
    read(GetPoints, "getPoints", Answer::Number, "points", (30, 600), Source::Points),
    Row {
        operation: SetPoints,
        name: "setPoints",
        params: &[Param::MemberId, Param::Amount],
        scope: Scope::Write,
        answer: Answer::Line,
        kind: Kind::Write { invalidates: &[GetPoints] },
    },
    read(GetWarns, "getWarns", Answer::Map { expires: true }, "warns", (60, 0), Source::Notes(&WARN)),
    read(GetReviews, "getReviews", Answer::Map { expires: false }, "reviews", (300, 0), Source::Notes(&REVIEW)),
    pass(Pass, Scope::Read, false),
    pass(PassWrite, Scope::Write, true),
];

/// A read about a member, with `ttl` and `stale_if_error` in seconds.
const fn read(
    operation: Operation,
    name: &'static str,
    answer: Answer,
    section: &'static str,
    (ttl, stale_if_error): (u64, u64),
    source: Source,
) -> Row {
    let (ttl, stale_if_error) = (Duration::from_secs(ttl), Duration::from_secs(stale_if_error));
    let kind = Kind::Read { section, ttl, stale_if_error, source };
    Row { operation, name, params: &[Param::MemberId], scope: Scope::Read, answer, kind }
}

const fn pass(operation: Operation, scope: Scope, is_write: bool) -> Row {
    Row { operation, name: "pass", params: &[], scope, answer: Answer::Line, kind: Kind::Pass { is_write } }
}

impl Operation {
    /// How many there are that paths name. A number, because in an optimized build the compiler finds a cycle where a length in a type
    /// comes from the table.
    pub const COUNT: usize = 4;

    /// All that paths name, in the order of their [`Operation::index`].
    pub const ALL: [Operation; Operation::COUNT] = [GetPoints, SetPoints, GetWarns, GetReviews];

    /// The number of its row.
    pub const fn index(self) -> usize {
        self as usize
    }

    pub fn row(self) -> &'static Row {
        &TABLE[self.index()]
    }

    /// The name in the path and in the answers.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Whether it changes anything at the origin.
    pub fn is_write(self) -> bool {
        matches!(self.row().kind, Kind::Write { .. } | Kind::Pass { is_write: true })
    }

    /// The reads whose cached answers about the member it invalidates; none if it is a read itself.
    pub fn invalidates(self) -> &'static [Operation] {
        match self.row().kind {
            Kind::Write { invalidates } => invalidates,
            Kind::Read { .. } | Kind::Pass { .. } => &[],
        }
    }

    /// The operation at `path`, compared byte for byte: `base_path`, a slash, the name.
    pub fn at(path: &[u8], base_path: &str) -> Option<Operation> {
        let name = path.strip_prefix(base_path.as_bytes())?.strip_prefix(b"/")?;
        TABLE[..Operation::COUNT].iter().find(|row| row.name.as_bytes() == name).map(|row| row.operation)
    }
}

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    MemberId,
    Amount,
}

impl Param {
    pub const fn name(self) -> &'static str {
        match self {
            Param::MemberId => "memberID",
            Param::Amount => "amount",
        }
    }
}

/// A request whose parameters are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub operation: Operation,
    pub member: MemberId,
    /// Where the operation has this parameter.
    pub amount: Option<i64>,
}

impl Request {
    /// A read about this member.
    pub const fn read(operation: Operation, member: MemberId) -> Request {
        Request { operation, member, amount: None }
    }

    /// The canonical body sent to an origin: `memberID=N[&amount=N]`, nothing else of the caller's.
    pub fn canonical_body(&self) -> String {
        let Request { member, .. } = self;
        self.amount.map_or_else(|| format!("memberID={member}"), |amount| format!("memberID={member}&amount={amount}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_is_found_by_its_number_and_by_its_name() {
        for (number, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!((operation.index(), operation.row().operation), (number, operation));
            assert_eq!(Operation::at(format!("/base/{}", operation.name()).as_bytes(), "/base"), Some(operation));
        }
        assert_eq!(Operation::at(b"/base/getpoints", "/base"), None);
    }
}
