//! Errors of PostgreSQL as lines for the operator.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::config::tls_fault;
use crate::store::StoreError;

/// An error of a call that was no commit: nothing was written.
pub(super) fn of(error: &Error, location: &str) -> StoreError {
    let line = format!("{location}: {}", line(error));
    if is_temporary(error) { StoreError::Busy(line) } else { StoreError::Failed(line) }
}

/// No connection could be made.
pub(super) fn not_connected(location: &str, why: &str) -> StoreError {
    StoreError::Failed(format!(
        "cannot connect to PostgreSQL at {location}: {why}; check that the server runs and lets this user in, and what \
         origin.store says"
    ))
}

/// Each transaction runs on another connection of the server.
pub(super) fn behind_pooler(location: &str) -> StoreError {
    StoreError::Failed(format!(
        "{location} is behind a pooler that shares connections between transactions; give Guildgate sessions of its own \
         (pgbouncer: pool_mode = session, with its server_reset_query), or name the server itself in origin.store"
    ))
}

/// The server's message, or the client's and the cause below it. Never the details, which may hold values.
pub(super) fn line(error: &Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => db.message().to_owned(),
        (None, Some(source)) => format!("{error}: {}", tls_fault(source)),
        (None, None) => error.to_string(),
    }
}

/// Whether trying again helps: another transaction holds a lock, or has just removed the guild.
fn is_temporary(error: &Error) -> bool {
    let temporary = [
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::QUERY_CANCELED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::FOREIGN_KEY_VIOLATION,
    ];
    error.code().is_some_and(|code| temporary.contains(code))
}

/// Whether the connection is of no further use: it ended, or the server is about to, or it has become a standby.
pub(super) fn ends_session(error: &Error) -> bool {
    let ends = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        SqlState::READ_ONLY_SQL_TRANSACTION,
    ];
    error.code().is_none_or(|code| ends.contains(code))
}
