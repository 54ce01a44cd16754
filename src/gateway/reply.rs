//! What the gateway returns for one request: the text or the fault, and the facts found on the way to it. The network
//! side makes the header fields and the access log's line from these facts, so they hold everything that either needs,
//! and never the key itself or a body (guarantee 9). Plain data: nothing here decides anything.

use std::sync::Arc;
use std::time::Duration;

use crate::keys::Key;
use crate::limits::Spent;
use crate::model::Limit;
use crate::wire::{Fault, Operation, RequestId};

/// What is said to the caller, and what was found on the way to it.
#[derive(Debug)]
pub struct Reply {
    pub answer: Result<Arc<str>, Fault>,
    pub facts: Facts,
}

/// What was found out about a request, as far as it came: for the answer's headers and the log.
#[derive(Debug)]
pub struct Facts {
    pub id: RequestId,
    pub operation: Option<Operation>,
    pub key: Option<Arc<Key>>,
    pub spent: Option<Spent>,
    /// The limit it was over, whether or not that was held against it (`limits.shadow`).
    pub over_limit: Option<Limit>,
    /// Over the budget of its address, likewise.
    pub over_strangers: bool,
    /// Over the limit that is being tried out (`candidate`).
    pub over_candidate: bool,
    pub cache: Option<CacheUse>,
    /// It panicked on its way: nothing further should be read from its connection.
    pub panicked: bool,
}

impl Facts {
    pub fn new(id: RequestId) -> Self {
        Facts {
            id,
            operation: None,
            key: None,
            spent: None,
            over_limit: None,
            over_strangers: false,
            over_candidate: false,
            cache: None,
            panicked: false,
        }
    }
}

/// The part the cache had in an answer (RFC 9211; contract section 1, "Headers on answers").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    Hit {
        ttl: Duration,
        age: Duration,
    },
    /// Stale, while it is asked for anew.
    WhileRevalidating {
        age: Duration,
    },
    /// Stale, since the origin failed.
    IfError {
        age: Duration,
    },
    /// The origin was asked; `stale`: for an answer that was held but too old.
    Asked {
        stale: bool,
        stored: bool,
    },
    /// Another caller's question to the origin was joined.
    Collapsed,
    /// A write, which goes to the origin by its nature.
    Method,
    /// Refused before the cache was asked.
    Refused,
}

impl CacheUse {
    /// What is said of a request that is refused between its scope and the operation itself.
    pub(super) fn before(operation: Operation) -> Self {
        match operation {
            Operation::Read(_) => CacheUse::Refused,
            Operation::SetPoints => CacheUse::Method,
        }
    }
}
