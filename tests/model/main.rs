//! The cache's own files, compiled with the checker's locks and atomics in place of the system's, so
//! that every interleaving of readers and writers is one that can be tried (guarantee 2). The bugs
//! at the end are planted: the checker must catch each of them, or it would catch nothing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cache;
mod planted;
mod scenarios;
mod sync;
mod world;

// The cache's files import the other modules under these names.
use guildgate::{clock, config, model, wire};
