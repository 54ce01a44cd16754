pub mod error; // a command that failed: exit 1
pub mod expires; // --expires
pub mod notes; // warn, review
pub mod records; // guild, member
pub mod transfer; // import, export
