//! PostgreSQL's errors as lines for the operator: what failed, and what to do next.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::store::StoreError;

const NO_SLOT: &str = "it has no slot left for another connection";

/// What went wrong with a call.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The deadline passed without an answer.
    Late,
    Server(Error),
    /// The pool is to make no connection now: others of the node's need the server's slots.
    NoSlot,
    /// What the call itself found wrong.
    Own(StoreError),
}

impl Trouble {
    /// Whether a lock that somebody else holds is all that is wrong: nothing else was.
    pub(super) fn is_lock(&self) -> bool {
        matches!(self, Trouble::Server(e) if e.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }

    /// Whether the server has no slot for another connection.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Trouble::NoSlot => true,
            Trouble::Server(e) => e.code() == Some(&SqlState::TOO_MANY_CONNECTIONS),
            Trouble::Late | Trouble::Own(_) => false,
        }
    }

    /// Whether the connection is gone, or worth nothing any more.
    pub(super) fn is_connections(&self) -> bool {
        match self {
            Trouble::Late => true,
            Trouble::Server(e) => e.is_closed() || e.as_db_error().is_none() || is_the_sessions_end(e),
            Trouble::NoSlot | Trouble::Own(_) => false,
        }
    }

    /// As an answer to who asked. It was no commit: nothing was written, whatever it was.
    pub(super) fn told(self, place: &str) -> StoreError {
        match self {
            Trouble::Late => StoreError::Unreachable(format!("{place} did not answer in time; try again")),
            Trouble::NoSlot => StoreError::Busy(format!("{place}: {NO_SLOT}; try again")),
            Trouble::Own(error) => error,
            Trouble::Server(error) => match hint(&error) {
                Some(hint) => StoreError::Failed(format!("{place}: {}; {hint}", line(&error))),
                None if error.code().is_none() || is_the_sessions_end(&error) => {
                    StoreError::Unreachable(format!("{place}: {}; try again", line(&error)))
                }
                None if passes(&error) => StoreError::Busy(format!("{place}: {}; try again", line(&error))),
                None => StoreError::Failed(format!("{place}: {}", line(&error))),
            },
        }
    }

    /// As the answer of a commit that was sent: nobody knows whether it was done.
    pub(super) fn told_of_commit(&self, place: &str) -> StoreError {
        let why = match self {
            Trouble::Late => "no answer in time".to_owned(),
            Trouble::NoSlot => NO_SLOT.to_owned(),
            Trouble::Server(error) => line(error),
            Trouble::Own(error) => error.to_string(),
        };
        StoreError::Unknown(format!("{place}: a commit was sent and not confirmed ({why}); it may have happened"))
    }
}

/// The server's own words, or what lies under the client's.
pub(super) fn line(error: &Error) -> String {
    match (error.as_db_error(), error.source()) {
        (None, Some(_)) if wants_password(error) => PASSWORD_MISSING.to_owned(),
        (Some(db), _) => db.message().to_owned(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// The client's own words where the server asks for a password and the URL has none.
const PASSWORD_MISSING: &str = "password missing";

fn wants_password(error: &Error) -> bool {
    error.source().is_some_and(|source| source.to_string() == PASSWORD_MISSING)
}

/// What to do about what will not pass by itself.
fn hint(error: &Error) -> Option<&'static str> {
    let Some(code) = error.code() else {
        return wants_password(error).then_some(
            "the server asks for one, and origin.store has none; write postgres://USER:PASSWORD@HOST/DATABASE, or keep \
             that URL in a file (store = \"file:PATH\")",
        );
    };
    let password = [&SqlState::INVALID_PASSWORD, &SqlState::INVALID_AUTHORIZATION_SPECIFICATION];
    if password.contains(&code) {
        Some("check user and password in origin.store, and the server's pg_hba.conf")
    } else if *code == SqlState::UNDEFINED_DATABASE {
        Some("make it (createdb), or name another one in origin.store")
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        Some("let the user make a schema (GRANT CREATE ON DATABASE … TO …), or make the schema guildgate its own")
    } else if *code == SqlState::DISK_FULL {
        Some("make room on the server's disk, then try again")
    } else {
        None
    }
}

/// Whether it passes by itself: somebody else's lock is in the way, or another server is about to take over.
fn passes(error: &Error) -> bool {
    let Some(code) = error.code() else { return false };
    let passing = [
        &SqlState::LOCK_NOT_AVAILABLE,
        &SqlState::QUERY_CANCELED,
        &SqlState::T_R_SERIALIZATION_FAILURE,
        &SqlState::T_R_DEADLOCK_DETECTED,
        &SqlState::READ_ONLY_SQL_TRANSACTION, // a standby that is about to take over, or was
    ];
    passing.contains(&code)
}

fn is_the_sessions_end(error: &Error) -> bool {
    let ends = [
        &SqlState::ADMIN_SHUTDOWN,
        &SqlState::CRASH_SHUTDOWN,
        &SqlState::CANNOT_CONNECT_NOW,
        &SqlState::TOO_MANY_CONNECTIONS,
        &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    ];
    error.code().is_some_and(|code| ends.contains(&code))
}
