//! Errors of PostgreSQL as lines for the operator: what failed, and what to do.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::store::StoreError;

/// How a message about a server that cannot be reached ends.
const TRY_AGAIN: &str = "; try again";

pub(super) const READ_ONLY: &str =
    "the server takes no writes: it is a standby, or default_transaction_read_only is on";

/// An error of a call that was no commit: nothing was written.
pub(super) fn of(error: &Error, location: &str) -> StoreError {
    if is_one_of(error, &[SqlState::DUPLICATE_PSTATEMENT, SqlState::INVALID_SQL_STATEMENT_NAME]) {
        return behind_pooler(location); // the session has prepared statements of others, or lacks those of this one
    }
    // What is stored is one line; so an id was looked for.
    if is_one_of(error, &[SqlState::CHARACTER_NOT_IN_REPERTOIRE, SqlState::UNTRANSLATABLE_CHARACTER]) {
        return StoreError::NotFound("there is nothing in the store whose id has a NUL character".to_owned());
    }
    let line = format!("{location}: {}", line(error));
    match hint(error) {
        Some(hint) => StoreError::Failed(format!("{line}; {hint}")),
        None if ends_session(error) => StoreError::Unreachable(format!("{line}{TRY_AGAIN}")),
        None if is_temporary(error) => StoreError::Busy(format!("{line}{TRY_AGAIN}")),
        None => StoreError::Failed(line),
    }
}

/// Each transaction runs on another connection of the server.
pub(super) fn behind_pooler(location: &str) -> StoreError {
    StoreError::Failed(format!(
        "{location}: it is behind a pooler that shares connections between transactions, where settings and locks of a \
         session are lost; give Guildgate sessions of its own (pgbouncer: pool_mode = session, with its \
         server_reset_query), or name the server itself in origin.store"
    ))
}

fn is_one_of(error: &Error, codes: &[SqlState]) -> bool {
    error.code().is_some_and(|code| codes.contains(code))
}

pub(super) fn timed_out(location: &str) -> StoreError {
    StoreError::Unreachable(format!("{location} did not answer in time{TRY_AGAIN}"))
}

/// As [`of`], of the first connection: the URL may be wrong.
pub(super) fn of_first_connection(error: StoreError) -> StoreError {
    let cannot = "cannot connect to PostgreSQL at";
    match error {
        StoreError::Unreachable(line) => StoreError::Unreachable(format!(
            "{cannot} {}; is the server running, and does origin.store name its host and port?",
            line.trim_end_matches(TRY_AGAIN)
        )),
        StoreError::Busy(line) | StoreError::Failed(line) => StoreError::Failed(format!("{cannot} {line}")),
        other => other,
    }
}

/// The server's message, or the cause below the client's.
pub(super) fn line(error: &Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => db.message().to_owned(),
        (None, Some(source)) if says(error, "password missing") => source.to_string(),
        (None, Some(_)) if is_read_only(error) => READ_ONLY.to_owned(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// What the client says of its own errors, for which it has no kinds, and what to do.
const OF_CLIENT: [(&str, &str); 2] = [
    (
        "password missing",
        "the server asks for one, and origin.store has none; write postgres://USER:PASSWORD@HOST/DATABASE, or keep that URL \
         in a file (store = \"file:PATH\")",
    ),
    ("server does not support TLS", "switch it on there (ssl = on), or do without it (sslmode=prefer in origin.store)"),
];

fn says(error: &Error, words: &str) -> bool {
    error.source().is_some_and(|source| source.to_string().contains(words))
}

/// Whether no server takes writes, of those that could be connected to.
pub(super) fn is_read_only(error: &Error) -> bool {
    says(error, "database does not allow writes")
}

const PASSWORD: &str = "check user and password in origin.store, and the server's pg_hba.conf";

/// What the operator can do about an error that does not pass by itself.
fn hint(error: &Error) -> Option<&'static str> {
    let hints = [
        (&SqlState::INVALID_PASSWORD, PASSWORD),
        (&SqlState::INVALID_AUTHORIZATION_SPECIFICATION, PASSWORD),
        (&SqlState::UNDEFINED_DATABASE, "make it (createdb), or name another one in origin.store"),
        (
            &SqlState::INSUFFICIENT_PRIVILEGE,
            "let the user make a schema (GRANT CREATE ON DATABASE … TO …), or make the schema guildgate its own",
        ),
        (&SqlState::DISK_FULL, "make room on the server's disk, then try again"),
        (
            &SqlState::TOO_MANY_CONNECTIONS,
            "each server process needs 19 and a command a few; raise max_connections there, or stop what else uses it",
        ),
        (&SqlState::READ_ONLY_SQL_TRANSACTION, READ_ONLY),
    ];
    match error.code() {
        Some(code) => hints.into_iter().find(|(other, _)| *other == code).map(|(_, hint)| hint),
        None => OF_CLIENT.into_iter().find(|(words, _)| says(error, words)).map(|(_, hint)| hint),
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
    is_one_of(error, &temporary)
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
    error.code().is_none() || is_one_of(error, &ends)
}
