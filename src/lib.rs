//! Guildgate: the edge gateway for guild data. This page is the map, floor by floor; a module
//! imports only from the floors below its own (`tests/it/floors.rs` checks that).
//! `docs/ARCHITECTURE.md` walks one read, write, reload and hand-over through it.

#[cfg(test)]
#[macro_use]
mod fuzz; // floor 0: what the fuzz targets share

// Floor 0: what every module may use.
pub mod clock; // the one place that reads time
pub mod files; // which file a path names, and whether it changed
pub mod json; // JSON objects from outside
pub mod model; // guilds, members, keys' digests, warns, reviews
pub mod sync; // the locks and atomics of what is model-checked

// Floor 1: what the network carries, pure.
pub mod wire; // operations, form parameters, faults, maps

// Floor 2: the configuration.
pub mod config; // gateway.toml: as typed, checked, usable

// Floor 3: the parts that hold state.
pub mod cache; // answers in memory, their epochs, single-flight
pub mod limits; // GCRA buckets, policies of tiers, addresses without a key
pub mod store; // guilds, keys and members on disk
pub mod telemetry; // the process log, the access log, the decision record
pub mod tls; // certificates and cipher suites of the listeners

// Floor 4: keys and the origin.
pub mod keys; // the form of a secret, the key table, learned keys
pub mod origin; // the built-in backend, or an HTTP service at one or more upstreams
pub mod planning; // recorded decisions under other limits

// Floor 5: records, and what several nodes share.
pub mod cluster; // limits that all nodes keep together, and the bus by which they tell each other of writes
pub mod records; // guilds, keys, members and notes, for commands and the admin API alike

// Floor 6: the rules.
pub mod gateway; // the rules of a request: admit, read, write

// Floor 7: the network.
pub mod admin; // the listener for operators and admins, and its API
pub mod edge; // listeners, TLS, HTTP/1.1 and HTTP/2

// Floor 8: the running process.
pub mod process; // start, serve, drain; reloads, signals, hand-over

// Floor 9: the command.
pub mod cli; // arguments to exit code
