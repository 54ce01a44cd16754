//! Guildgate: the edge gateway for guild data. This page is the map, floor by floor; a module
//! imports only from the floors below its own (`tests/it/floors.rs` holds that).
//! `docs/ARCHITECTURE.md` walks one read, one write and one reload through it.

#[cfg(test)]
#[macro_use]
mod fuzz; // floor 0: what the fuzz targets share

// Floor 0: what the world is made of.
pub mod clock; // the one place that reads time
pub mod model; // guilds, members, keys' digests, warns, reviews
pub mod sync; // the locks and atomics of what is model-checked

// Floor 1: what is said on the network, pure.
pub mod wire; // operations, form parameters, faults, maps

// Floor 2: what the operator says.
pub mod config; // gateway.toml: as typed, checked, usable

// Floor 3: the parts that hold state.
pub mod cache; // answers in memory, with the fence (epochs) and the flights (one question)
pub mod limits; // GCRA buckets, tiers, strangers
pub mod store; // guilds, keys and members on disk
pub mod telemetry; // one outcome per request: the access line

// Floor 4: who asks, and whom we ask.
pub mod keys; // secrets, and the book of keys
pub mod origin; // the built-in backend, or an HTTP upstream

// Floor 5: the rules.
pub mod gateway; // identify, limit, parse, read or write

// Floor 6: the network.
pub mod edge; // Pingora's listeners and our strict HTTP/1.1 reader

// Floor 7: the command.
pub mod cli; // arguments to exit code
