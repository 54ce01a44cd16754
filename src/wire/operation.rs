//! The operations of the service, as one table: name in the path, least scope of a key, and the reads that it
//! invalidates. Their parameters are the fields of `Request`. The form body that is sent to an origin is made here, and
//! contains nothing else of the caller's. Pure.

use crate::model::{MemberId, Scope};

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Read(Read),
    SetPoints,
}

/// The operations whose answers are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    Points,
    Warns,
    Reviews,
}

/// One row of the table.
struct Row {
    operation: Operation,
    /// In the path and in answers.
    name: &'static str,
    /// The least scope that may use it (contract section 1, code 15).
    scope: Scope,
    /// The reads whose cached answers about the member it invalidates; reads have none.
    invalidates: &'static [Read],
}

/// The table, in the contract's order. The decision record stores the number of a row, so new rows are added at the
/// end.
const TABLE: [Row; 4] = [
    read(Read::Points, "getPoints"),
    Row { operation: Operation::SetPoints, name: "setPoints", scope: Scope::Write, invalidates: &[Read::Points] },
    read(Read::Warns, "getWarns"),
    read(Read::Reviews, "getReviews"),
];

const fn read(read: Read, name: &'static str) -> Row {
    Row { operation: Operation::Read(read), name, scope: Scope::Read, invalidates: &[] }
}

/// A read that `Read::ALL` lacks would never be invalidated with the others.
const _: () = {
    let (mut reads, mut row) = (0, 0);
    while row < TABLE.len() {
        reads += matches!(TABLE[row].operation, Operation::Read(_)) as usize;
        row += 1;
    }
    assert!(reads == Read::ALL.len(), "`Read::ALL` has every read of the table");
};

impl Read {
    /// All reads, in the order of their [`Read::index`].
    pub const ALL: [Read; 3] = [Read::Points, Read::Warns, Read::Reviews];

    /// A small number for tables kept per read.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl Operation {
    /// All operations, in the order of their [`Operation::index`].
    pub const ALL: [Operation; TABLE.len()] =
        [TABLE[0].operation, TABLE[1].operation, TABLE[2].operation, TABLE[3].operation];

    /// The number of its row.
    pub const fn index(self) -> usize {
        match self {
            Operation::Read(Read::Points) => 0,
            Operation::SetPoints => 1,
            Operation::Read(Read::Warns) => 2,
            Operation::Read(Read::Reviews) => 3,
        }
    }

    const fn row(self) -> &'static Row {
        &TABLE[self.index()]
    }

    /// The name in the path and in the answers.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The least scope that may use it.
    pub const fn scope(self) -> Scope {
        self.row().scope
    }

    /// The reads whose cached answers about the member it invalidates.
    pub const fn invalidates(self) -> &'static [Read] {
        self.row().invalidates
    }

    /// Whether it changes anything at the origin.
    pub const fn is_write(self) -> bool {
        !self.invalidates().is_empty()
    }

    /// The operation at `path`, compared byte for byte: `base_path`, a slash, the name.
    pub fn at(path: &[u8], base_path: &str) -> Option<Operation> {
        let name = path.strip_prefix(base_path.as_bytes())?.strip_prefix(b"/")?;
        TABLE.iter().find(|row| row.name.as_bytes() == name).map(|row| row.operation)
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
pub enum Request {
    Read { read: Read, member: MemberId },
    SetPoints { member: MemberId, amount: i64 },
}

impl Request {
    /// The canonical body sent to an origin: `memberID=N[&amount=N]`, nothing else of the caller's.
    pub fn canonical_body(&self) -> String {
        match self {
            Request::Read { member, .. } => format!("memberID={member}"),
            Request::SetPoints { member, amount } => format!("memberID={member}&amount={amount}"),
        }
    }

    pub fn member(&self) -> MemberId {
        match self {
            Request::Read { member, .. } | Request::SetPoints { member, .. } => *member,
        }
    }

    pub fn operation(&self) -> Operation {
        match self {
            Request::Read { read, .. } => Operation::Read(*read),
            Request::SetPoints { .. } => Operation::SetPoints,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_is_found_by_its_number_and_by_its_name() {
        for (number, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation.index(), number);
            assert_eq!(Operation::at(format!("/base/{}", operation.name()).as_bytes(), "/base"), Some(operation));
        }
        assert_eq!(Operation::at(b"/base/getpoints", "/base"), None);
    }
}
