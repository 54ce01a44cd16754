//! Import and export: JSON Lines, one record a line (contract section 2).

mod apply; // from the staging file into the store, in one transaction
mod export;
mod fitting; // which lines are left out, so that no answer is too long
mod import;
mod into_postgres; // the same for PostgreSQL
mod lines; // a file as lines of bounded length
mod out_of_postgres; // export of a PostgreSQL store
mod record; // what a line says
mod stage; // the staging file
#[cfg(test)]
pub(in crate::store) mod tests;

pub use export::ExportError;
pub(super) use import::Transaction;
pub use import::{BadLine, BadLines, ImportError, Imported, Mode, Phase, Progress, SHOWN, UncommittedImport};
pub use record::Record;
pub(super) use stage::staging_file;
