//! Errors of calls to PostgreSQL, and the lines for the operator made of them: what failed, and what to do.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::store::StoreError;

/// Why a call failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// The deadline passed without an answer.
    Timeout,
    /// The server or the connection failed.
    Server(Error),
    Store(StoreError),
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        CallError::Store(error)
    }
}

impl CallError {
    /// Whether the lock that another writer holds was not free in time.
    pub(super) fn is_lock_timeout(&self) -> bool {
        self.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// Whether the server has no free slot for another connection.
    pub(super) fn is_full(&self) -> bool {
        self.code() == Some(&SqlState::TOO_MANY_CONNECTIONS)
    }

    /// Whether the connection ended. A connection is unusable after a timeout too, but that is not a disconnect.
    pub(super) fn is_disconnect(&self) -> bool {
        matches!(self, CallError::Server(e) if e.as_db_error().is_none() || ends_session(e))
    }

    fn code(&self) -> Option<&SqlState> {
        match self {
            CallError::Server(error) => error.code(),
            CallError::Timeout | CallError::Store(_) => None,
        }
    }

    /// The error of a call that was no commit: nothing was written.
    pub(super) fn into_store_error(self, location: &str) -> StoreError {
        let error = match self {
            CallError::Timeout => {
                return StoreError::Unreachable(format!("{location} did not answer in time; try again"));
            }
            CallError::Store(error) => return error,
            CallError::Server(error) => error,
        };
        let line = format!("{location}: {}", line(&error));
        match hint(&error) {
            Some(hint) => StoreError::Failed(format!("{line}; {hint}")),
            None if error.code().is_none() || ends_session(&error) => {
                StoreError::Unreachable(format!("{line}; try again"))
            }
            None if is_temporary(&error) => StoreError::Busy(format!("{line}; try again")),
            None => StoreError::Failed(line),
        }
    }

    /// The error of a commit that was sent, and that may have happened.
    pub(super) fn into_unknown_outcome(self, location: &str) -> StoreError {
        let why = match self {
            CallError::Timeout => "no answer in time".to_owned(),
            CallError::Server(error) => line(&error),
            CallError::Store(error) => error.to_string(),
        };
        StoreError::Unknown(format!("{location}: a commit was sent and not confirmed ({why}); it may have happened"))
    }
}

/// The error where what each connection asks for is not in force.
pub(super) fn lost_settings(location: &str, lost: &str) -> StoreError {
    StoreError::Failed(format!(
        "{location}: what was asked for with the connection is not in force ({lost}); a pooler in between drops it \
         (PgBouncer: ignore_startup_parameters = options). Name PostgreSQL's own host and port in origin.store, or give \
         the user these settings there (ALTER ROLE … SET …, in docs/storage.md), with the pooler in session mode"
    ))
}

/// The error where a pooler gives a connection to another caller after each transaction.
pub(super) fn transaction_mode(location: &str) -> StoreError {
    StoreError::Failed(format!(
        "{location}: a pooler in between is in transaction mode: two connections to it had one of the server's. Set it to \
         session mode (PgBouncer: pool_mode = session), or name PostgreSQL's own host and port in origin.store"
    ))
}

/// The server's message, or the cause below the client's.
pub(super) fn line(error: &Error) -> String {
    match (error.as_db_error(), error.source()) {
        (None, Some(_)) if wants_password(error) => PASSWORD_MISSING.to_owned(),
        (Some(db), _) => db.message().to_owned(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// The client's message where the server asks for a password and the URL has none.
const PASSWORD_MISSING: &str = "password missing";

fn wants_password(error: &Error) -> bool {
    error.source().is_some_and(|source| source.to_string() == PASSWORD_MISSING)
}

/// What the operator can do about an error that is not temporary.
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
    } else if *code == SqlState::PROTOCOL_VIOLATION && line(error).contains("startup parameter") {
        Some(
            "a pooler in between does not pass on what is asked for with the connection; name PostgreSQL's own host and \
             port in origin.store, or see \"Behind a pooler\" in docs/storage.md",
        )
    } else if *code == SqlState::DISK_FULL {
        Some("make room on the server's disk, then try again")
    } else {
        None
    }
}

/// Whether trying again helps: another transaction holds a lock, or a standby is about to take over.
fn is_temporary(error: &Error) -> bool {
    let Some(code) = error.code() else { return false };
    let temporary = [
        &SqlState::LOCK_NOT_AVAILABLE,
        &SqlState::QUERY_CANCELED,
        &SqlState::T_R_SERIALIZATION_FAILURE,
        &SqlState::T_R_DEADLOCK_DETECTED,
        &SqlState::READ_ONLY_SQL_TRANSACTION, // a standby before it takes over
    ];
    temporary.contains(&code)
}

fn ends_session(error: &Error) -> bool {
    let ends = [
        &SqlState::ADMIN_SHUTDOWN,
        &SqlState::CRASH_SHUTDOWN,
        &SqlState::CANNOT_CONNECT_NOW,
        &SqlState::TOO_MANY_CONNECTIONS,
        &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    ];
    error.code().is_some_and(|code| ends.contains(&code))
}
