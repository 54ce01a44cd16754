//! The four operations: their names in the path, the least scope of a key for each, their parameters, and the form body
//! that is sent to an origin. This is the one table of them. A `Request` holds parsed parameters, and its form body
//! contains nothing else of the caller's. Pure.

use crate::model::{MemberId, Scope};

/// The four operations, by their names in the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Read(Read),
    SetPoints,
}

/// The three that only ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    Points,
    Warns,
    Reviews,
}

impl Read {
    /// All of them, in the order of their [`Read::index`].
    pub const ALL: [Read; 3] = [Read::Points, Read::Warns, Read::Reviews];

    /// A small number for tables kept per read operation.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl Operation {
    /// All of them, in the contract's order.
    pub const ALL: [Operation; 4] = [
        Operation::Read(Read::Points),
        Operation::SetPoints,
        Operation::Read(Read::Warns),
        Operation::Read(Read::Reviews),
    ];

    /// The name in the path and in the answers.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Read(Read::Points) => "getPoints",
            Operation::SetPoints => "setPoints",
            Operation::Read(Read::Warns) => "getWarns",
            Operation::Read(Read::Reviews) => "getReviews",
        }
    }

    /// The least scope that may use it (contract section 1, code 15).
    pub const fn scope(self) -> Scope {
        match self {
            Operation::Read(_) => Scope::Read,
            Operation::SetPoints => Scope::Write,
        }
    }

    /// The operation at `path`, compared byte for byte: `base_path`, a slash, the name.
    pub fn at(path: &[u8], base_path: &str) -> Option<Operation> {
        let name = path.strip_prefix(base_path.as_bytes())?.strip_prefix(b"/")?;
        match name {
            b"getPoints" => Some(Operation::Read(Read::Points)),
            b"setPoints" => Some(Operation::SetPoints),
            b"getWarns" => Some(Operation::Read(Read::Warns)),
            b"getReviews" => Some(Operation::Read(Read::Reviews)),
            _ => None,
        }
    }
}

/// The two parameters there are.
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

/// A request whose parameters are known to be good.
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

    pub fn operation(&self) -> Operation {
        match self {
            Request::Read { read, .. } => Operation::Read(*read),
            Request::SetPoints { .. } => Operation::SetPoints,
        }
    }
}
